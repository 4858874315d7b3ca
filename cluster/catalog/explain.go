package catalog

import (
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// Explanation is a route of a file with what it guarantees and why.
type Explanation struct {
	Spec      *route.Spec
	Inference route.Inference
}

// Explain decodes a file and infers what each of its routes guarantees, without
// any cluster. *Invalid lists everything that is wrong with the file.
func Explain(registry *connectors.Registry, file []byte, name string, env route.LookupEnv, overrides []route.Override) ([]Explanation, []string, error) {
	defs, warnings, err := decode(registry, file, name, env, overrides)
	if err != nil {
		return nil, nil, err
	}
	out := make([]Explanation, len(defs))
	for i, d := range defs {
		out[i] = Explanation{Spec: d.Spec, Inference: d.inferred}
	}
	return out, warnings, nil
}

// Describe decodes a stored spec and infers its guarantee.
func (c *Catalog) Describe(name, text string) (*route.Spec, route.Inference, error) {
	def, err := c.stored(name, text)
	return def.Spec, def.inferred, err
}

// Explain explains a file as Apply would read it.
func (c *Catalog) Explain(file []byte, name string, env route.LookupEnv, overrides []route.Override) ([]Explanation, []string, error) {
	return Explain(c.cfg.Registry, file, name, env, overrides)
}
