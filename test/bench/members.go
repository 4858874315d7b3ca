package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/lease"
)

// counted counts the calls of all nodes.
type counted struct {
	lease.Coordinator
	calls *atomic.Int64
}

func (c counted) Get(ctx context.Context, key string) (*lease.KV, int64, error) {
	c.calls.Add(1)
	return c.Coordinator.Get(ctx, key)
}

func (c counted) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	c.calls.Add(1)
	return c.Coordinator.List(ctx, prefix)
}

func (c counted) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	c.calls.Add(1)
	return c.Coordinator.Txn(ctx, compares, ops)
}

func (c counted) Watch(ctx context.Context, prefix string, from int64) <-chan lease.WatchResponse {
	c.calls.Add(1)
	return c.Coordinator.Watch(ctx, prefix, from)
}

func (c counted) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	c.calls.Add(1)
	return c.Coordinator.Grant(ctx, ttl)
}

func (c counted) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	c.calls.Add(1)
	return c.Coordinator.KeepAlive(ctx, id)
}

// members are the nodes of one cluster in this process, and who watches them.
type members struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	nodes  []*cluster.Node
	size   int // how many nodes there are to be
	calls  atomic.Int64
	keys   lease.Keys

	owners, assignments *lease.Mirror
	moved               atomic.Int64 // assignments that went from one node to another
}

// observe begins to look at the cluster through c, which is not counted.
func observe(ctx context.Context, c lease.Coordinator) (*members, context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	m := &members{cancel: cancel, keys: lease.NewKeys("scale")}
	quiet := slog.New(slog.DiscardHandler)
	m.owners, m.assignments = lease.NewMirror(c, m.keys.Owners(), quiet), lease.NewMirror(c, m.keys.Assignments(), quiet)
	for _, mirror := range []*lease.Mirror{m.owners, m.assignments} {
		m.wg.Go(func() { _ = mirror.Run(ctx) })
	}
	m.wg.Go(func() { m.count(ctx) })
	return m, ctx
}

// count compares each state of the assignments with the one before. A partition
// that moves twice between two looks counts once; the plan moves none twice.
func (m *members) count(ctx context.Context) {
	before := map[string]string{}
	for {
		changed := m.assignments.Changed()
		now := map[string]string{}
		for kv := range m.assignments.Snapshot().All(m.keys.Assignments()) {
			a, err := lease.Decode[lease.Assignment](kv.Value)
			if err != nil {
				continue
			}
			now[kv.Key] = a.Node
			if was := before[kv.Key]; was != "" && was != a.Node {
				m.moved.Add(1)
			}
		}
		before = now
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (m *members) start(ctx context.Context, cfg cluster.Config) error {
	cfg.Cluster, cfg.Address, cfg.Log = "scale", cfg.Name+":1", slog.New(slog.DiscardHandler)
	cfg.Coordinator = counted{cfg.Coordinator, &m.calls}
	n, err := cluster.NewNode(cfg)
	if err != nil {
		return err
	}
	m.nodes = append(m.nodes, n)
	m.size++
	m.wg.Go(func() { _ = n.Run(ctx) })
	return nil
}

// stop ends everything, hard.
func (m *members) stop() {
	m.cancel()
	m.wg.Wait()
}

// even waits until all partitions are owned, evenly over the nodes.
func (m *members) even(ctx context.Context, partitions int) error {
	for {
		changed := m.owners.Changed()
		per, total := map[string]int{}, 0
		for kv := range m.owners.Snapshot().All(m.keys.Owners()) {
			if o, err := lease.Decode[lease.Owner](kv.Value); err == nil {
				per[o.Node]++
				total++
			}
		}
		counts := slices.Sorted(maps.Values(per))
		if total == partitions && len(per) == m.size && counts[len(counts)-1]-counts[0] <= 1 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d partitions owned by %d of %d nodes: %w", total, partitions, len(per), m.size, ctx.Err())
		}
	}
}

// idle returns the calls per second while nothing happens.
func (m *members) idle(ctx context.Context) float64 {
	pause(ctx, 3*time.Second) // what the change before left
	before := m.calls.Load()
	pause(ctx, idleFor)
	return float64(m.calls.Load()-before) / idleFor.Seconds()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// done waits until every partition is at its end where it is owned.
func (m *members) done(ctx context.Context) error {
	for {
		done, total := 0, m.owners.Snapshot().Len()
		for _, n := range m.nodes {
			for _, p := range n.Status().Partitions {
				if p.State == lease.StateDone {
					done++
				}
			}
		}
		if done == total {
			return nil
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d partitions are at their end: %w", done, total, ctx.Err())
		}
	}
}
