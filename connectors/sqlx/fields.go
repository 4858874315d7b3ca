package sqlx

import (
	"bytes"
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// fields finds wanted fields of JSON objects in one pass over each. It knows the
// order of the last object's fields, so that most are found at the first look.
type fields struct {
	names []string
	index map[string]int
	// raw[i] is the JSON text of field i in the object scanned last, nil if it has
	// none. Of a name that comes twice the last one counts.
	raw [][]byte

	scratch []byte // a name with escapes
}

func newFields(names []string) *fields {
	f := &fields{names: names, index: make(map[string]int, len(names)), raw: make([][]byte, len(names))}
	for i, n := range names {
		f.index[n] = i
	}
	return f
}

// scan reads an object. p must be valid JSON; false means it is no object.
func (f *fields) scan(p []byte) bool {
	clear(f.raw)
	i := space(p, 0)
	if p[i] != '{' {
		return false
	}
	i = space(p, i+1)
	next := 0
	for p[i] != '}' {
		if p[i] == ',' {
			i = space(p, i+1)
		}
		end := stringEnd(p, i)
		name := p[i+1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			f.scratch = appendUnescaped(f.scratch[:0], name)
			name = f.scratch
		}
		i = space(p, end) // the colon
		i = space(p, i+1) // the value
		end = valueEnd(p, i)
		at := -1
		if next < len(f.names) && f.names[next] == string(name) {
			at = next
		} else if n, ok := f.index[string(name)]; ok {
			at = n
		}
		if at >= 0 {
			f.raw[at] = p[i:end]
			next = at + 1
		}
		i = space(p, end)
	}
	return true
}

func space(p []byte, i int) int {
	for p[i] == ' ' || p[i] == '\n' || p[i] == '\t' || p[i] == '\r' {
		i++
	}
	return i
}

// stringEnd is the index behind the string that begins at p[i].
func stringEnd(p []byte, i int) int {
	from := i + 1
	i = from + bytes.IndexByte(p[from:], '"')
	if p[i-1] != '\\' || i == from {
		return i + 1
	}
	// Escapes seldom come alone: from here on byte by byte.
	if j := bytes.IndexByte(p[from:i], '\\'); j >= 0 {
		i = from + j
	}
	for {
		switch p[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
		i++
	}
}

// valueEnd is the index behind the value that begins at p[i].
func valueEnd(p []byte, i int) int {
	switch p[i] {
	case '"':
		return stringEnd(p, i)
	case '{', '[':
		for depth := 0; ; {
			switch p[i] {
			case '"':
				i = stringEnd(p, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for i < len(p) && p[i] != ',' && p[i] != '}' && p[i] != ']' && p[i] > ' ' {
		i++
	}
	return i
}

// appendUnescaped appends the inside of a valid JSON string. Half of a surrogate
// pair becomes U+FFFD, as in encoding/json.
func appendUnescaped(dst, s []byte) []byte {
	for {
		i := 0
		for i < len(s) && s[i] != '\\' {
			if i++; i == 32 { // far: as fast as the machine can
				n := bytes.IndexByte(s[i:], '\\')
				if n < 0 {
					return append(dst, s...)
				}
				i += n
				break
			}
		}
		dst = append(dst, s[:i]...)
		if i == len(s) {
			return dst
		}
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hex4(s)
			s = s[4:]
			if utf16.IsSurrogate(r) {
				if len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
					if both := utf16.DecodeRune(r, hex4(s[2:])); both != utf8.RuneError {
						r, s = both, s[6:]
					}
				}
				if utf16.IsSurrogate(r) {
					r = utf8.RuneError
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

func hex4(s []byte) (r rune) {
	for _, c := range s[:4] {
		switch {
		case c <= '9':
			c -= '0'
		default:
			c = c | 0x20 - 'a' + 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

var (
	errNotUTF8 = errors.New("is not UTF-8, which a text column needs")
	errNUL     = errors.New("holds a NUL character, which PostgreSQL cannot store in text")
)

// checkText refuses what no text column can hold.
func checkText(s []byte) error {
	if !utf8.Valid(s) {
		return errNotUTF8
	}
	if bytes.IndexByte(s, 0) >= 0 {
		return errNUL
	}
	return nil
}
