package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// definition is a decoded route with what follows from it.
type definition struct {
	Spec *route.Spec
	// YAML is the spec as the coordinator keeps it, secrets in the clear.
	YAML     string
	inferred route.Inference
	sink     route.SinkCapabilities
	// numbering are the middlewares that decide which ordinal a record gets.
	numbering []route.Middleware
}

// decode reads a file strictly and infers what its routes guarantee; a route
// that is weaker than it requires is an error here already (invariant 9).
func decode(registry *connectors.Registry, file []byte, name string, env route.LookupEnv, overrides []route.Override) ([]definition, []string, error) {
	f, err := route.Decode(cmp.Or(name, "routes.yaml"), file, registry, route.Options{LookupEnv: env, Overrides: overrides})
	if err != nil {
		return nil, nil, invalid(err)
	}
	out := make([]definition, 0, len(f.Routes))
	var problems []error
	for _, spec := range f.Routes {
		def := define(registry, spec)
		if err := def.inferred.Meets(spec.RequiredDelivery); err != nil {
			problems = append(problems, fmt.Errorf("%s: route %s: %w", spec.Input.Where, spec.Name, err))
		}
		out = append(out, def)
	}
	if len(problems) > 0 {
		return nil, nil, &Invalid{Problems: problems}
	}
	return out, f.Warnings, nil
}

func define(registry *connectors.Registry, spec *route.Spec) definition {
	def := definition{Spec: spec, YAML: spec.Normalized(), inferred: route.Infer(spec, registry)}
	if t, ok := registry.Endpoint(spec.Output.Type); ok && t.Sink != nil {
		def.sink = t.Sink(spec.Output.Config)
	}
	for _, m := range slices.Concat(spec.Input.Middlewares, spec.Output.Middlewares) {
		t, ok := registry.Middleware(m.Type)
		if !ok {
			continue
		}
		if shape := t.Capabilities(m.Config).Shape; shape == route.ShapeSplit || shape == route.ShapeHold {
			def.numbering = append(def.numbering, route.Middleware{Type: m.Type, Config: m.Config})
		}
	}
	return def
}

// stored decodes the spec of a route that is in the catalog.
func (c *Catalog) stored(name, text string) (definition, error) {
	spec, err := route.DecodeRoute(name, text, c.cfg.Registry)
	if err != nil {
		return definition{}, fmt.Errorf("the spec of route %s as it is stored: %w", name, invalid(err))
	}
	return define(c.cfg.Registry, spec), nil
}

// withExitOnEmpty sets the key in a normalized spec, whose own keys stand at the
// beginning of a line each.
func withExitOnEmpty(text string) string {
	const key = "exit_on_empty:"
	lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(l string) bool { return strings.HasPrefix(l, key) })
	return strings.Join(lines, "") + key + " true\n"
}

func invalid(err error) error {
	var list route.Errors
	if errors.As(err, &list) {
		return &Invalid{Problems: list.Unwrap()}
	}
	return &Invalid{Problems: []error{err}}
}

// breaks lists why a position under d means something else under next: another
// source, other numbers (a split numbers its children), another sink, another
// place for the record itself.
func (d definition) breaks(next definition) []string {
	var out []string
	if !d.sameEndpoint(next, route.Input) {
		out = append(out, "the input changed")
	}
	if d.Spec.SharedStorage != next.Spec.SharedStorage {
		out = append(out, "shared_storage changed, which names the partitions anew")
	}
	if !slices.EqualFunc(d.numbering, next.numbering, func(a, b route.Middleware) bool {
		return a.Type == b.Type && reflect.DeepEqual(a.Config, b.Config)
	}) {
		out = append(out, "the middlewares that split or hold records changed")
	}
	if !d.sameEndpoint(next, route.Output) {
		out = append(out, "the output changed")
	}
	if !d.sameStore(next) {
		out = append(out, "the place of its checkpoints changed")
	}
	return out
}

// sameStore reports whether the spec alone says that both keep their records in
// one place, as far as the route's own keys go.
func (d definition) sameStore(next definition) bool {
	return d.Spec.CheckpointStore == next.Spec.CheckpointStore && d.Spec.Commit == next.Spec.Commit
}

// sameEndpoint compares one side apart from its middlewares. Equal configs are
// equal; otherwise the texts decide, in which secrets are masked: a rotated
// password is the same system. Anything else counts as another one, since only
// the person who changed it knows better.
func (d definition) sameEndpoint(next definition, side route.Side) bool {
	a, b := d.Spec.Input, next.Spec.Input
	if side == route.Output {
		a, b = d.Spec.Output, next.Spec.Output
	}
	if a.Type != b.Type {
		return false
	}
	return reflect.DeepEqual(a.Config, b.Config) || reflect.DeepEqual(d.section(side), next.section(side))
}

// section is one side of the masked spec without its middlewares.
func (d definition) section(side route.Side) any {
	var spec map[string]any
	if err := yaml.Unmarshal([]byte(d.Spec.Masked()), &spec); err != nil {
		return err // never equal to another one
	}
	if m, ok := spec[string(side)].(map[string]any); ok {
		delete(m, "middlewares")
	}
	return spec[string(side)]
}
