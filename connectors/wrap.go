package connectors

import (
	"maps"

	"github.com/mqbridge/mqb/route"
)

// NewSource is the constructor of a source, see Type.
type NewSource func(config any, spec *route.Spec, env Env) (Source, error)

// WithSources returns a registry of the same types whose sources are made by wrap,
// which gets the constructor of the type.
func (r *Registry) WithSources(wrap func(build NewSource) NewSource) *Registry {
	out := *r
	out.endpoints = maps.Clone(r.endpoints)
	for name, t := range out.endpoints {
		if t.NewSource != nil {
			t.NewSource = wrap(t.NewSource)
			out.endpoints[name] = t
		}
	}
	return &out
}
