// Package csvjson turns CSV records into JSON objects in one pass: each byte is
// looked at once, on its way from the input block to the output. Values stay
// strings; the names of the columns are escaped once per file. Nothing is
// allocated per record.
//
// What a record is follows encoding/csv (RFC 4180) without its lazy mode: a
// field that begins with the quote ends at the next single quote, may contain
// separators and line ends, and holds a doubled quote for each quote; a quote
// inside an unquoted field and text behind a closing quote are errors. Unlike
// encoding/csv a CRLF inside a quoted field is kept as it is. Bytes that are no
// UTF-8 become U+FFFD, each of them, as encoding/json has it.
package csvjson

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/mqbridge/mqb/jsontext"
)

// Status is what became of a record.
type Status uint8

const (
	// Record: a whole record was read and its object appended.
	Record Status = iota
	// Blank: an empty line was passed; nothing was appended.
	Blank
	// More: the input ends inside the record; nothing was appended.
	More
	// Count: a whole record was read, but it has not as many fields as there are
	// columns. The object was appended all the same: missing values are empty
	// strings, fields beyond the last column are left out.
	Count
	// BareQuote: a quote inside an unquoted field, at Result.N.
	BareQuote
	// AfterQuote: text behind a closing quote, at Result.N.
	AfterQuote
	// OpenQuote: the input ended inside a quoted field that began at Result.N
	// (only with final).
	OpenQuote
)

// Result describes one step of Next.
type Result struct {
	Status Status
	// N is the number of bytes the record took, its line end included; for
	// errors the offset of the offending byte.
	N int
	// Fields is the number of fields in the record.
	Fields int
}

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
	lows = tops - ones // all bits but the top ones
	word = 8
	// escape turns a quote into a backslash.
	escape = '"' ^ '\\'
)

// Scanner converts the records of one file. Once it has its columns, Next may be
// called by several goroutines at a time.
type Scanner struct {
	sep, quote byte
	// sepWord and quoteWord hold the byte in each lane.
	sepWord, quoteWord uint64
	keys               [][]byte // `{"id":"`, `","name":"`, …
	keyBytes           int
}

// New makes a scanner for a separator and a quote: two different ASCII bytes,
// neither a line end.
func New(sep, quote byte) (*Scanner, error) {
	for _, c := range []byte{sep, quote} {
		if c == '\n' || c == '\r' || c >= utf8.RuneSelf || c == 0 {
			return nil, fmt.Errorf("csv: %q cannot be a separator or a quote", c)
		}
	}
	if sep == quote {
		return nil, fmt.Errorf("csv: separator and quote are both %q", sep)
	}
	return &Scanner{sep: sep, quote: quote, sepWord: ones * uint64(sep), quoteWord: ones * uint64(quote)}, nil
}

// SetColumns gives the scanner the names of the columns. A name that was there
// already gets _2, the next one _3.
func (s *Scanner) SetColumns(names []string) {
	s.keys = make([][]byte, len(names))
	s.keyBytes = 0
	// seen: false for a name of the header, true once a column has it.
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		seen[n] = false
	}
	for i, n := range names {
		name := n
		for k, listed := 2, seen[n]; listed; k++ {
			name = n + "_" + strconv.Itoa(k)
			_, listed = seen[name]
		}
		seen[name] = true
		key := []byte(`","`)
		if i == 0 {
			key = []byte(`{"`)
		}
		key = jsontext.AppendEscaped(key, []byte(name))
		s.keys[i] = append(key, `":"`...)
		s.keyBytes += len(s.keys[i])
	}
}

// Columns is the number of columns.
func (s *Scanner) Columns() int { return len(s.keys) }

// Next reads the record at the beginning of src and appends its object and a
// '\n' to dst. final says that nothing follows src, so that its end ends a
// record. src must not be empty. dst is returned as it was, or grown, when
// nothing was appended.
func (s *Scanner) Next(dst, src []byte, final bool) ([]byte, Result) {
	if src[0] == '\n' {
		return dst, Result{Status: Blank, N: 1}
	}
	if src[0] == '\r' {
		switch {
		case len(src) > 1 && src[1] == '\n':
			return dst, Result{Status: Blank, N: 2}
		case len(src) == 1 && final:
			return dst, Result{Status: Blank, N: 1}
		case len(src) == 1:
			return dst, Result{Status: More}
		}
	}

	var (
		out    = dst[:cap(dst)]
		o      = len(dst)
		i      = 0
		kept   = -1 // end of the output when extra fields began
		fields = 0
		quoted bool
		end    bool
		std    = s.quote == '"'
	)
	for !end {
		if fields < len(s.keys) {
			key := s.keys[fields]
			if o+len(key)+word > len(out) {
				out = grow(out, o, len(key)+word)
			}
			o += copy(out[o:], key)
		} else if kept < 0 {
			kept = o
		}
		fields++

		quoted = i < len(src) && src[i] == s.quote
		start := i
		if quoted {
			i++
		}
		// The word that ends the run of plain bytes differs: only an unquoted
		// field ends at the separator. Inside quotes the separator's lanes are
		// those of the quote once more.
		stop := s.sepWord
		if quoted {
			stop = s.quoteWord
		}
	field:
		for {
			// Inside double quotes a doubled quote becomes an escaped one of the same
			// length, so that a word is patched and not taken apart.
			for std && quoted && i+word <= len(src) {
				if o+word > len(out) {
					out = grow(out, o, word)
				}
				w := binary.LittleEndian.Uint64(src[i:])
				// Exact, unlike Special: no lane is set above a true hit by its borrow.
				x := w ^ ones*'"'
				q := ^((x&lows + lows) | x | lows)
				b := w ^ ones*'\\'
				if m := ((w-ones*0x20)&^w | (b-ones)&^b | w) & tops; m != 0 {
					binary.LittleEndian.PutUint64(out[o:], w)
					k := bits.TrailingZeros64(m|q) >> 3
					i, o = i+k, o+k
					break
				}
				k := 64
				for q != 0 {
					k = bits.TrailingZeros64(q) &^ 7
					if q>>k&0x8000 == 0 {
						break
					}
					w ^= escape << k
					q &^= 0x8080 << k
					k = 64
				}
				binary.LittleEndian.PutUint64(out[o:], w)
				i, o = i+(k>>3), o+(k>>3)
				if k < 56 {
					break // the closing quote
				}
			}
			// Outside of them a field ends at the separator, mostly.
			for std && !quoted && i+word <= len(src) {
				if o+word > len(out) {
					out = grow(out, o, word)
				}
				w := binary.LittleEndian.Uint64(src[i:])
				binary.LittleEndian.PutUint64(out[o:], w)
				a := w ^ stop
				m := jsontext.Special(w) | (a-ones)&^a&tops
				if m == 0 {
					i, o = i+word, o+word
					continue
				}
				k := bits.TrailingZeros64(m) >> 3
				i, o = i+k, o+k
				if src[i] == s.sep {
					i++
					break field
				}
				break
			}
			for !std && i+word <= len(src) {
				if o+word > len(out) {
					out = grow(out, o, word)
				}
				w := binary.LittleEndian.Uint64(src[i:])
				binary.LittleEndian.PutUint64(out[o:], w)
				a, q := w^stop, w^s.quoteWord
				m := jsontext.Special(w) | ((a-ones)&^a|(q-ones)&^q)&tops
				if m != 0 {
					k := bits.TrailingZeros64(m) >> 3
					i, o = i+k, o+k
					break
				}
				i, o = i+word, o+word
			}
			if i >= len(src) {
				switch {
				case !final:
					return out[:len(dst)], Result{Status: More}
				case quoted:
					return out[:len(dst)], Result{Status: OpenQuote, N: start}
				}
				end = true
				break field
			}
			if o+word > len(out) {
				out = grow(out, o, word)
			}
			c := src[i]
			switch {
			case c == s.quote:
				if !quoted {
					return out[:len(dst)], Result{Status: BareQuote, N: i}
				}
				if i+1 == len(src) {
					if !final {
						return out[:len(dst)], Result{Status: More}
					}
					i, end = i+1, true
					break field
				}
				switch d := src[i+1]; {
				case d == s.quote:
					if d == '"' {
						out[o], out[o+1] = '\\', '"'
						o += 2
					} else {
						out[o] = d
						o++
					}
					i += 2
					continue
				case d == s.sep:
					i += 2
					break field
				case d == '\n':
					i, end = i+2, true
					break field
				case d == '\r' && i+2 == len(src):
					if !final {
						return out[:len(dst)], Result{Status: More}
					}
					i, end = i+2, true
					break field
				case d == '\r' && src[i+2] == '\n':
					i, end = i+3, true
					break field
				}
				return out[:len(dst)], Result{Status: AfterQuote, N: i + 1}
			case !quoted && c == s.sep:
				i++
				break field
			case !quoted && c == '\n':
				i, end = i+1, true
				break field
			case !quoted && c == '\r' && i+1 == len(src):
				if !final {
					return out[:len(dst)], Result{Status: More}
				}
				i, end = i+1, true
				break field
			case !quoted && c == '\r' && src[i+1] == '\n':
				i, end = i+2, true
				break field
			case c >= utf8.RuneSelf:
				r, n := utf8.DecodeRune(src[i:])
				if r == utf8.RuneError && n == 1 {
					o += copy(out[o:], jsontext.Replacement)
				} else {
					o += copy(out[o:], src[i:i+n])
				}
				i += n
			case c < 0x20 || c == '"' || c == '\\':
				w, n := jsontext.Escape(c)
				binary.LittleEndian.PutUint64(out[o:], w)
				i, o = i+1, o+n
			default:
				out[o] = c
				i, o = i+1, o+1
			}
		}
	}
	if kept >= 0 {
		o = kept
	}
	st := Record
	if fields != len(s.keys) {
		st = Count
		for _, key := range s.keys[min(fields, len(s.keys)):] {
			if o+len(key) > len(out) {
				out = grow(out, o, len(key))
			}
			o += copy(out[o:], key)
		}
	}
	if o+3 > len(out) {
		out = grow(out, o, 3)
	}
	o += copy(out[o:], "\"}\n")
	return out[:o], Result{Status: st, N: i, Fields: fields}
}

// grow makes room for n bytes behind out[:o].
func grow(out []byte, o, n int) []byte {
	bigger := make([]byte, max(len(out)+len(out)/4, o+n+256))
	copy(bigger, out[:o])
	return bigger
}

// Fields reads the record at the beginning of src as it stands, for the header.
func (s *Scanner) Fields(src []byte, final bool) ([]string, Result) {
	var names []string
	var value []byte
	for i := 0; ; {
		value = value[:0]
		quoted := i < len(src) && src[i] == s.quote
		start := i
		if quoted {
			i++
		}
		for {
			if i == len(src) {
				switch {
				case !final:
					return nil, Result{Status: More}
				case quoted:
					return nil, Result{Status: OpenQuote, N: start}
				}
				return append(names, valid(value)), Result{N: i, Fields: len(names) + 1}
			}
			c := src[i]
			i++
			if c == s.quote {
				if !quoted {
					return nil, Result{Status: BareQuote, N: i - 1}
				}
				if i < len(src) && src[i] == s.quote {
					value = append(value, c)
					i++
					continue
				}
				if i == len(src) && !final {
					return nil, Result{Status: More}
				}
				quoted = false
				if i == len(src) || src[i] == s.sep || src[i] == '\n' || src[i] == '\r' {
					continue
				}
				return nil, Result{Status: AfterQuote, N: i}
			}
			if quoted {
				value = append(value, c)
				continue
			}
			if c == '\r' && (i == len(src) || src[i] == '\n') {
				if i == len(src) && !final {
					return nil, Result{Status: More}
				}
				if i < len(src) {
					i++
				}
				c = '\n'
			}
			if c == '\n' {
				return append(names, valid(value)), Result{N: i, Fields: len(names) + 1}
			}
			if c == s.sep {
				names = append(names, valid(value))
				break
			}
			value = append(value, c)
		}
	}
}

func valid(b []byte) string { return string([]rune(string(b))) }
