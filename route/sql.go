package route

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// SQL is a query with ${…} tokens, taken apart. Everything around a token stays:
// casts, functions, other expressions.
type SQL struct {
	// Segments are the texts before, between and behind the tokens:
	// len(Tokens) + 1 of them.
	Segments []string
	Tokens   []Token
}

// Text is the query with $1, $2, … in place of the tokens. A digit right behind a
// token stays apart from the parameter's number.
func (q *SQL) Text() string {
	var b strings.Builder
	for i, s := range q.Segments {
		if i > 0 {
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(i))
			if s != "" && s[0] >= '0' && s[0] <= '9' {
				b.WriteByte(' ')
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

// ParseSQL takes a query apart. Tokens inside string literals, quoted names,
// comments and dollar quotes are text, as the server sees it (PostgreSQL's
// rules). A query with $1 of its own is refused, since tokens take these names;
// so is "| raw", which would let a message write SQL.
func ParseSQL(query string) (*SQL, error) { return ParseSQLEnv(query, osEnv) }

// ParseSQLEnv is ParseSQL with the environment of ${env:NAME}.
func ParseSQLEnv(query string, env LookupEnv) (*SQL, error) {
	q := &SQL{}
	start := 0
	for i := 0; i < len(query); {
		end, err := skipQuoted(query, i)
		if err != nil {
			return nil, fmt.Errorf("sql: character %d: %w", utf8.RuneCountInString(query[:i])+1, err)
		}
		if end > i {
			i = end
			continue
		}
		if !strings.HasPrefix(query[i:], "${") {
			if query[i] == '$' && i+1 < len(query) && query[i+1] >= '0' && query[i+1] <= '9' && (i == 0 || !isWord(query[i-1])) {
				return nil, fmt.Errorf("sql: character %d: parameters are written as ${…}, not as $%c", utf8.RuneCountInString(query[:i])+1, query[i+1])
			}
			i++
			continue
		}
		n := strings.IndexByte(query[i:], '}')
		if n < 0 {
			return nil, fmt.Errorf("sql: character %d: ${ is never closed", utf8.RuneCountInString(query[:i])+1)
		}
		token, err := compileToken(query[i+2:i+n], env)
		switch {
		case errors.Is(err, errNotToken):
			return nil, fmt.Errorf("sql: character %d: %s names no payload, metadata, message or env", utf8.RuneCountInString(query[:i])+1, query[i:i+n+1])
		case err != nil:
			return nil, fmt.Errorf("sql: character %d: %w", utf8.RuneCountInString(query[:i])+1, err)
		case token.Raw:
			return nil, fmt.Errorf("sql: character %d: raw would put a message's text into the query", utf8.RuneCountInString(query[:i])+1)
		}
		q.Segments = append(q.Segments, query[start:i])
		q.Tokens = append(q.Tokens, token)
		i += n + 1
		start = i
	}
	q.Segments = append(q.Segments, query[start:])
	return q, nil
}

// skipQuoted returns the end of the literal, quoted name, comment or dollar
// quote that begins at i, or i if none does.
func skipQuoted(s string, i int) (int, error) {
	switch c := s[i]; {
	case c == '\'':
		// E'…' knows backslashes.
		escapes := i > 0 && s[i-1]|0x20 == 'e' && (i == 1 || !isWord(s[i-2]))
		return skipString(s, i, '\'', escapes)
	case c == '"':
		return skipString(s, i, '"', false)
	case strings.HasPrefix(s[i:], "--"):
		if n := strings.IndexAny(s[i:], "\r\n"); n >= 0 {
			return i + n, nil
		}
		return len(s), nil
	case strings.HasPrefix(s[i:], "/*"):
		depth := 0
		for j := i; j < len(s)-1; j++ {
			switch s[j : j+2] {
			case "/*":
				depth++
				j++
			case "*/":
				depth--
				j++
				if depth == 0 {
					return j + 1, nil
				}
			}
		}
		return 0, errors.New("a comment is never closed")
	case c == '$' && (i == 0 || !isWord(s[i-1])):
		tag := dollarTag(s[i:])
		if tag == "" {
			return i, nil
		}
		n := strings.Index(s[i+len(tag):], tag)
		if n < 0 {
			return 0, fmt.Errorf("%s is never closed", tag)
		}
		return i + len(tag) + n + len(tag), nil
	}
	return i, nil
}

func skipString(s string, i int, quote byte, escapes bool) (int, error) {
	for j := i + 1; j < len(s); j++ {
		switch {
		case escapes && s[j] == '\\':
			j++
		case s[j] != quote:
		case j+1 < len(s) && s[j+1] == quote:
			j++
		default:
			return j + 1, nil
		}
	}
	return 0, fmt.Errorf("%c is never closed", quote)
}

// dollarTag returns $tag$ at the beginning of s, "" if there is none.
func dollarTag(s string) string {
	for j := 1; j < len(s); j++ {
		switch {
		case s[j] == '$':
			return s[:j+1]
		case !isWord(s[j]) || j == 1 && s[j] >= '0' && s[j] <= '9':
			return ""
		}
	}
	return ""
}

// isWord reports whether c can be part of a name.
func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
