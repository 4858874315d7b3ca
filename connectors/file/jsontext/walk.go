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
	c := checker{b: b, i: i}
	p = c.str()
	return c.i, p
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
		dst = append(dst, s[start:i]...)
		x := s[i+1]
		i += 2
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
			r := hex4(s[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
					low = hex4(s[i+2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
			start = i
			continue
		}
		dst = append(dst, x)
		start = i
	}
	return append(dst, s[start:]...)
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
