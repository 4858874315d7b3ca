package middleware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func transformType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "transform",
			NewConfig: func() any { return new(TransformConfig) },
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true}
			},
			Input: true, Output: true,
		},
		New: func(config any, spec *route.Spec) (func() connectors.Middleware, error) {
			c := config.(*TransformConfig)
			schema, err := c.compileSchema()
			if err != nil {
				return nil, err
			}
			stop := spec.OnError == route.OnErrorStop
			return func() connectors.Middleware { return newTransform(c, schema, stop) }, nil
		},
	}
}

// The values of on_error.
const (
	transformReject      = "reject"
	transformPassThrough = "pass_through"
)

// TransformConfig configures transform.
type TransformConfig struct {
	Mapping    route.Ordered  `yaml:"mapping" doc:"The fields of the new payload, in order: each a template (a bare \"${payload:a.b}\", also written \"$.a.b\", keeps its type), a constant, a list or a mapping of more fields. What a template does not find is left out."`
	Expression string         `yaml:"expression" doc:"An expression that makes the new payload: {id: number(id), tier: attributes.tier ?? \"none\"}."`
	Schema     map[string]any `yaml:"schema" doc:"A JSON schema that the payload must meet. References may only point into the schema itself."`
	SchemaFile string         `yaml:"schema_file" doc:"A file with the schema, JSON or YAML, read whenever the route starts on a node; mqbctl validate checks it where it is. Changing it is no new generation of the route."`
	Coerce     bool           `yaml:"coerce" default:"true" doc:"Make values what the schema says where nothing is lost by it: text that is a number, true or false, an object or a list, and the other way round for text that a number or truth was given for. A string with contentMediaType application/json becomes the JSON it holds."`
	Defaults   bool           `yaml:"apply_defaults" default:"true" doc:"Add the fields that are absent and have a default in the schema."`
	EmptyNull  bool           `yaml:"coerce_empty_as_null" default:"false" doc:"An empty string becomes null where the schema's type allows null."`
	OnError    string         `yaml:"on_error" default:"reject" enum:"reject|pass_through" doc:"reject: the record cannot be handled, and the route's on_error decides. pass_through: it goes on as it came."`

	mapping    *mapping
	expression *route.Expression
}

// Summary implements route.Summarizer.
func (*TransformConfig) Summary() string {
	return "Makes a new payload of a JSON payload, in up to three steps: `mapping`, then `expression`, then `schema`; at least one of them is needed. Each record is taken or refused whole; the error names the field and what kind of value it has, never the value. Numbers keep their text in every step: no digit changes. The result is one line, also where the payload was not.\n\n" +
		"Fields, metadata and comparisons in `expression` follow the rules of `filter`; on top there are objects, lists, `condition ? a : b`, `a ?? b` (b where a is null or absent), and the functions `number string json len lower upper trim replace concat abs floor ceil round`, which give null for what they are not made for. A name that is no identifier is written `$env[\"a.b\"]`, or `a[\"b.c\"]` inside a field; in templates `${payload:a\\.b}`.\n\n" +
		"A `schema` of one object whose fields have a `type` (also a list of types), `contentMediaType: application/json` or a `default`, with `required` and `additionalProperties: true|false`, is applied in one pass over the text; any other schema needs the record in memory and is slower by an order of magnitude."
}

// Validate implements the decoder's check.
func (c *TransformConfig) Validate(route.Side) (errs []error) {
	fail := func(field string, err error) {
		if err == nil {
			return
		}
		if _, placed := err.(*route.ConfigError); !placed {
			err = &route.ConfigError{Field: field, Msg: err.Error()}
		}
		errs = append(errs, err)
	}
	if len(c.Mapping) == 0 && c.Expression == "" && len(c.Schema) == 0 && c.SchemaFile == "" {
		return []error{&route.ConfigError{Msg: "has nothing to do", Hint: "give it a mapping, an expression, a schema or a schema_file"}}
	}
	if len(c.Schema) > 0 && c.SchemaFile != "" {
		fail("schema_file", fmt.Errorf("stands beside schema; a transform has one schema"))
	}
	var err error
	if len(c.Mapping) > 0 {
		c.mapping, err = compileMapping(c.Mapping)
		fail("mapping", err)
	}
	if c.Expression != "" {
		c.expression, err = route.CompileExpression(c.Expression)
		fail("expression", err)
	}
	// The file may be there on the nodes alone; they read it when they start.
	if len(c.Schema) > 0 {
		_, err = c.compileSchema()
		fail("schema", err)
	}
	return errs
}

// schemaStage is a compiled schema; new makes what one worker applies.
type schemaStage struct {
	flat *flatSchema
	tree *treeSchema
}

// applier checks and types one record. Not safe for concurrent use.
type applier interface {
	apply(dst, src []byte) ([]byte, error)
}

// compileSchema returns nil if there is no schema.
func (c *TransformConfig) compileSchema() (*schemaStage, error) {
	switch {
	case len(c.Schema) > 0:
		text, err := json.Marshal(c.Schema)
		if err != nil {
			return nil, err
		}
		return c.compile(text)
	case c.SchemaFile != "":
		text, err := readSchema(c.SchemaFile)
		if err != nil {
			return nil, fmt.Errorf("schema_file: %w", err)
		}
		s, err := c.compile(text)
		if err != nil {
			return nil, fmt.Errorf("schema_file: %s: %w", c.SchemaFile, err)
		}
		return s, nil
	}
	return nil, nil
}

// CheckFiles implements route.FileChecker.
func (c *TransformConfig) CheckFiles() error {
	if c.SchemaFile == "" {
		return nil
	}
	_, err := c.compileSchema()
	return err
}

// readSchema reads a file of JSON or YAML, as JSON.
func readSchema(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil || jsontext.Valid(text) {
		return text, err
	}
	value, err := route.ReadYAML(path, text)
	if err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

func (c *TransformConfig) compile(schema []byte) (*schemaStage, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	o := coercion{coerce: c.Coerce, defaults: c.Defaults, emptyAsNull: c.EmptyNull}
	// The library has the last word on what is a schema, also of the simple ones.
	s := &schemaStage{}
	if s.tree, err = compileTree(doc, o); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if flat, ok := compileFlat(doc, o); ok {
		s.flat = flat
	}
	return s, nil
}

func (s *schemaStage) worker() applier {
	if s.flat != nil {
		return newFlatState(s.flat)
	}
	return s.tree
}

type transform struct {
	mapping     *mappingState // nil without one
	expression  *route.Expression
	schema      applier // nil without one
	passThrough bool
	stop        bool // of the route, as in filter

	spare        []byte // the second arena, see message.Batch.Rewrite
	mapped, made []byte // behind mapping, behind expression
}

func newTransform(c *TransformConfig, schema *schemaStage, stop bool) *transform {
	t := &transform{expression: c.expression, passThrough: c.OnError == transformPassThrough, stop: stop}
	if c.mapping != nil {
		t.mapping = newMappingState(c.mapping)
	}
	if schema != nil {
		t.schema = schema.worker()
	}
	return t
}

// Process gives each record its new payload. One that cannot be made keeps the
// old one, so that whoever takes it away sees what came; its neighbours are not
// touched by that.
func (t *transform) Process(_ context.Context, b *message.Batch) error {
	var bad *connectors.RowsError
	t.spare = b.Rewrite(t.spare, func(dst []byte, i int) []byte {
		mark := len(dst)
		if bad == nil || !t.stop {
			out, err := t.record(dst, b, i)
			if err == nil {
				return oneLine(out, mark)
			}
			dst = out[:mark]
			if !t.passThrough {
				if bad == nil {
					bad = &connectors.RowsError{}
				}
				bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: fmt.Errorf("transform: %w", err)})
			}
		}
		return append(dst, b.Payload(i)...)
	})
	if cap(t.spare) > maxSpare {
		t.spare = nil
	}
	if bad != nil {
		return bad
	}
	return nil
}

// oneLine takes line ends out of the JSON behind dst[:mark], where they can only
// be white space: what was one record is then one line in a file of lines.
func oneLine(dst []byte, mark int) []byte {
	if bytes.IndexByte(dst[mark:], '\n') < 0 {
		return dst
	}
	out := dst[:mark]
	for _, c := range dst[mark:] {
		if c != '\n' && c != '\r' {
			out = append(out, c)
		}
	}
	return out
}

// maxSpare bounds the arena that a worker keeps between batches; one that a huge
// record blew up is left to the collector.
const maxSpare = 4 << 20

// record appends the new payload of message i to dst. out keeps what dst held
// also after an error.
func (t *transform) record(dst []byte, b *message.Batch, i int) (out []byte, err error) {
	src := b.Payload(i)
	switch {
	case t.mapping != nil && t.expression == nil && t.schema == nil:
		return t.mapping.append(dst, b, i)
	case t.mapping != nil:
		if t.mapped, err = t.mapping.append(t.mapped[:0], b, i); err != nil {
			return dst, err
		}
		src = t.mapped
	case t.expression != nil && t.expression.UsesPayload():
		// Fields are cut out of the payload as they stand.
		if _, p := jsontext.Check(src); p != jsontext.OK || src[jsontext.SkipSpace(src, 0)] != '{' {
			return dst, notAnObject(src)
		}
	}
	if t.expression != nil {
		if t.schema == nil {
			return t.expression.Append(dst, src, b, i)
		}
		if t.made, err = t.expression.Append(t.made[:0], src, b, i); err != nil {
			return dst, err
		}
		src = t.made
	}
	return t.schema.apply(dst, src)
}

func (*transform) Close() error { return nil }

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
