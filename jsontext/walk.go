package jsontext

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// Skip checks the one value that begins at b[i], behind any white space, and
// returns where it ends. Where it is none, end is the place of the problem.
func Skip(b []byte, i int) (end int, p Problem) {
	c := checker{b: b, i: i}
	p = c.value()
	return c.i, p
}

// SkipString is Skip for a string whose opening quote is b[i].
func SkipString(b []byte, i int) (end int, p Problem) {
	i++
	for {
		for i+8 <= len(b) {
			m := Special(binary.LittleEndian.Uint64(b[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return len(b), UnexpectedEnd
		}
		switch x := b[i]; {
		case x == '"':
			return i + 1, OK
		case x == '\\':
			if i+1 < len(b) && b[i+1] == '"' {
				i += 2
				continue
			}
			n := escapeLen(b[i:])
			if n == 0 {
				return i, BadEscape
			}
			i += n
		case x < 0x20:
			return i, ControlInString
		case x >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return i, NotUTF8
			}
			i += n
		default:
			i++
		}
	}
}

// SkipSpace returns the place of the first byte at or behind i that is no white
// space.
func SkipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// IsNumber reports whether all of b is one number as JSON writes it.
func IsNumber(b []byte) bool {
	if len(b) == 0 || b[0] != '-' && b[0]-'0' > 9 {
		return false
	}
	c := checker{b: b}
	return c.number() == OK && c.i == len(b)
}

// AppendUnescaped appends what stands between the quotes of a valid string. Half
// of a surrogate pair becomes Replacement, as in encoding/json.
func AppendUnescaped(dst, s []byte) []byte {
	start := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			// Bytes beyond ASCII are flagged too and passed one by one.
			m := Special(binary.LittleEndian.Uint64(s[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		if s[i] != '\\' {
			i++
			continue
		}
		var n int
		dst = append(dst, s[start:i]...)
		dst, n = appendEscaped(dst, s[i:])
		i += n
		start = i
	}
	return append(dst, s[start:]...)
}

// AppendContent is SkipString and AppendUnescaped in one pass: it checks the string
// whose opening quote is b[i] and appends its content. With a problem, what it has
// appended is of no use.
func AppendContent(dst, b []byte, i int) (out []byte, end int, p Problem) {
	i++
	start := i
	for {
		for i+8 <= len(b) {
			m := Special(binary.LittleEndian.Uint64(b[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			return dst, len(b), UnexpectedEnd
		}
		switch x := b[i]; {
		case x == '"':
			return append(dst, b[start:i]...), i + 1, OK
		case x == '\\':
			dst = append(dst, b[start:i]...)
			if i+1 < len(b) && (b[i+1] == '"' || b[i+1] == '\\') {
				// The second character stands for itself.
				start = i + 1
				i += 2
				continue
			}
			if escapeLen(b[i:]) == 0 {
				return dst, i, BadEscape
			}
			var n int
			dst, n = appendEscaped(dst, b[i:])
			i += n
			start = i
		case x < 0x20:
			return dst, i, ControlInString
		case x >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return dst, i, NotUTF8
			}
			i += n
		default:
			i++
		}
	}
}

// appendEscaped appends what the valid escape at the beginning of s stands for; n
// is its length, or that of the pair of escapes that one rune takes.
func appendEscaped(dst, s []byte) (out []byte, n int) {
	x := s[1]
	switch x {
	case 'b':
		x = '\b'
	case 'f':
		x = '\f'
	case 'n':
		x = '\n'
	case 'r':
		x = '\r'
	case 't':
		x = '\t'
	case 'u':
		r, n := hex4(s[2:]), 6
		if utf16.IsSurrogate(r) {
			low := rune(-1)
			if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' && escapeLen(s[6:]) == 6 {
				low = hex4(s[8:])
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				n = 12
			}
		}
		return utf8.AppendRune(dst, r), n
	}
	return append(dst, x), 2
}

// hex4 reads four hexadecimal digits.
func hex4(s []byte) (r rune) {
	for _, x := range s[:4] {
		switch {
		case x <= '9':
			x -= '0'
		case x <= 'F':
			x -= 'A' - 10
		default:
			x -= 'a' - 10
		}
		r = r<<4 | rune(x)
	}
	return r
}
