package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

// What the scheduler promises at scale, and is measured here.
const (
	bigPartitions, bigNodes   = 10_000, 100
	realPartitions, realNodes = 1_000, 3
	maxRebalance              = 5 * time.Second
	maxIdleOps                = 50.0
	idleFor                   = 10 * time.Second
	scaleTimeout              = 5 * time.Minute
	bigTTL                    = realTTL
	realTTL                   = 3 * time.Second
	acquiringAtOnce           = 16
)

// scale measures planning alone, a large cluster on a coordinator in memory whose
// partitions do nothing but be owned, and a real one on the embedded raft.
func (w *work) scale(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	fmt.Printf("\n| cluster | what | measured | bound |\n|---|---|---|---|\n")
	planTimes()
	return errors.Join(bigCluster(ctx), w.realCluster(ctx))
}

func row(cluster, what, measured string, bound any) {
	fmt.Printf("| %s | %s | %s | %v |\n", cluster, what, measured, bound)
}

// planTimes times the plan itself: with nothing to do, and after each change.
func planTimes() {
	in := plan.Input{Moves: bigPartitions, Assigned: map[plan.Key]string{}}
	for i := range bigNodes {
		in.Nodes = append(in.Nodes, plan.Node{Name: fmt.Sprintf("n%03d", i), Settled: true})
	}
	for i := range bigPartitions {
		in.Partitions = append(in.Partitions, plan.Partition{Key: plan.Key{Route: fmt.Sprintf("r%d", i%50), Partition: fmt.Sprint(i)}})
	}
	compute := func() (p plan.Plan, ms float64) {
		began := time.Now()
		p = plan.Compute(in)
		return p, float64(time.Since(began).Microseconds()) / 1000
	}
	obey := func(p plan.Plan) {
		for _, c := range p.Changes {
			if in.Assigned[c.Key] = c.To; c.To == "" {
				delete(in.Assigned, c.Key)
			}
		}
		in.Owners = maps.Clone(in.Assigned)
	}
	name := fmt.Sprintf("%d × %d", bigNodes, bigPartitions)
	first, ms := compute()
	obey(first)
	row(name, "plan, everything new, ms", fmt.Sprintf("%.1f", ms), "–")
	_, ms = compute()
	row(name, "plan, nothing to do, ms", fmt.Sprintf("%.1f", ms), "–")
	in.Nodes = append(in.Nodes, plan.Node{Name: "joins", Settled: true})
	p, ms := compute()
	obey(p)
	row(name, "plan, a node joins, ms (moves)", fmt.Sprintf("%.1f (%d)", ms, len(p.Changes)), share(bigNodes))
	in.Nodes = in.Nodes[1:]
	p, ms = compute()
	row(name, "plan, a node leaves, ms (moves)", fmt.Sprintf("%.1f (%d)", ms, len(p.Changes)), share(bigNodes))
}

// share is how many of bigPartitions a change of one node may move: ⌈P/N⌉+1.
func share(nodes int) int { return (bigPartitions+nodes-1)/nodes + 1 }

// bigCluster has one whole node, which therefore is the scheduler; the others
// keep their leases, own what is assigned to them, and look at the assignments
// together: a hundred whole nodes in one process would each hold a copy of the
// cluster, and measure the machine.
func bigCluster(ctx context.Context) error {
	store := memory.NewStore(memory.Options{})
	defer store.Close()
	admin := store.Client()
	m, ctx := observe(ctx, admin)
	defer m.stop()
	name := fmt.Sprintf("%d × %d, in memory", bigNodes, bigPartitions)
	err := m.start(ctx, cluster.Config{
		Name: "n000", Coordinator: store.Client(), Registry: onlyOwned(), LeaseTTL: bigTTL,
		NewRunner: func(c actors.Config) (cluster.Runner, error) { return newOwner(c.Owners), nil },
	})
	if err != nil {
		return err
	}
	l := &lights{members: m, route: lease.Route{UID: "u", Series: "s", Generation: 1, Spec: "input: {listed: {}}\noutput: {sunk: {}}\n"}, nodes: map[string]light{}}
	for i := 1; i < bigNodes; i++ {
		if err := l.start(ctx, fmt.Sprintf("n%03d", i), store.Client()); err != nil {
			return err
		}
	}
	pause(ctx, 5*time.Second) // until they have settled
	began := time.Now()
	res, err := admin.Txn(ctx, nil, []lease.Op{lease.Put(m.keys.Route("r"), lease.Encode(l.route))})
	if err != nil {
		return err
	}
	l.routeRev = res.Revision
	m.wg.Go(func() { l.follow(ctx) })
	if err := m.even(ctx, bigPartitions); err != nil {
		return err
	}
	row(name, "all owned after the route was written, s", fmt.Sprintf("%.1f", time.Since(began).Seconds()), "–")
	row(name, fmt.Sprintf("idle, calls/s (TTL %v)", bigTTL), fmt.Sprintf("%.1f", m.idle(ctx)), "–")

	change := func(what string, do func() error) error {
		m.moved.Store(0)
		began := time.Now()
		if err := do(); err != nil {
			return err
		}
		if err := m.even(ctx, bigPartitions); err != nil {
			return err
		}
		moved := m.moved.Load()
		row(name, what+", moves (s)", fmt.Sprintf("%d (%.1f)", moved, time.Since(began).Seconds()), share(bigNodes))
		if moved > int64(share(bigNodes)) {
			return fmt.Errorf("%s: %d moves, at most %d", what, moved, share(bigNodes))
		}
		return nil
	}
	if err := change("a node joins", func() error { return l.start(ctx, "joins", store.Client()) }); err != nil {
		return err
	}
	return change("a node is gone", func() error { return l.stop(ctx, "n001") })
}
