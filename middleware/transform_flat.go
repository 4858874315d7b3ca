package middleware

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mqbridge/mqb/jsontext"
)

// flatSchema is the compiled form of the schemas that most routes have: one
// object whose fields have types, and nothing that would need a value in memory.
// It checks and types a record in one pass over its text: what is right as it
// stands is copied in long runs, only values that change are written anew, and
// numbers are never anything but text. Whatever it cannot express is left to
// treeSchema, which gives the same results. Immutable; its flatState is not.
type flatSchema struct {
	options coercion
	fields  []flatField
	byName  map[string]int
	// closed: fields that are not declared are refused.
	closed bool
}

// coercion is what a schema stage may change.
type coercion struct {
	coerce, defaults, emptyAsNull bool
}

type flatField struct {
	name     string
	want     kinds
	content  bool // a string that holds JSON, to be decoded
	required bool
	// insert is `"name":default`, nil without one.
	insert []byte
}

// schemaDraft is what a schema is taken for that does not say what it is.
const schemaDraft = "https://json-schema.org/draft/2020-12/schema"

// annotations are keywords that check nothing.
var annotations = []string{"$id", "$comment", "title", "description", "examples", "deprecated", "readOnly", "writeOnly"}

// compileFlat compiles a schema if it is of the simple kind. schema is decoded
// JSON that the library has accepted.
func compileFlat(schema any, o coercion) (*flatSchema, bool) {
	m, ok := schema.(map[string]any)
	if !ok || m["type"] != "object" {
		return nil, false
	}
	s := &flatSchema{options: o, byName: map[string]int{}}
	properties, _ := m["properties"].(map[string]any)
	for _, name := range sortedNames(properties) {
		f, ok := compileFlatField(name, properties[name], o)
		if !ok {
			return nil, false
		}
		s.byName[name] = len(s.fields)
		s.fields = append(s.fields, f)
	}
	required, _ := m["required"].([]any)
	for _, r := range required {
		name, _ := r.(string)
		at, ok := s.byName[name]
		if !ok {
			at = len(s.fields)
			s.byName[name] = at
			s.fields = append(s.fields, flatField{name: name})
			if m["additionalProperties"] == false {
				return nil, false // nothing can ever satisfy it: the library says so best
			}
		}
		s.fields[at].required = true
	}
	for key, v := range m {
		switch {
		case key == "type", key == "properties", key == "required", slices.Contains(annotations, key):
		case key == "$schema":
			// Older drafts know fewer keywords.
			if v != schemaDraft && v != "https://json-schema.org/draft/2019-09/schema" && v != "http://json-schema.org/draft-07/schema#" {
				return nil, false
			}
		case key == "additionalProperties":
			open, ok := v.(bool)
			if !ok {
				return nil, false
			}
			s.closed = !open
		default:
			return nil, false
		}
	}
	return s, true
}

func compileFlatField(name string, schema any, o coercion) (f flatField, ok bool) {
	f.name = name
	if schema == true {
		return f, true
	}
	m, ok := schema.(map[string]any)
	if !ok {
		return f, false
	}
	for key, v := range m {
		switch {
		case slices.Contains(annotations, key):
		case key == "type":
			types, list := v.([]any)
			if !list {
				types = []any{v}
			}
			for _, t := range types {
				f.want |= kindOf[t.(string)]
			}
		case key == "contentMediaType":
			if _, encoded := m["contentEncoding"]; encoded {
				return f, false
			}
			f.content = v == jsonContent && o.coerce
		case key == "default":
			if !o.defaults {
				continue
			}
			insert := jsontext.AppendString(nil, []byte(name))
			value, err := json.Marshal(v)
			if err != nil {
				return f, false
			}
			f.insert = append(append(insert, ':'), value...)
		default:
			return f, false
		}
	}
	if f.insert != nil {
		value := f.insert[len(jsontext.AppendString(nil, []byte(name)))+1:]
		if !f.want.allows(kindOfValue(value)) || f.content || o.emptyAsNull && string(value) == `""` {
			return f, false // it would have to be changed or refused like any other value
		}
	}
	return f, true
}

// flatState is what one worker needs to apply a flatSchema. Not safe for
// concurrent use.
type flatState struct {
	*flatSchema
	names names
	// seen[i] == record: field i stands in the record at hand.
	seen   []uint32
	record uint32
}

func newFlatState(s *flatSchema) *flatState {
	return &flatState{flatSchema: s, names: names{byName: s.byName}, seen: make([]uint32, len(s.fields))}
}

// apply appends the record src to dst as the schema wants it. After an error dst
// is undefined behind its old length.
func (s *flatState) apply(dst, src []byte) ([]byte, error) {
	i := jsontext.SkipSpace(src, 0)
	if i == len(src) || src[i] != '{' {
		return dst, notAnObject(src)
	}
	if s.record++; s.record == 0 { // once in four billion records
		clear(s.seen)
		s.record = 1
	}
	from, members := i, 0 // src[from:i] is yet to be copied
	i = jsontext.SkipSpace(src, i+1)
	if i < len(src) && src[i] == '}' {
		i++
	} else {
		for {
			at, value, p := s.names.read(src, i, members)
			if p != jsontext.OK {
				return dst, notJSON(p)
			}
			members++
			value = jsontext.SkipSpace(src, value)
			if at < 0 {
				if s.closed {
					return dst, &fieldError{s.names.at(src, i), "is not part of the schema"}
				}
				if i, p = skip(src, value); p != jsontext.OK {
					return dst, notJSON(p)
				}
			} else {
				if s.seen[at] == s.record {
					return dst, &fieldError{s.fields[at].name, "stands twice"}
				}
				s.seen[at] = s.record
				var err error
				if i, from, dst, err = s.value(dst, src, from, value, &s.fields[at]); err != nil {
					return dst, err
				}
			}
			if i = jsontext.SkipSpace(src, i); i == len(src) {
				return dst, notJSON(jsontext.UnexpectedEnd)
			}
			if src[i] == '}' {
				i++
				break
			}
			if src[i] != ',' {
				return dst, notJSON(jsontext.UnexpectedByte)
			}
			i = jsontext.SkipSpace(src, i+1)
		}
	}
	if jsontext.SkipSpace(src, i) != len(src) {
		return dst, notJSON(jsontext.TrailingBytes)
	}
	dst = append(dst, src[from:i-1]...)
	for at := range s.fields {
		f := &s.fields[at]
		if s.seen[at] == s.record {
			continue
		}
		if f.insert != nil {
			if members > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, f.insert...)
			members++
		} else if f.required {
			return dst, &fieldError{f.name, "is missing"}
		}
	}
	return append(dst, '}'), nil
}

// value checks and types the value at src[i]. from is where the part of src
// begins that is yet to be copied to dst.
func (s *flatState) value(dst, src []byte, from, i int, f *flatField) (end, newFrom int, out []byte, err error) {
	if i == len(src) {
		return i, from, dst, notJSON(jsontext.UnexpectedEnd)
	}
	if src[i] == '"' {
		return s.text(dst, src, from, i, f)
	}
	end, p := jsontext.Skip(src, i)
	if p != jsontext.OK {
		return end, from, dst, notJSON(p)
	}
	kind := kindOfValue(src[i:end])
	if f.want.allows(kind) {
		return end, from, dst, nil
	}
	if s.options.coerce && f.want&kindString != 0 && kind&(kindNumber|kindInteger|kindBoolean) != 0 {
		if f.content {
			return end, from, dst, nil // a string that holds this very JSON
		}
		dst = append(dst, src[from:i]...)
		dst = append(dst, '"')
		dst = append(dst, src[i:end]...)
		return end, end, append(dst, '"'), nil
	}
	return end, from, dst, wrongKind(f.name, src[i:end], f.want)
}

// text is value for a string.
func (s *flatState) text(dst, src []byte, from, i int, f *flatField) (end, newFrom int, out []byte, err error) {
	plain := f.want.allows(kindString)
	if !plain || f.content {
		return s.convert(dst, src, from, i, f)
	}
	end, p := jsontext.SkipString(src, i)
	if p != jsontext.OK {
		return end, from, dst, notJSON(p)
	}
	if s.options.emptyAsNull && end == i+2 && f.want&kindNull != 0 {
		dst = append(dst, src[from:i]...)
		return end, end, append(dst, "null"...), nil
	}
	return end, from, dst, nil
}

// convert is text where the string cannot stay one: what it holds is wanted, or
// another type.
func (s *flatState) convert(dst, src []byte, from, i int, f *flatField) (end, newFrom int, out []byte, err error) {
	// The content goes to where its value will stand: most of the time it is that.
	mark := len(dst)
	dst = append(dst, src[from:i]...)
	start := len(dst)
	dst, end, p := jsontext.AppendContent(dst, src, i)
	if p != jsontext.OK {
		return end, from, dst, notJSON(p)
	}
	content := dst[start:]
	switch {
	case s.options.emptyAsNull && len(content) == 0 && f.want&kindNull != 0:
		return end, end, append(dst, "null"...), nil
	case f.want.allows(kindString): // and f.content
		if !jsontext.Valid(content) {
			return end, from, dst, badContent(f.name)
		}
		return end, end, trim(dst, start), nil
	case s.options.coerce && coercible(content, f.want):
		return end, end, trim(dst, start), nil
	}
	return end, from, dst[:mark], wrongKind(f.name, src[i:end], f.want)
}

// trim removes white space around what stands behind dst[:start].
func trim(dst []byte, start int) []byte {
	if inner := bytes.TrimSpace(dst[start:]); len(inner) != len(dst)-start {
		dst = append(dst[:start], inner...)
	}
	return dst
}
