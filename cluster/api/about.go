package api

import (
	"strings"
	"sync"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// aboutCache remembers what the specs say, so that a view that is asked for each
// second does not decode every route each time.
type aboutCache struct {
	mu sync.Mutex
	// by name; spec is the text that About was made from.
	known map[string]aboutEntry
}

type aboutEntry struct {
	spec  string
	about About
}

func (c *aboutCache) of(cat *catalog.Catalog, routes map[string]lease.Route) map[string]About {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := make(map[string]aboutEntry, len(routes)) // deleted routes are forgotten
	out := make(map[string]About, len(routes))
	for name, r := range routes {
		e, ok := c.known[name]
		if !ok || e.spec != r.Spec {
			e = aboutEntry{spec: r.Spec, about: about(cat, name, r.Spec)}
		}
		known[name], out[name] = e, e.about
	}
	c.known = known
	return out
}

func about(cat *catalog.Catalog, name, text string) About {
	spec, inferred, err := cat.Describe(name, text)
	if err != nil {
		return About{Enabled: true, Error: err.Error()}
	}
	return About{
		Enabled: spec.Enabled, Input: spec.Input.Type, Output: spec.Output.Type,
		Guarantee: string(inferred.Guarantee),
	}
}

// PositionText writes a position for people: the plain number where it is one.
func PositionText(p message.Position) string {
	if _, ok := p.Number(); ok {
		if s := strings.TrimLeft(p.Sort, "0"); s != "" {
			return s
		}
		return "0"
	}
	return p.Sort
}
