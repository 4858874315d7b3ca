package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A schema_file is read by the nodes when the route starts. Where validate can see
// it, a mistake in it is found before that; where it cannot, nothing is wrong yet.
func TestAMalformedSchemaFileIsFoundByValidateAndNotByTheNodes(t *testing.T) {
	t.Parallel()
	schema := filepath.Join(t.TempDir(), "schema.yaml")
	file := write(t, "routes.yaml", fmt.Sprintf(`
routes:
  a: {input: {static: x, middlewares: [{transform: {schema_file: %s}}]}}
  b: {input: {static: x}, output: {memory: {topic: t}, middlewares: [{transform: {schema_file: %[1]s}}]}}
`, schema))
	if r := mqbctl(t, "", "validate", file); r.code != 0 || strings.Count(r.err, "warning: routes.yaml:") != 2 || !strings.Contains(r.err, schema+": no such file or directory on this machine") {
		t.Errorf("missing: %+v", r)
	}
	for text, says := range map[string]string{
		"type: object\nproperties:\n  a: {type: [integer\n":  schema + ":3:13: ",
		"{\"type\": \"object\",\n \"properties\":\n":         schema + ":2:",
		"type: object\nproperties:\n  a: {default: 01234}\n": schema + ":3:16: properties.a.default: ",
		"type: objekt\n": "/type",
		"type: object\nproperties: {a: {$ref: \"file:///x\"}}": "outside of the schema",
	} {
		if err := os.WriteFile(schema, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r := mqbctl(t, "", "validate", file)
		if r.code != 3 || strings.Count(r.err, "transform: schema_file: ") != 2 || !strings.Contains(r.err, says) || !strings.Contains(r.err, "routes.yaml:3:41: route a: ") {
			t.Errorf("%q: %+v", text, r)
		}
	}
	if err := os.WriteFile(schema, []byte("type: object\nproperties: {a: {type: integer}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := mqbctl(t, "", "validate", file); r.code != 0 || r.err != "" {
		t.Errorf("%+v", r)
	}
}
