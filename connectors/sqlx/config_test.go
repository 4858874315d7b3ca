package sqlx_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/connectors/static"
	"github.com/mqbridge/mqb/route"
)

// The dialect's YAML as users have it, through the decoder.
func TestDecodedFromTheDialect(t *testing.T) {
	t.Parallel()
	types := connectors.NewRegistry([]connectors.Type{sqlx.Type(), static.Type()}, nil)
	decode := func(text string) (*route.Spec, error) { return route.DecodeRoute("r", text, types) }
	spec, err := decode(`
input: {static: "x"}
output:
  sqlx:
    url: postgres://u:p@h:5432/db
    table: t
    insert_query: INSERT INTO t (a, b) VALUES (${payload:a}, ${payload:b})
    bulk_copy: true
    max_connections: 3
    idle_timeout_ms: 1000
`)
	if err != nil {
		t.Fatal(err)
	}
	c := spec.Output.Config.(*sqlx.Config)
	if !c.BulkCopy || c.MaxConnections != 3 || c.IdleTimeout != time.Second || c.AcquireTimeout != 30*time.Second {
		t.Errorf("%+v", c)
	}
	for key, want := range map[string][]string{"id": {"id"}, "[id]": {"id"}, "[a, b]": {"a", "b"}} {
		spec, err := decode("input: {static: x}\noutput:\n  sqlx: {url: \"postgres://h/db\", table: t, columns: auto, key: " + key + "}\n")
		if err != nil {
			t.Fatalf("key: %s: %v", key, err)
		}
		if c := spec.Output.Config.(*sqlx.Config); c.Columns != "auto" || !slices.Equal(c.Key, want) {
			t.Errorf("key: %s is %q", key, c.Key)
		}
	}
	for text, want := range map[string]string{
		"input: {static: x}\noutput:\n  sqlx: {url: \"postgres://h/db\", table: t, columns: all}\n":                                            "columns",
		"input: {static: x}\noutput:\n  sqlx: {url: \"postgres://h/db\", table: t, lookup_query: x}\n":                                         "lookup_query: is not supported yet",
		"input: {static: x}\noutput:\n  sqlx: {url: \"postgres://h/db\", tabel: t}\n":                                                          "table",
		"input: {static: x}\noutput:\n  sqlx: {url: \"mysql://u:hunter2@h/db\", table: t}\n":                                                   "mysql is not supported yet",
		"input:\n  sqlx: {url: \"postgres://h/db\", table: t}\noutput: null\n":                                                                 "as an input is not supported yet",
		"input: {static: x}\noutput:\n  sqlx: {url: \"postgres://u:hunter2@h/db\", insert_query: \"INSERT INTO t VALUES ('${payload:a}')\"}\n": "r:3:58: route r: output.sqlx.insert_query: a token stands inside quotes",
	} {
		_, err := decode(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
