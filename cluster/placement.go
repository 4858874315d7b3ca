package cluster

import (
	"sync"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// placement says who lists a route's partitions and where they may be.
type placement uint8

const (
	// anywhere: the leader lists, any node may hold.
	anywhere placement = iota
	// perNode: each node lists what is on it, and holds it.
	perNode
	// oneNode: the leader lists, one node holds all: the sink, or the store of the
	// positions, is on that node's disk. Output that is spread over several disks is
	// no output of one route, and another node would not find the positions.
	oneNode
)

// placementOf follows from what both ends declare. shared_storage says that all
// nodes mount what is otherwise each node's own.
func placementOf(spec *route.Spec, types route.Types) placement {
	var source, sink route.Locality
	if t, ok := types.Endpoint(spec.Input.Type); ok && t.Source != nil {
		source = t.Source(spec.Input.Config).Locality
	}
	if t, ok := types.Endpoint(spec.Output.Type); ok && t.Sink != nil {
		sink = t.Sink(spec.Output.Config).Locality
	}
	switch {
	case source == route.EveryNode, source == route.NodeLocal && !spec.SharedStorage:
		return perNode
	case sink == route.NodeLocal && !spec.SharedStorage, spec.StoreLocality() == route.NodeLocal:
		return oneNode
	}
	return anywhere
}

// specs decodes the routes' specs, once for each revision of a route. Safe for
// concurrent use.
type specs struct {
	types route.Types

	mu     sync.Mutex
	routes map[string]decoded
}

// decoded is a route's spec as this process, with the connectors it was built
// with, understands it.
type decoded struct {
	rev       int64
	spec      *route.Spec
	older     map[uint64]*route.Spec // those that could be decoded
	placement placement
	err       error
}

func newSpecs(types route.Types) *specs {
	return &specs{types: types, routes: map[string]decoded{}}
}

// of decodes a route, or remembers having done so.
func (s *specs) of(name string, r row[lease.Route]) decoded {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.routes[name]; ok && d.rev == r.ModRevision {
		return d
	}
	d := decoded{rev: r.ModRevision, older: map[uint64]*route.Spec{}}
	if d.spec, d.err = route.DecodeRoute(name, r.value.Spec, s.types); d.err == nil {
		d.placement = placementOf(d.spec, s.types)
	}
	for generation, text := range r.value.Older {
		if old, err := route.DecodeRoute(name, text, s.types); err == nil {
			d.older[generation] = old
		}
	}
	s.routes[name] = d
	return d
}

// keep forgets all routes but these.
func (s *specs) keep(routes map[string]row[lease.Route]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.routes {
		if _, ok := routes[name]; !ok {
			delete(s.routes, name)
		}
	}
}
