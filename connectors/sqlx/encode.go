package sqlx

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// encoder writes messages as rows of one statement: lines of COPY's text format,
// or parameters as they stand in a Bind message (length and bytes; -1 is NULL).
// Values are text, which the server types; bytea is the exception.
type encoder struct {
	columns  []column
	fields   *fields
	copy     bool
	identity string // of ids made here

	text []byte // scratch
}

// column is one value of a row.
type column struct {
	token *route.Token // nil: the whole payload
	name  string       // for people
	field int          // in encoder.fields; -1 if the token is looked up by itself
	bytea bool
}

var errNotJSON = errors.New("payload is not valid JSON")

// newEncoder makes an encoder; types are the column types, of the same order.
func newEncoder(s *statement, types []uint32, copy bool, identity string) *encoder {
	e := &encoder{copy: copy, identity: identity, columns: make([]column, s.width())}
	var names []string
	for i := range e.columns {
		c := &e.columns[i]
		c.bytea, c.field, c.name = types[i] == pgtype.ByteaOID, -1, "payload"
		if s.tokens == nil {
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
func (e *encoder) append(dst []byte, b *message.Batch, i int) ([]byte, error) {
	start := len(dst)
	payload := b.Payload(i)
	object := false
	if e.fields != nil {
		if !gjson.ValidBytes(payload) {
			return dst, errNotJSON
		}
		if object = e.fields.scan(payload); !object {
			return dst, errors.New("payload is no JSON object")
		}
		if err := checkText(payload); err != nil {
			return dst, fmt.Errorf("payload %w", err)
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
			dst, err = e.appendBytes(dst, payload, c.bytea)
		case c.field >= 0:
			dst, err = e.appendJSON(dst, e.fields.raw[c.field], c.bytea)
		default:
			dst, err = e.appendToken(dst, c, b, i)
		}
		if err != nil {
			return dst[:start], fmt.Errorf("%s %w", c.name, err)
		}
	}
	if e.copy {
		dst = append(dst, '\n')
	}
	return dst, nil
}

func (e *encoder) appendToken(dst []byte, c *column, b *message.Batch, i int) ([]byte, error) {
	if c.token.Namespace == "metadata" {
		v, ok := b.Meta(i, c.token.Selector)
		if !ok {
			return e.appendNull(dst), nil
		}
		return e.appendBytes(dst, v, c.bytea)
	}
	if c.token.Namespace == "payload" && e.fields == nil && !gjson.ValidBytes(b.Payload(i)) {
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
	e.text = append(e.text[:0], s...)
	return e.appendBytes(dst, e.text, c.bytea)
}

func (e *encoder) appendNull(dst []byte) []byte {
	if e.copy {
		return append(dst, '\\', 'N')
	}
	return append(dst, 0xff, 0xff, 0xff, 0xff)
}

// appendJSON appends a JSON value whose text was checked: the content of a
// string, nothing for null, and the JSON itself for anything else.
func (e *encoder) appendJSON(dst, raw []byte, bytea bool) ([]byte, error) {
	switch {
	case raw == nil || raw[0] == 'n':
		return e.appendNull(dst), nil
	case raw[0] == '"':
		s := raw[1 : len(raw)-1]
		if bytes.IndexByte(s, '\\') < 0 {
			if e.copy && !bytea {
				return append(dst, s...), nil // valid JSON: no control characters either
			}
			return e.appendChecked(dst, s, bytea), nil
		}
		e.text = appendUnescaped(e.text[:0], s)
		if !bytea && bytes.IndexByte(e.text, 0) >= 0 {
			return dst, errNUL
		}
		return e.appendChecked(dst, e.text, bytea), nil
	}
	return e.appendChecked(dst, raw, bytea), nil
}

func (e *encoder) appendBytes(dst, v []byte, bytea bool) ([]byte, error) {
	if !bytea {
		if err := checkText(v); err != nil {
			return dst, err
		}
	}
	return e.appendChecked(dst, v, bytea), nil
}

func (e *encoder) appendChecked(dst, v []byte, bytea bool) []byte {
	switch {
	case !e.copy:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		return append(dst, v...)
	case bytea:
		return hex.AppendEncode(append(dst, `\\x`...), v)
	}
	return appendCopyText(dst, v)
}

// copyEscape is what stands behind the backslash for bytes that have a meaning
// in COPY's text format.
var copyEscape = [256]byte{'\\': '\\', '\n': 'n', '\r': 'r', '\t': 't'}

func appendCopyText(dst, v []byte) []byte {
	plain := 0
	for i, c := range v {
		if x := copyEscape[c]; x != 0 {
			dst = append(dst, v[plain:i]...)
			dst = append(dst, '\\', x)
			plain = i + 1
		}
	}
	return append(dst, v[plain:]...)
}
