package file

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// A route whose output is its own input reads what it writes, and the file grows
// until the disk is full.
func TestARouteThatReadsWhatItWritesIsRefused(t *testing.T) {
	t.Parallel()
	types := connectors.NewRegistry([]connectors.Type{Type()}, nil)
	for _, c := range []struct {
		in, out string
		parts   bool
		circle  bool
	}{
		{in: "a.csv", out: "a.csv", circle: true},
		{in: "a.csv", out: "./dir/../a.csv", circle: true},
		{in: "*.csv", out: "a.csv", circle: true},
		{in: "data/**", out: "data/out/x.jsonl", circle: true},
		{in: "data/*", out: "data", parts: true, circle: true},
		{in: "data/*.bin", out: "data", parts: true, circle: true},
		{in: "a-*.csv", out: "a-${partition}.csv", circle: true},
		{in: "*.csv", out: "a.jsonl"},
		{in: "data/*", out: "data/out/x.jsonl"},
		{in: "data/*.csv", out: "data", parts: true},
		{in: "*.csv", out: ".a.csv"},
		{in: "data/**/*.csv", out: "data/.done/a.csv"},
		{in: ".data/**/*.csv", out: ".data/a.csv", circle: true},
		{in: "data/**/.*.csv", out: "data/x/.a.csv", circle: true},
		{in: "-", out: "-"},
		{in: "a.csv", out: "a.csv.d", parts: true},
	} {
		text := fmt.Sprintf("routes:\n  r:\n    input: {file: {path: %q, format: raw}}\n    output: {file: {path: %q, format: raw", c.in, c.out)
		if c.parts {
			text += ", name_by: source_position"
		}
		_, err := route.Decode("r.yaml", []byte(text+"}}\n"), types, route.Options{})
		if got := err != nil && strings.Contains(err.Error(), "r.yaml:4:5: route r: output: the input would read what is written here"); got != c.circle {
			t.Errorf("%s to %s: %v", c.in, c.out, err)
		}
	}
}
