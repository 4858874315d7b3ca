package sqlx

import "strings"

// word is one word of a query, at [from, to) of its text.
type word struct {
	kind     wordKind
	text     string
	from, to int
}

type wordKind uint8

const (
	wordName   wordKind = iota
	wordParam           // $1
	wordQuoted          // 'text', "name", $$text$$
	wordOther           // one character of punctuation or of a number
)

func (w word) is(keyword string) bool {
	return w.kind == wordName && strings.EqualFold(w.text, keyword)
}

// nesting is +1 for an opening parenthesis, -1 for a closing one.
func (w word) nesting() int {
	switch {
	case w.kind != wordOther:
		return 0
	case w.text == "(":
		return 1
	case w.text == ")":
		return -1
	}
	return 0
}

// wordsOf cuts a query that route.ParseSQL accepted, so that every quote and
// comment in it has its end. White space and comments are left out.
func wordsOf(s string) []word {
	var words []word
	for at := 0; at < len(s); {
		kind, n := wordAt(s[at:])
		if n > 0 {
			words = append(words, word{kind: kind, text: s[at : at+n], from: at, to: at + n})
			at += n
		} else {
			at -= n
		}
	}
	return words
}

// wordAt is the kind and length of the word at the start of s; a negative length
// is that of something to skip.
func wordAt(s string) (wordKind, int) {
	c := s[0]
	switch {
	case strings.IndexByte(" \t\r\n\f\v", c) >= 0:
		return 0, -1
	case strings.HasPrefix(s, "--"):
		if n := strings.IndexAny(s, "\r\n"); n >= 0 {
			return 0, -n
		}
		return 0, -len(s)
	case strings.HasPrefix(s, "/*"):
		return 0, -commentLen(s)
	case c == '\'' || c == '"':
		return wordQuoted, quoteLen(s, 0, false)
	case (c == 'e' || c == 'E') && len(s) > 1 && s[1] == '\'':
		return wordQuoted, quoteLen(s, 1, true)
	case c == '$':
		n := nameLen(s[1:]) + 1
		if n < len(s) && s[n] == '$' {
			tag := s[:n+1]
			return wordQuoted, min(len(s), len(tag)+strings.Index(s[len(tag):]+tag, tag)+len(tag))
		}
		if n == 1 || !isDigit(s[1]) {
			return wordOther, 1
		}
		return wordParam, n
	case isDigit(c) || !isName(c):
		return wordOther, 1
	}
	return wordName, nameLen(s)
}

func nameLen(s string) int {
	n := 0
	for n < len(s) && (isName(s[n]) || isDigit(s[n])) {
		n++
	}
	return n
}

func quoteLen(s string, prefix int, backslashes bool) int {
	quote := s[prefix]
	for i := prefix + 1; i < len(s); i++ {
		switch {
		case backslashes && s[i] == '\\', s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
		case s[i] == quote:
			return i + 1
		}
	}
	return len(s)
}

// commentLen is the length of the comment at the start of s; comments nest.
func commentLen(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); i++ {
		switch s[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

func isName(c byte) bool {
	return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
