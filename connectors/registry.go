package connectors

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Env is what a connector may need beyond its own config.
type Env struct {
	// Node is the name of this node, for node locality.
	Node string
	// DataDir is this node's data directory ("" in tools that have none).
	DataDir string
	Budget  *message.Budget
}

// Type is an endpoint type with its constructors. New* get the pointer that
// NewConfig returned, decoded; they do not connect.
type Type struct {
	route.EndpointType
	NewSource func(config any, spec *route.Spec, env Env) (Source, error)
	NewSink   func(config any, spec *route.Spec, env Env) (Sink, error)
}

// Middleware changes batches in place. One value serves one partition run and
// one goroutine at a time.
type Middleware interface {
	// Process may drop messages (Batch.Keep), change payloads and metadata. An
	// error of class data names records by *RowsError; any other ends the run.
	// It may wait (limiter) as long as it heeds ctx.
	Process(ctx context.Context, b *message.Batch) error
	Close() error
}

// MiddlewareType is a middleware type with its constructor: New for a stage that
// batches pass, Ask for a rule of the write itself.
type MiddlewareType struct {
	route.MiddlewareType
	New func(config any, spec *route.Spec) (func() Middleware, error)
	// Ask adds to what is asked of the writer. It is called in the order in which
	// the output lists its middlewares, innermost first.
	Ask func(config any, s *Sending)
}

// Registry holds the types a binary was built with. Filled once, at start, then
// read only. It implements route.Types.
type Registry struct {
	endpoints   map[string]Type
	middlewares map[string]MiddlewareType
}

// NewRegistry makes a registry of the given types.
func NewRegistry(endpoints []Type, middlewares []MiddlewareType) *Registry {
	r := &Registry{endpoints: map[string]Type{}, middlewares: map[string]MiddlewareType{}}
	for _, t := range endpoints {
		if _, twice := r.endpoints[t.Name]; twice {
			panic(fmt.Sprintf("connectors: endpoint %q registered twice", t.Name))
		}
		r.endpoints[t.Name] = t
	}
	for _, t := range middlewares {
		if _, twice := r.middlewares[t.Name]; twice {
			panic(fmt.Sprintf("connectors: middleware %q registered twice", t.Name))
		}
		r.middlewares[t.Name] = t
	}
	return r
}

// Endpoint implements route.Types.
func (r *Registry) Endpoint(name string) (route.EndpointType, bool) {
	t, ok := r.endpoints[name]
	return t.EndpointType, ok
}

// Middleware implements route.Types.
func (r *Registry) Middleware(name string) (route.MiddlewareType, bool) {
	t, ok := r.middlewares[name]
	return t.MiddlewareType, ok
}

// EndpointNames implements route.Types.
func (r *Registry) EndpointNames() []string { return sortedKeys(r.endpoints) }

// MiddlewareNames implements route.Types.
func (r *Registry) MiddlewareNames() []string { return sortedKeys(r.middlewares) }

// Source builds the source of a route.
func (r *Registry) Source(spec *route.Spec, env Env) (Source, error) {
	t, ok := r.endpoints[spec.Input.Type]
	if !ok || t.NewSource == nil {
		return nil, Permanent(fmt.Errorf("route %s: %q cannot be an input", spec.Name, spec.Input.Type), "")
	}
	return t.NewSource(spec.Input.Config, spec, env)
}

// Sink builds the sink of a route.
func (r *Registry) Sink(spec *route.Spec, env Env) (Sink, error) {
	return r.SinkOf(spec.Output, spec, env)
}

// SinkOf builds a sink of an endpoint that stands elsewhere in the route: that of
// a dlq.
func (r *Registry) SinkOf(e route.Endpoint, spec *route.Spec, env Env) (Sink, error) {
	t, ok := r.endpoints[e.Type]
	if !ok || t.NewSink == nil {
		return nil, Permanent(fmt.Errorf("route %s: %q cannot be an output", spec.Name, e.Type), "")
	}
	return t.NewSink(e.Config, spec, env)
}

// Sending collects what the middlewares of a route ask of its writer.
func (r *Registry) Sending(spec *route.Spec) Sending {
	var s Sending
	for _, m := range slices.Concat(spec.Input.Middlewares, spec.Output.Middlewares) {
		if t, ok := r.middlewares[m.Type]; ok && t.Ask != nil {
			t.Ask(m.Config, &s)
		}
	}
	return s
}

// Workers is how many chains of a route's middlewares may work at the same time:
// its concurrency, or one where a middleware paces or depends on earlier messages.
func (r *Registry) Workers(spec *route.Spec) int {
	for _, m := range slices.Concat(spec.Input.Middlewares, spec.Output.Middlewares) {
		t, ok := r.middlewares[m.Type]
		if !ok || t.New == nil {
			continue
		}
		if c := t.Capabilities(m.Config); c.Stateful || c.Serial || c.Shape == route.ShapeHold {
			return 1
		}
	}
	return min(max(spec.Concurrency, 1), maxWorkers)
}

// maxWorkers bounds the batches that one partition has in its middlewares.
const maxWorkers = 256

// Middlewares builds the factories of a route's middlewares in the order a
// message passes them: input side, then output side. On the input the first
// listed is the outermost and on the output the last, as in the dialect, so that
// on both sides a message passes the last one listed first.
func (r *Registry) Middlewares(spec *route.Spec) ([]func() Middleware, error) {
	in, after := slices.Clone(spec.Input.Middlewares), slices.Clone(spec.Output.Middlewares)
	slices.Reverse(in)
	slices.Reverse(after)
	var out []func() Middleware
	for _, m := range append(in, after...) {
		t, ok := r.middlewares[m.Type]
		if !ok {
			return nil, Permanent(fmt.Errorf("route %s: no middleware %q", spec.Name, m.Type), "")
		}
		if t.New == nil {
			continue
		}
		f, err := t.New(m.Config, spec)
		if err != nil {
			return nil, Permanent(fmt.Errorf("route %s: %s: %w", spec.Name, m.Type, err), "")
		}
		out = append(out, f)
	}
	return out, nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
