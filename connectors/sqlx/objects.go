package sqlx

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/mqbridge/mqb/message"
)

// objects writes JSON objects as rows of a target, in COPY's binary format where
// all of a row can be written in it exactly, else in its text format. One pass
// checks the JSON, one finds the fields: messages of a route look alike, so a
// field is first looked for where the last object had it.
type objects struct {
	values
	target *target
	// ignore is told of the first field of each name that has no column.
	ignore func(name string)

	found  []extent // by column; zero: the object has no such field
	layout []place
	left   map[string]place // fields without a column
	rest   []byte           // the object for the extra column
	asText int              // this many rows to come are not tried in binary
}

// extent is a piece of the payload.
type extent struct{ from, to int }

// place is where fields of a name go.
type place struct {
	quoted string // the name as JSON
	column int    // -1: nowhere, or into the extra column
}

var errNoColumns = errors.New("payload has no field that has a column")

func newObjects(x *target, ignore func(string)) *objects {
	return &objects{
		values: values{copy: true}, target: x, ignore: ignore,
		found: make([]extent, len(x.columns)), left: map[string]place{},
	}
}

func (e *objects) append(dst []byte, b *message.Batch, i int) ([]byte, rowKind, error) {
	return e.appendRow(dst, b.Payload(i))
}

// appendRow appends the row of one payload. On an error dst is returned as it was.
func (e *objects) appendRow(dst, payload []byte) ([]byte, rowKind, error) {
	if err := checkJSON(payload); err != nil {
		return dst, 0, err
	}
	if !e.scan(payload) {
		return dst, 0, errNoObject
	}
	x := e.target
	for _, k := range x.key {
		if f := e.found[k]; f.to == 0 || payload[f.from] == 'n' {
			return dst, 0, fmt.Errorf("key %q is missing", x.columns[k].name)
		}
	}
	if len(e.rest) > 0 {
		e.rest = append(e.rest, '}')
		e.found[x.extra] = extent{0, len(payload)} // there is something for it
	}
	var kind rowKind
	for n, c := range x.defaults {
		if e.found[c].to == 0 {
			kind |= 1 << n
		}
	}
	if len(x.defaults) == len(x.columns) && kind == 1<<len(x.columns)-1 {
		return dst, 0, errNoColumns
	}
	if x.codecs != nil && e.asText == 0 {
		out, ok, err := e.appendBinary(dst, payload)
		if ok || err != nil {
			return out, kind, err
		}
		e.asText = rowsAsText
	}
	if e.asText > 0 {
		e.asText--
	}
	out, err := e.appendText(dst, payload)
	return out, kind | textRow, err
}

// rowsAsText is how many rows go as text from one on that has to: those after it
// tend to look like it, and each change of the form takes one more COPY.
const rowsAsText = 4096

// appendText appends the row whose fields were found in payload, in COPY's text
// form. On an error dst is returned as it was.
func (e *objects) appendText(dst, payload []byte) ([]byte, error) {
	start, x := len(dst), e.target
	next := 0 // in defaults
	for c := range x.columns {
		f := e.found[c]
		if next < len(x.defaults) && x.defaults[next] == c {
			next++
			if f.to == 0 {
				continue
			}
		}
		raw := payload[f.from:f.to]
		if c == x.extra {
			raw = e.rest
		}
		if len(raw) == 0 {
			raw = nil
		}
		var err error
		if dst, err = e.appendJSON(dst, raw, x.columns[c].typ); err != nil {
			return dst[:start], x.refuse(c, err)
		}
		dst = append(dst, '\t')
	}
	dst[len(dst)-1] = '\n'
	return dst, nil
}

// scan finds the fields of an object. p must be valid JSON; false means it is no
// object. Of a name that comes twice the last one counts.
func (e *objects) scan(p []byte) bool {
	clear(e.found)
	e.rest = e.rest[:0]
	i := space(p, 0)
	if p[i] != '{' {
		return false
	}
	i = space(p, i+1)
	for n := 0; p[i] != '}'; n++ {
		if p[i] == ',' {
			i = space(p, i+1)
		}
		from := i
		var column int
		if n < len(e.layout) && hasPrefix(p[i:], e.layout[n].quoted) {
			column = e.layout[n].column
			i += len(e.layout[n].quoted)
		} else {
			i = stringEnd(p, i)
			column = e.lookUp(n, p[from:i])
		}
		name := p[from:i]
		i = space(p, i)   // the colon
		i = space(p, i+1) // the value
		end := valueEnd(p, i)
		switch {
		case column >= 0:
			e.found[column] = extent{i, end}
		case e.target.extra >= 0:
			e.rest = append(append(append(append(e.rest, separator(e.rest)), name...), ':'), p[i:end]...)
		}
		i = space(p, end)
	}
	return true
}

func separator(rest []byte) byte {
	if len(rest) == 0 {
		return '{'
	}
	return ','
}

func hasPrefix(p []byte, s string) bool { return len(p) >= len(s) && string(p[:len(s)]) == s }

// maxLeft bounds the memory for names that have no column: they may be made up by
// whoever writes the messages.
const maxLeft = 1000

// lookUp finds the column of a name that is not at its usual place, and remembers
// this as its place.
func (e *objects) lookUp(n int, quoted []byte) (column int) {
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		// Rare enough to be found anew each time.
		e.text = appendUnescaped(e.text[:0], name)
		if c, ok := e.target.index[string(e.text)]; ok {
			return c
		}
		return -1
	}
	var at place
	if c, ok := e.target.index[string(name)]; ok {
		at = e.target.places[c]
	} else if at, ok = e.left[string(name)]; !ok {
		if len(e.left) == maxLeft {
			return -1
		}
		at = place{column: -1, quoted: string(quoted)}
		e.left[string(name)] = at
		if e.target.extra < 0 {
			e.ignore(string(name))
		}
	}
	if n < len(e.layout) {
		e.layout[n] = at
	} else if n == len(e.layout) {
		e.layout = append(e.layout, at)
	}
	return at.column
}
