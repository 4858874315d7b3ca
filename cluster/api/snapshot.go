package api

import (
	"context"
	"fmt"

	"github.com/mqbridge/mqb/lease"
)

// place names a partition of a route.
type place struct{ route, partition string }

// Snapshot is what the coordinator holds about a cluster. Its prefixes are read
// one after the other, so it may be torn between two of them; it is for people
// to look at, nothing decides by it.
type Snapshot struct {
	Nodes       map[string]lease.Node
	Cordons     map[string]lease.Cordon
	Pins        map[place]lease.Pin
	Routes      map[string]lease.Route
	Partitions  map[place]lease.Partition
	Assignments map[place]lease.Assignment
	Owners      map[place]lease.Owner
	Statuses    map[string]lease.NodeStatus
	Leader      lease.Leader
}

// Read takes a Snapshot. A value that does not decode (written by a newer
// version) is left out rather than hiding all others.
func Read(ctx context.Context, c lease.Coordinator, k lease.Keys) (*Snapshot, error) {
	s := &Snapshot{}
	var err error
	load := func(what string, f func() error) {
		if err == nil {
			if e := f(); e != nil {
				err = fmt.Errorf("read %s: %w", what, e)
			}
		}
	}
	load("nodes", func() (e error) { s.Nodes, e = named[lease.Node](ctx, c, k, k.Nodes()); return })
	load("cordons", func() (e error) { s.Cordons, e = named[lease.Cordon](ctx, c, k, k.Cordons()); return })
	load("pins", func() (e error) { s.Pins, e = placed[lease.Pin](ctx, c, k, k.Pins()); return })
	load("routes", func() (e error) { s.Routes, e = named[lease.Route](ctx, c, k, k.Routes()); return })
	load("statuses", func() (e error) { s.Statuses, e = named[lease.NodeStatus](ctx, c, k, k.Statuses()); return })
	load("partitions", func() (e error) { s.Partitions, e = placed[lease.Partition](ctx, c, k, k.Partitions()); return })
	load("assignments", func() (e error) { s.Assignments, e = placed[lease.Assignment](ctx, c, k, k.Assignments()); return })
	load("owners", func() (e error) { s.Owners, e = placed[lease.Owner](ctx, c, k, k.Owners()); return })
	load("scheduler", func() error {
		kv, _, e := c.Get(ctx, k.Scheduler())
		if e == nil && kv != nil {
			s.Leader, _ = lease.Decode[lease.Leader](kv.Value)
		}
		return e
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func named[T any](ctx context.Context, c lease.Coordinator, k lease.Keys, prefix string) (map[string]T, error) {
	kvs, _, err := c.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make(map[string]T, len(kvs))
	for _, kv := range kvs {
		name, ok := k.SplitName(kv.Key)
		if v, err := lease.Decode[T](kv.Value); ok && err == nil {
			out[name] = v
		}
	}
	return out, nil
}

func placed[T any](ctx context.Context, c lease.Coordinator, k lease.Keys, prefix string) (map[place]T, error) {
	kvs, _, err := c.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make(map[place]T, len(kvs))
	for _, kv := range kvs {
		r, p, ok := k.SplitPartition(kv.Key)
		if v, err := lease.Decode[T](kv.Value); ok && err == nil {
			out[place{r, p}] = v
		}
	}
	return out, nil
}
