package middleware

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/mqbridge/mqb/jsontext"
)

const jsonContent = "application/json"

// schemaURL names the schema of a route; it cannot be fetched from anywhere.
const schemaURL = "mqb:///schema.json"

// maxDigits bounds the digits of numbers that a schema compares, and their exponents,
// since comparing exactly costs as many: a number of a few million digits takes the
// library minutes, and where they are a fraction, it panics.
const maxDigits = 10_000

// treeSchema applies any JSON schema: the record becomes a tree whose scalars
// are still text, the schema's types and defaults are worked into it, and the
// library validates what came of it. Immutable and safe for concurrent use.
type treeSchema struct {
	options coercion
	schema  *jsonschema.Schema
}

// noLoader: a schema stands in the route as a whole. A reference to somewhere
// else would make what a route does depend on who can reach what.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is outside of the schema, which must be complete in itself", url)
}

// compileTree compiles schema, which is decoded JSON with numbers as json.Number.
func compileTree(schema any, o coercion) (*treeSchema, error) {
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if o.coerce {
		c.AssertContent()
		c.RegisterContentMediaType(&jsonschema.MediaType{
			Name: jsonContent,
			Validate: func(b []byte) error {
				if !jsontext.Valid(b) {
					return errors.New("no JSON")
				}
				return nil
			},
			UnmarshalJSON: func(b []byte) (any, error) { return jsonschema.UnmarshalJSON(bytes.NewReader(b)) },
		})
	}
	if err := c.AddResource(schemaURL, schema); err != nil {
		return nil, err
	}
	s, err := c.Compile(schemaURL)
	if err != nil {
		return nil, err
	}
	return &treeSchema{options: o, schema: s}, nil
}

// apply appends the record src to dst as the schema wants it.
func (s *treeSchema) apply(dst, src []byte) ([]byte, error) {
	if _, p := jsontext.Check(src); p != jsontext.OK {
		return dst, notJSON(p)
	}
	root, _ := parseTree(src, jsontext.SkipSpace(src, 0))
	if err := s.shape(s.schema, root, ""); err != nil {
		return dst, err
	}
	value, err := root.value("")
	if err != nil {
		return dst, err
	}
	if err := s.schema.Validate(value); err != nil {
		var v *jsonschema.ValidationError
		if errors.As(err, &v) {
			return dst, violation(v)
		}
		return dst, &fieldError{msg: "cannot be checked"}
	}
	if s.options.coerce {
		s.unpack(s.schema, root)
	}
	return root.append(dst), nil
}

// tree is a JSON value whose scalars are text.
type tree struct {
	raw     []byte // of a scalar, as written; '{' or '[' otherwise
	members []member
	items   []*tree
}

type member struct {
	name  string
	value *tree
}

// parseTree reads the value at b[i]; b has been checked.
func parseTree(b []byte, i int) (t *tree, end int) {
	t = &tree{raw: b[i : i+1]}
	switch b[i] {
	case '{':
		i = jsontext.SkipSpace(b, i+1)
		for b[i] != '}' {
			m := member{}
			end, _ = jsontext.SkipString(b, i)
			m.name = string(jsontext.AppendUnescaped(nil, b[i+1:end-1]))
			i = jsontext.SkipSpace(b, end) + 1 // the colon
			m.value, i = parseTree(b, jsontext.SkipSpace(b, i))
			t.members = append(t.members, m)
			if i = jsontext.SkipSpace(b, i); b[i] == ',' {
				i = jsontext.SkipSpace(b, i+1)
			}
		}
		return t, i + 1
	case '[':
		i = jsontext.SkipSpace(b, i+1)
		for b[i] != ']' {
			var item *tree
			item, i = parseTree(b, i)
			t.items = append(t.items, item)
			if i = jsontext.SkipSpace(b, i); b[i] == ',' {
				i = jsontext.SkipSpace(b, i+1)
			}
		}
		return t, i + 1
	}
	end, _ = jsontext.Skip(b, i)
	t.raw = b[i:end]
	return t, end
}

func (t *tree) append(dst []byte) []byte {
	switch t.raw[0] {
	case '{':
		dst = append(dst, '{')
		for i, m := range t.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(jsontext.AppendString(dst, []byte(m.name)), ':')
			dst = m.value.append(dst)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		for i, item := range t.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = item.append(dst)
		}
		return append(dst, ']')
	}
	return append(dst, t.raw...)
}

// text is the content of a string.
func (t *tree) text() []byte { return jsontext.AppendUnescaped(nil, t.raw[1:len(t.raw)-1]) }

// value is the tree in the form that the library validates.
func (t *tree) value(path string) (any, error) {
	switch t.raw[0] {
	case '{':
		m := make(map[string]any, len(t.members))
		for _, x := range t.members {
			v, err := x.value.value(join(path, x.name))
			if err != nil {
				return nil, err
			}
			m[x.name] = v
		}
		return m, nil
	case '[':
		l := make([]any, len(t.items))
		for i, x := range t.items {
			v, err := x.value(join(path, strconv.Itoa(i)))
			if err != nil {
				return nil, err
			}
			l[i] = v
		}
		return l, nil
	case '"':
		return string(t.text()), nil
	case 't', 'f':
		return t.raw[0] == 't', nil
	case 'n':
		return nil, nil
	}
	if len(t.raw) > maxDigits {
		return nil, &fieldError{path, "has too many digits to be compared"}
	}
	if i := bytes.IndexAny(t.raw, "eE"); i >= 0 {
		if e, err := strconv.Atoi(string(t.raw[i+1:])); err != nil || e > maxDigits || e < -maxDigits {
			return nil, &fieldError{path, "has an exponent too large to be compared"}
		}
	}
	return json.Number(t.raw), nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// parts are the schemas that hold for one value beyond doubt: s, and what it
// refers to or is made of. Those of anyOf, oneOf and if only validate.
func parts(s *jsonschema.Schema) []*jsonschema.Schema {
	all := []*jsonschema.Schema{s}
	for i := 0; i < len(all); i++ {
		for _, next := range append([]*jsonschema.Schema{all[i].Ref}, all[i].AllOf...) {
			if next != nil && !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

// shape gives t the types and defaults of s.
func (s *treeSchema) shape(schema *jsonschema.Schema, t *tree, path string) error {
	all := parts(schema)
	for _, p := range all {
		if p.Types != nil {
			s.coerce(p, t)
		}
	}
	switch t.raw[0] {
	case '{':
		return s.shapeObject(all, t, path)
	case '[':
		for i, item := range t.items {
			for _, p := range all {
				if next := itemSchema(p, i); next != nil {
					if err := s.shape(next, item, join(path, strconv.Itoa(i))); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (s *treeSchema) shapeObject(all []*jsonschema.Schema, t *tree, path string) error {
	for _, p := range all {
		for i, m := range t.members {
			_, declared := p.Properties[m.name]
			if declared = declared || slices.Contains(p.Required, m.name); declared && slices.ContainsFunc(t.members[:i], func(x member) bool { return x.name == m.name }) {
				return &fieldError{join(path, m.name), "stands twice"}
			}
		}
		if s.options.defaults {
			for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
				d := p.Properties[name].Default
				if d == nil || slices.ContainsFunc(t.members, func(x member) bool { return x.name == name }) {
					continue
				}
				text, err := json.Marshal(*d)
				if err != nil {
					return &fieldError{join(path, name), "has a default that cannot be written"}
				}
				value, _ := parseTree(text, 0)
				t.members = append(t.members, member{name, value})
			}
		}
		for _, m := range t.members {
			for _, next := range memberSchemas(p, m.name) {
				if err := s.shape(next, m.value, join(path, m.name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// memberSchemas are the schemas that p has for a member.
func memberSchemas(p *jsonschema.Schema, name string) (out []*jsonschema.Schema) {
	if x := p.Properties[name]; x != nil {
		out = append(out, x)
	}
	for re, x := range p.PatternProperties {
		if re.MatchString(name) {
			out = append(out, x)
		}
	}
	if x, ok := p.AdditionalProperties.(*jsonschema.Schema); ok && out == nil {
		out = append(out, x)
	}
	return out
}

func itemSchema(p *jsonschema.Schema, i int) *jsonschema.Schema {
	if i < len(p.PrefixItems) {
		return p.PrefixItems[i]
	}
	if p.Items2020 != nil {
		return p.Items2020
	}
	switch x := p.Items.(type) {
	case *jsonschema.Schema:
		return x
	case []*jsonschema.Schema:
		if i < len(x) {
			return x[i]
		}
	}
	return nil
}

// coerce makes t a value of a type that p allows, where nothing is lost by it.
// What it cannot make is left for the validation to refuse.
func (s *treeSchema) coerce(p *jsonschema.Schema, t *tree) {
	var want kinds
	for _, name := range p.Types.ToStrings() {
		want |= kindOf[name]
	}
	have := kindOfValue(t.raw)
	switch {
	case s.options.emptyAsNull && want&kindNull != 0 && string(t.raw) == `""`:
		t.raw = []byte("null")
	case want.allows(have) || !s.options.coerce:
	case have == kindString:
		if text := t.text(); coercible(text, want) {
			*t = *first(parseTree(text, jsontext.SkipSpace(text, 0)))
		}
	case want&kindString != 0 && have&(kindNumber|kindInteger|kindBoolean) != 0:
		t.raw = append(append([]byte{'"'}, t.raw...), '"')
	}
}

func first(t *tree, _ int) *tree { return t }

// unpack replaces strings that hold JSON by what they hold. The schema has
// validated them as strings.
func (s *treeSchema) unpack(schema *jsonschema.Schema, t *tree) {
	for _, p := range parts(schema) {
		switch {
		case t.raw[0] == '"' && p.ContentMediaType != nil && p.ContentMediaType.Name == jsonContent && p.ContentEncoding == nil:
			text := t.text()
			*t = *first(parseTree(text, jsontext.SkipSpace(text, 0)))
			return // what was inside has no schema
		case t.raw[0] == '{':
			for _, m := range t.members {
				for _, next := range memberSchemas(p, m.name) {
					s.unpack(next, m.value)
				}
			}
		case t.raw[0] == '[':
			for i, item := range t.items {
				if next := itemSchema(p, i); next != nil {
					s.unpack(next, item)
				}
			}
		}
	}
}

// violation turns the library's tree of errors into the first thing that is wrong,
// without the values that its own texts show (invariant 11).
func violation(v *jsonschema.ValidationError) error {
	for len(v.Causes) > 0 {
		// Of several the one that is deepest in the record says most.
		v = slices.MaxFunc(v.Causes, func(a, b *jsonschema.ValidationError) int {
			return cmp.Compare(len(a.InstanceLocation), len(b.InstanceLocation))
		})
	}
	field := strings.Join(v.InstanceLocation, ".")
	switch k := v.ErrorKind.(type) {
	case *kind.Type:
		return &fieldError{field, fmt.Sprintf("is of type %s, not %s", k.Got, strings.Join(k.Want, " or "))}
	case *kind.Required:
		return &fieldError{join(field, k.Missing[0]), "is missing"}
	case *kind.AdditionalProperties:
		return &fieldError{join(field, k.Properties[0]), "is not part of the schema"}
	case *kind.ContentMediaType:
		return &fieldError{field, "holds no JSON"}
	}
	return &fieldError{field, "does not meet the schema's " + strings.Join(v.ErrorKind.KeywordPath(), "/")}
}
