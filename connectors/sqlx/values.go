package sqlx

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"

	"github.com/jackc/pgx/v5/pgtype"
)

// values writes single values, as fields of COPY's text format or as parameters
// of a Bind message. They are text, which the server types; bytea is the exception.
type values struct {
	copy bool

	text   []byte // scratch: the inside of a string
	array  []byte // scratch: an array's literal
	object []byte // scratch of the encoders
}

func (e *values) appendNull(dst []byte) []byte {
	if e.copy {
		return append(dst, '\\', 'N')
	}
	return append(dst, 0xff, 0xff, 0xff, 0xff)
}

// appendJSON appends a JSON value whose text was checked: the content of a
// string, nothing for null, an array as SQL writes it for a column of arrays, and
// the JSON itself for anything else.
func (e *values) appendJSON(dst, raw []byte, typ columnType) ([]byte, error) {
	switch {
	case raw == nil || raw[0] == 'n':
		return e.appendNull(dst), nil
	case raw[0] == '"':
		s := raw[1 : len(raw)-1]
		bytea := typ.oid == pgtype.ByteaOID
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
	case raw[0] == '[' && typ.elem != 0:
		var err error
		if e.array, err = e.appendArray(e.array[:0], raw, typ, 1); err != nil {
			return dst, err
		}
		return e.appendChecked(dst, e.array, false), nil
	}
	return e.appendChecked(dst, raw, typ.oid == pgtype.ByteaOID), nil
}

// appendBytes appends text or bytes that nobody has looked at.
func (e *values) appendBytes(dst, v []byte, typ columnType) ([]byte, error) {
	bytea := typ.oid == pgtype.ByteaOID
	if !bytea {
		if err := checkText(v); err != nil {
			return dst, err
		}
	}
	return e.appendChecked(dst, v, bytea), nil
}

func (e *values) appendChecked(dst, v []byte, bytea bool) []byte {
	switch {
	case !e.copy:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		return append(dst, v...)
	case bytea:
		return hex.AppendEncode(append(dst, `\\x`...), v)
	}
	return appendCopyText(dst, v)
}

// maxDimensions is how deep an array may be nested in PostgreSQL.
const maxDimensions = 6

var errDimensions = errors.New("is an array nested deeper than the 6 levels that PostgreSQL has")

// appendArray appends a valid JSON array in the syntax of SQL arrays: {1,"a",NULL}.
// Elements of a json or jsonb array stay JSON.
func (e *values) appendArray(dst, raw []byte, typ columnType, depth int) ([]byte, error) {
	if depth > maxDimensions {
		return dst, errDimensions
	}
	json := columnType{oid: typ.elem}.isJSON()
	dst = append(dst, '{')
	i := space(raw, 1)
	for n := 0; raw[i] != ']'; n++ {
		if n > 0 {
			dst = append(dst, ',')
			i = space(raw, i+1)
		}
		end := valueEnd(raw, i)
		v := raw[i:end]
		switch {
		case v[0] == 'n':
			dst = append(dst, "NULL"...)
		case v[0] == '[' && !json:
			var err error
			if dst, err = e.appendArray(dst, v, typ, depth+1); err != nil {
				return dst, err
			}
		case v[0] == '"' && !json:
			e.text = appendUnescaped(e.text[:0], v[1:len(v)-1])
			if bytes.IndexByte(e.text, 0) >= 0 {
				return dst, errNUL
			}
			dst = appendElement(dst, e.text)
		case v[0] == '"' || v[0] == '{' || v[0] == '[':
			dst = appendElement(dst, v)
		default:
			dst = append(dst, v...)
		}
		i = space(raw, end)
	}
	return append(dst, '}'), nil
}

func appendElement(dst, v []byte) []byte {
	dst = append(dst, '"')
	for _, c := range v {
		if c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
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
