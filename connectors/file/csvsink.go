package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/jsontext"
)

// csvEncoder writes JSON objects as csv records (RFC 4180, line feeds), one pass
// over the payload. The columns are those of csv.columns or of the header that the
// file has already, otherwise the fields of the first record in their order; they
// are never sorted and never guessed.
type csvEncoder struct {
	sep, quote byte
	// special bytes inside a JSON string may need something done about them.
	special [256]bool
	flatten bool
	strict  bool // on_mismatch: fail
	header  bool // a header is written
	given   []string
	log     *slog.Logger
	warned  bool // of a field without a column

	columns []string
	index   map[string]int
	headed  bool

	// While one record is written: where it goes, how each value is found its
	// place, and the columns that have theirs.
	out    []byte
	mode   csvMode
	next   int
	path   []byte // of the object whose fields are read, each name with a dot behind it
	values []byte
	at     []span
	text   []byte
	name   []byte
}

type csvMode uint8

const (
	// inOrder: the fields come in the order of the columns and are written at once.
	inOrder csvMode = iota
	// byName: they are gathered first.
	byName
	// discover: their names become the columns.
	discover
)

type span struct{ from, to int }

// maxFlatten is how deep csv.nested: flatten goes; what is deeper stays JSON.
const maxFlatten = 32

func newCSVEncoder(cfg *CSVConfig, claim connectors.Claim) (*csvEncoder, error) {
	sep, err := cfg.separator()
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("csv.separator: %w", err), "")
	}
	quote, err := cfg.quote()
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("csv.quote: %w", err), "")
	}
	e := &csvEncoder{
		sep: sep, quote: quote, flatten: cfg.Nested == "flatten", strict: cfg.OnMismatch == "fail",
		header: cfg.Header, given: cfg.Columns, log: claim.Log,
	}
	e.special['\\'], e.special[sep], e.special[quote] = true, true, true
	e.startFile()
	return e, nil
}

// startFile begins a file that is empty.
func (e *csvEncoder) startFile() {
	e.headed = !e.header
	e.setColumns(e.given)
}

// goOn continues a file with a header of its own.
func (e *csvEncoder) goOn(columns []string) {
	e.headed = true
	e.setColumns(columns)
}

func (e *csvEncoder) setColumns(names []string) {
	e.columns, e.at = append(e.columns[:0], names...), make([]span, len(names))
	e.index = make(map[string]int, len(names))
	for i, n := range names {
		if _, twice := e.index[n]; !twice {
			e.index[n] = i
		}
	}
}

// fingerprint stands for the columns and how they are written; "" while they are
// not known.
func (e *csvEncoder) fingerprint() string {
	if len(e.columns) == 0 {
		return ""
	}
	h := fnv.New64a()
	h.Write([]byte{e.sep, e.quote})
	for _, c := range e.columns {
		h.Write([]byte(c))
		h.Write([]byte{0})
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

var errNoObject = errors.New("not a JSON object, and csv needs its fields: decode the payload first, or use another format")

// append writes one record, and the header before the first one. An error refuses
// the record; dst is then as long as it was.
func (e *csvEncoder) append(dst, p []byte) ([]byte, error) {
	at := len(dst)
	if len(e.columns) == 0 {
		if err := e.scan(p, discover); err != nil {
			e.setColumns(nil)
			return dst, err
		}
		if len(e.columns) == 0 {
			return dst, errors.New("the first record has no fields, so that there is no column (csv.columns names them)")
		}
	}
	headed := e.headed
	e.out = dst
	if !headed {
		for i, c := range e.columns {
			if i > 0 {
				e.out = append(e.out, e.sep)
			}
			if i == 0 && strings.HasPrefix(c, string(bom)) {
				e.out = e.appendQuoted(e.out, []byte(c)) // or it would be the file's
				continue
			}
			e.out = e.appendField(e.out, []byte(c))
		}
		e.endRow(at)
		e.headed = true
	}
	row := len(e.out)
	var err error
	if row-at > maxHeader {
		err = fmt.Errorf("a header of its %d fields would have %d bytes, and %d is the most", len(e.columns), row-at, maxHeader)
	} else {
		err = e.scan(p, inOrder)
	}
	switch {
	case err == errOrder:
		e.out = e.out[:row]
		err = e.gathered(p)
	case err == nil && e.next < len(e.columns):
		for i := max(e.next, 1); i < len(e.columns); i++ {
			e.out = append(e.out, e.sep)
		}
	}
	if err == nil {
		e.endRow(row)
		dst, e.out = e.out, nil
		return dst, nil
	}
	dst, e.out = e.out[:at], nil
	if e.headed = headed; !headed && len(e.given) == 0 {
		e.setColumns(nil)
	}
	return dst, err
}

// endRow ends the row that began at from. A row of nothing would be a blank line,
// which readers skip.
func (e *csvEncoder) endRow(from int) {
	if len(e.out) == from {
		e.out = append(e.out, e.quote, e.quote)
	}
	e.out = append(e.out, '\n')
}

// gathered writes a record whose fields are not in the order of the columns.
func (e *csvEncoder) gathered(p []byte) error {
	e.values = e.values[:0]
	clear(e.at)
	if err := e.scan(p, byName); err != nil {
		return err
	}
	if e.next == 0 {
		return errors.New("none of its fields has a column in the file: is it a record for this file?")
	}
	for i, s := range e.at {
		if i > 0 {
			e.out = append(e.out, e.sep)
		}
		e.out = append(e.out, e.values[s.from:s.to]...)
	}
	return nil
}

// errOrder: the record has to be gathered.
var errOrder = errors.New("fields in another order")

func (e *csvEncoder) scan(p []byte, mode csvMode) error {
	e.mode, e.next, e.path = mode, 0, e.path[:0]
	i := jsontext.SkipSpace(p, 0)
	if i == len(p) || p[i] != '{' {
		return errNoObject
	}
	i, err := e.object(p, i, 1)
	if err != nil {
		return err
	}
	if i = jsontext.SkipSpace(p, i); i != len(p) {
		return problemAt(i, jsontext.TrailingBytes)
	}
	return nil
}

func problemAt(i int, p jsontext.Problem) error {
	return fmt.Errorf("not a JSON object: %v at byte %d", p, i)
}

// object reads the fields of the object that begins at p[i].
func (e *csvEncoder) object(p []byte, i, depth int) (int, error) {
	if i = jsontext.SkipSpace(p, i+1); i < len(p) && p[i] == '}' {
		return i + 1, nil
	}
	for {
		if i == len(p) {
			return i, problemAt(i, jsontext.UnexpectedEnd)
		}
		if p[i] != '"' {
			return i, problemAt(i, jsontext.UnexpectedByte)
		}
		end, problem := jsontext.SkipString(p, i)
		if problem != jsontext.OK {
			return end, problemAt(end, problem)
		}
		name := p[i+1 : end-1]
		if i = jsontext.SkipSpace(p, end); i == len(p) || p[i] != ':' {
			return i, problemAt(i, jsontext.UnexpectedByte)
		}
		i = jsontext.SkipSpace(p, i+1)
		if i == len(p) {
			return i, problemAt(i, jsontext.UnexpectedEnd)
		}
		if len(e.path) > 0 || bytes.IndexByte(name, '\\') >= 0 {
			e.name = append(e.name[:0], e.path...)
			e.name = jsontext.AppendUnescaped(e.name, name)
			name = e.name
		}
		var err error
		if e.nested(p, i, depth) {
			// name begins with e.path, whose end is restored below.
			before := len(e.path)
			e.path = append(append(e.path[:0], name...), '.')
			i, err = e.object(p, i, depth+1)
			e.path = e.path[:before]
		} else {
			start := i
			if i, problem = jsontext.Skip(p, i); problem != jsontext.OK {
				return i, problemAt(i, problem)
			}
			err = e.field(name, p[start:i])
		}
		if err != nil {
			return i, err
		}
		if i = jsontext.SkipSpace(p, i); i == len(p) {
			return i, problemAt(i, jsontext.UnexpectedEnd)
		}
		switch p[i] {
		case '}':
			return i + 1, nil
		case ',':
			i = jsontext.SkipSpace(p, i+1)
		default:
			return i, problemAt(i, jsontext.UnexpectedByte)
		}
	}
}

// nested reports whether the value at p[i] is an object whose fields are columns.
func (e *csvEncoder) nested(p []byte, i, depth int) bool {
	if !e.flatten || p[i] != '{' || depth == maxFlatten {
		return false
	}
	i = jsontext.SkipSpace(p, i+1)
	return i == len(p) || p[i] != '}' // {} has no fields: it is a value
}

// field takes one value, which is valid.
func (e *csvEncoder) field(name, v []byte) error {
	switch e.mode {
	case inOrder:
		if e.next == len(e.columns) || string(name) != e.columns[e.next] {
			return errOrder
		}
		if e.next > 0 {
			e.out = append(e.out, e.sep)
		}
		e.next++
		e.out = e.appendValue(e.out, v)
	case byName:
		i, ok := e.index[string(name)]
		if !ok {
			return e.mismatch(name, v)
		}
		e.next++
		from := len(e.values)
		e.values = e.appendValue(e.values, v)
		e.at[i] = span{from, len(e.values)} // of fields of one name the last one counts
	case discover:
		if _, twice := e.index[string(name)]; !twice && !e.emptyObject(v) {
			e.index[string(name)] = len(e.columns)
			e.columns = append(e.columns, string(name))
			e.at = append(e.at, span{})
		}
	}
	return nil
}

// emptyObject: flattened, it has no column, and nothing is lost without one.
func (e *csvEncoder) emptyObject(v []byte) bool {
	return e.flatten && v[0] == '{' && v[jsontext.SkipSpace(v, 1)] == '}'
}

func (e *csvEncoder) mismatch(name, v []byte) error {
	switch {
	case e.emptyObject(v):
	case e.strict:
		return fmt.Errorf("field %q has no column in the file (csv.on_mismatch: fail)", name)
	case !e.warned:
		e.warned = true
		if e.log != nil {
			e.log.Warn("a record has a field without a column in the file, which is left out; this is said once", "field", string(name))
		}
	}
	return nil
}

// appendValue appends a valid JSON value as a csv field: strings without their
// escapes, null as nothing, arrays and objects as compact JSON.
func (e *csvEncoder) appendValue(dst, v []byte) []byte {
	switch v[0] {
	case 'n':
		return dst
	case '"':
		return e.appendString(dst, v[1:len(v)-1])
	case '{', '[':
		e.text = appendCompact(e.text[:0], v)
		return e.appendField(dst, e.text)
	}
	return e.appendField(dst, v)
}

// appendString appends what stands between the quotes of a JSON string, in one
// pass: escapes are undone and quotes doubled at once.
func (e *csvEncoder) appendString(dst, s []byte) []byte {
	i := 0
	for i < len(s) && !e.special[s[i]] {
		i++
	}
	if i == len(s) {
		return append(dst, s...)
	}
	at, need := len(dst), false
	dst = append(dst, e.quote)
	start := 0
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case !e.special[c]:
		case c == '\\':
			dst = append(dst, s[start:i]...)
			if x := s[i+1]; x != 'u' {
				if c := unescaped(x); c == e.quote {
					need = true
					dst = append(dst, c, c)
				} else {
					need = need || c == '\n' || c == '\r' || c == e.sep
					dst = append(dst, c)
				}
				i++
				start = i + 1
				continue
			}
			n := 6
			if surrogate(s[i+2:], '8', 'b') && i+12 <= len(s) && s[i+6] == '\\' && s[i+7] == 'u' && surrogate(s[i+8:], 'c', 'f') {
				n = 12 // two halves of one character
			}
			e.text = jsontext.AppendUnescaped(e.text[:0], s[i:i+n])
			for _, c := range e.text {
				need = need || e.special[c] && c != '\\' || c == '\n' || c == '\r'
				if dst = append(dst, c); c == e.quote {
					dst = append(dst, c)
				}
			}
			i += n - 1
			start = i + 1
		default: // the separator, or a quote that is none to JSON
			need = true
			dst = append(dst, s[start:i+1]...)
			if start = i + 1; c == e.quote {
				dst = append(dst, c)
			}
		}
	}
	dst = append(dst, s[start:]...)
	if need {
		return append(dst, e.quote)
	}
	copy(dst[at:], dst[at+1:])
	return dst[:len(dst)-1]
}

// unescaped is the character of a one-letter escape.
func unescaped(x byte) byte {
	switch x {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	}
	return x
}

// surrogate reports whether hex digits begin with d and then one of low to high.
func surrogate(s []byte, low, high byte) bool {
	return s[0]|0x20 == 'd' && s[1]|0x20 >= low|0x20 && s[1]|0x20 <= high
}

// appendField appends a field, in quotes if it needs them.
func (e *csvEncoder) appendField(dst, s []byte) []byte {
	for _, c := range s {
		if c == e.sep || c == e.quote || c == '\n' || c == '\r' {
			return e.appendQuoted(dst, s)
		}
	}
	return append(dst, s...)
}

func (e *csvEncoder) appendQuoted(dst, s []byte) []byte {
	dst = append(dst, e.quote)
	start := 0
	for i, c := range s {
		if c == e.quote {
			dst = append(append(dst, s[start:i+1]...), c)
			start = i + 1
		}
	}
	return append(append(dst, s[start:]...), e.quote)
}

// appendCompact appends a valid JSON value without white space between its tokens.
func appendCompact(dst, v []byte) []byte {
	for i := 0; i < len(v); {
		switch c := v[i]; c {
		case '"':
			end, _ := jsontext.SkipString(v, i)
			dst = append(dst, v[i:end]...)
			i = end
		case ' ', '\t', '\r', '\n':
			i++
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}
