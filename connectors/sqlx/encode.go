package sqlx

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// encoder writes messages as rows of one statement: lines of COPY's text format,
// or parameters as they stand in a Bind message (length and bytes; -1 is NULL).
type encoder struct {
	values
	columns  []column
	fields   *fields
	identity string // of ids made here
	letters  bool
}

// column is one value of a row.
type column struct {
	token *route.Token // nil: the whole payload
	name  string       // for people
	field int          // in encoder.fields; -1 if the token is looked up by itself
	typ   columnType
}

var (
	errNotJSON  = errors.New("payload is not valid JSON")
	errNoObject = errors.New("payload is no JSON object")
)

// checkJSON refuses a payload that is no JSON, which has to be UTF-8.
func checkJSON(payload []byte) error {
	at, problem := jsontext.Check(payload)
	if problem == jsontext.OK {
		return nil
	}
	return fmt.Errorf("%w: %s at byte %d", errNotJSON, problem, at)
}

// newEncoder makes an encoder; types are the column types, of the same order.
func newEncoder(s *statement, types []columnType, copy bool, identity string) *encoder {
	e := &encoder{values: values{copy: copy}, identity: identity, letters: s.letters, columns: make([]column, s.width())}
	var names []string
	for i := range e.columns {
		c := &e.columns[i]
		c.typ, c.field, c.name = types[i], -1, "payload"
		if s.tokens == nil {
			continue
		}
		switch s.tokens[i].Namespace {
		case wholeNamespace:
			continue
		case letterNamespace:
			c.token, c.name = &s.tokens[i], "metadata"
			continue
		}
		c.token = &s.tokens[i]
		c.name = c.token.Namespace + ":" + c.token.Selector
		if c.token.Namespace == "payload" && !strings.Contains(c.token.Selector, ".") {
			c.field = -1
			for j, n := range names {
				if n == c.token.Selector {
					c.field = j
				}
			}
			if c.field < 0 {
				c.field = len(names)
				names = append(names, c.token.Selector)
			}
		}
	}
	if len(names) > 0 {
		e.fields = newFields(names)
	}
	return e
}

// append appends the row of message i. On an error dst is returned as it was.
func (e *encoder) append(dst []byte, b *message.Batch, i int) ([]byte, rowKind, error) {
	start := len(dst)
	payload := b.Payload(i)
	if e.fields != nil {
		if err := checkJSON(payload); err != nil {
			return dst, 0, err
		}
		if !e.fields.scan(payload) {
			return dst, 0, errNoObject
		}
	}
	for n := range e.columns {
		c := &e.columns[n]
		if e.copy && n > 0 {
			dst = append(dst, '\t')
		}
		var err error
		switch {
		case c.token == nil:
			dst, err = e.appendBytes(dst, payload, c.typ)
		case c.field >= 0:
			dst, err = e.appendJSON(dst, e.fields.raw[c.field], c.typ)
		default:
			dst, err = e.appendToken(dst, c, b, i)
		}
		if err != nil {
			return dst[:start], 0, fmt.Errorf("%s %w", c.name, err)
		}
	}
	if e.copy {
		dst = append(dst, '\n')
	}
	return dst, textRow, nil
}

func (e *encoder) appendToken(dst []byte, c *column, b *message.Batch, i int) ([]byte, error) {
	switch c.token.Namespace {
	case letterNamespace:
		e.object = appendMetadata(e.object[:0], b, i)
		return e.appendBytes(dst, e.object, c.typ)
	case "metadata":
		v, ok := b.Meta(i, c.token.Selector)
		if !ok {
			return e.appendNull(dst), nil
		}
		if e.letters {
			v = storable(v)
		}
		return e.appendBytes(dst, v, c.typ)
	}
	if c.token.Namespace == "payload" && e.fields == nil && !jsontext.Valid(b.Payload(i)) {
		return dst, errNotJSON
	}
	v, ok := c.token.Value(b, i, e.identity)
	if !ok {
		return e.appendNull(dst), nil
	}
	s := v.Raw
	if v.Type == gjson.String {
		s = v.Str
	}
	e.object = append(e.object[:0], s...)
	if v.IsArray() && c.typ.elem != 0 {
		return e.appendJSON(dst, e.object, c.typ)
	}
	return e.appendBytes(dst, e.object, c.typ)
}
