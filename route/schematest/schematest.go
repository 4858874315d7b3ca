// Package schematest reads configurations by route.Schema, as an editor does.
package schematest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mqbridge/mqb/route"
)

// Validator returns the schema of types, compiled by a validator of another's making:
// what it gives says what is wrong with a text of YAML. Safe for concurrent use.
func Validator(t testing.TB, types route.Types) func(text string) error {
	t.Helper()
	text, err := json.Marshal(route.Schema(types))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mqb.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("mqb.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		b, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return err
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}
