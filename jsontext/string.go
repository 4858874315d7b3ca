// Package jsontext works on JSON as bytes where that happens once per record and
// therefore must not allocate: a string is written, a value is checked, an object
// is walked. encoding/json is the reference for all of it, and the fuzz tests
// compare with it.
package jsontext

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Eight bytes at a time: a word has the top bit of a lane set where the byte is
// of interest. Borrows can set lanes above a true hit, never below it, so only
// the lowest hit is looked at.
const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
	// Replacement is U+FFFD in UTF-8, what encoding/json reads for a byte that
	// is no UTF-8.
	Replacement = "\xef\xbf\xbd"
)

// The loops over words stand in each function that has one: taken out into a function,
// which is inlined, they cost SkipString and AppendContent 5 to 25 % (BenchmarkSkipStrings).

// Special returns a word whose lowest set bit, if any, lies in the lane of the
// first byte that cannot be copied into a JSON string as it stands: a control
// character, a quote, a backslash, or the start of a non-ASCII sequence.
func Special(w uint64) uint64 {
	q := w ^ ones*'"'
	b := w ^ ones*'\\'
	return ((w-ones*0x20)&^w | (q-ones)&^q | (b-ones)&^b | w) & tops
}

// AppendString appends s to dst as a JSON string in its quotes. Bytes that are
// no UTF-8 become U+FFFD each, as encoding/json has it; nothing else is changed:
// <, > and & stay readable.
func AppendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	dst = AppendEscaped(dst, s)
	return append(dst, '"')
}

// AppendEscaped is AppendString without the quotes.
func AppendEscaped(dst, s []byte) []byte {
	start := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			m := Special(binary.LittleEndian.Uint64(s[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, Replacement...)
				start = i + 1
			}
			i += n
		case c < 0x20 || c == '"' || c == '\\':
			dst = append(dst, s[start:i]...)
			dst = AppendEscape(dst, c)
			i++
			start = i
		default:
			i++
		}
	}
	return append(dst, s[start:]...)
}

// AppendEscape appends the escape of one byte that needs one.
func AppendEscape(dst []byte, c byte) []byte {
	e := &escapes[c]
	return append(dst, e.text[:e.n]...)
}

// Escape is the escape sequence of a byte below 0x20, a quote or a backslash,
// padded to a word so that it can be stored at once.
func Escape(c byte) (word uint64, n int) {
	e := &escapes[c]
	return binary.LittleEndian.Uint64(e.text[:]), e.n
}

type escape struct {
	text [8]byte
	n    int
}

var escapes = func() (t [256]escape) {
	const hex = "0123456789abcdef"
	set := func(c byte, s string) { t[c].n = copy(t[c].text[:], s) }
	for c := range byte(0x20) {
		set(c, `\u00`+string([]byte{hex[c>>4], hex[c&15]}))
	}
	set('\b', `\b`)
	set('\f', `\f`)
	set('\n', `\n`)
	set('\r', `\r`)
	set('\t', `\t`)
	set('"', `\"`)
	set('\\', `\\`)
	return t
}()
