package builtin_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
)

//go:generate go test . -run TestConfigurationPageIsCurrent -update

var update = flag.Bool("update", false, "write docs/configuration.md anew")

// The page is made from the types, so that it cannot say anything else than
// what the decoder does.
func TestConfigurationPageIsCurrent(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "configuration.md")
	want := route.Document(builtin.Registry())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Errorf("%s is not current (%v): run go generate ./connectors/builtin", page, err)
	}
}

// Every default and bound in a tag is one that its field takes; a mistake there
// panics when a route is decoded.
func TestDefaultsOfAllTypesDecode(t *testing.T) {
	r := builtin.Registry()
	for _, name := range r.EndpointNames() {
		e, _ := r.Endpoint(name)
		route.SetDefaults(e.NewConfig())
	}
	for _, name := range r.MiddlewareNames() {
		m, _ := r.Middleware(name)
		route.SetDefaults(m.NewConfig())
	}
}

// The example on the page runs as it stands.
func TestExampleOfTheConfigurationPageDecodes(t *testing.T) {
	_, rest, _ := strings.Cut(route.Document(builtin.Registry()), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no example")
	}
	if _, err := route.Decode("example.yaml", []byte(example), builtin.Registry(), route.Options{}); err != nil {
		t.Error(err)
	}
}
