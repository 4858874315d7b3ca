package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// light is a node without a scheduler, a status or runs.
type light struct {
	session *lease.Session
	owner   *owner
}

// lights are the nodes that look at the assignments together.
type lights struct {
	*members
	route    lease.Route
	routeRev int64

	mu    sync.Mutex
	nodes map[string]light
}

func (l *lights) start(ctx context.Context, name string, c lease.Coordinator) error {
	c = counted{c, &l.calls}
	value := lease.Encode(lease.Node{Name: name, Instance: name})
	session, err := lease.NewSession(c, lease.SessionOptions{
		TTL: bigTTL, Log: slog.New(slog.DiscardHandler),
		Register: func(ctx context.Context, id lease.LeaseID) error {
			_, err := c.Txn(ctx, nil, []lease.Op{lease.PutLeased(l.keys.Node(name), value, id)})
			return err
		},
	})
	if err != nil {
		return err
	}
	l.wg.Go(func() { _ = session.Run(ctx) })
	o := newOwner(lease.NewOwners(c, l.keys, name, name, session))
	context.AfterFunc(ctx, o.cancel)
	l.size++
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[name] = light{session, o}
	return nil
}

// stop ends a node's lease, as its death would after the TTL.
func (l *lights) stop(ctx context.Context, name string) error {
	l.mu.Lock()
	n := l.nodes[name]
	delete(l.nodes, name)
	l.mu.Unlock()
	l.size--
	n.owner.cancel()
	return n.session.Close(ctx)
}

// follow tells each node what it is to hold.
func (l *lights) follow(ctx context.Context) {
	for ctx.Err() == nil {
		changed := l.assignments.Changed()
		want := map[string][]actors.Desired{}
		for kv := range l.assignments.Snapshot().All(l.keys.Assignments()) {
			r, p, _ := l.keys.SplitPartition(kv.Key)
			if a, err := lease.Decode[lease.Assignment](kv.Value); err == nil {
				want[a.Node] = append(want[a.Node], actors.Desired{Route: r, Partition: lease.Partition{ID: p}, Assignment: a, AssignmentRev: kv.ModRevision})
			}
		}
		routes := map[string]actors.Route{"r": {Route: l.route, Name: "r", Rev: l.routeRev}}
		l.mu.Lock()
		for name, n := range l.nodes {
			n.owner.SetDesired(routes, want[name])
		}
		l.mu.Unlock()
		select {
		case <-changed:
			pause(ctx, 5*time.Millisecond)
		case <-ctx.Done():
		}
	}
}

// onlyOwned has a source that lists bigPartitions, of which nothing is ever read.
func onlyOwned() *connectors.Registry {
	type none struct{}
	return connectors.NewRegistry([]connectors.Type{{
		EndpointType: route.EndpointType{
			Name: "listed", NewConfig: func() any { return new(none) },
			Source: func(any) route.SourceCapabilities { return route.SourceCapabilities{Locality: route.Shared} },
		},
		NewSource: func(any, *route.Spec, connectors.Env) (connectors.Source, error) { return listed{}, nil },
	}, {
		EndpointType: route.EndpointType{
			Name: "sunk", NewConfig: func() any { return new(none) },
			Sink: func(any) route.SinkCapabilities { return route.SinkCapabilities{Locality: route.Shared} },
		},
	}}, nil)
}

type listed struct{ connectors.Source }

func (listed) Partitions(context.Context) ([]connectors.Partition, error) {
	out := make([]connectors.Partition, bigPartitions)
	for i := range out {
		out[i].ID = fmt.Sprintf("p-%05d", i)
	}
	return out, nil
}

func (listed) Close() error { return nil }

// owner is a Runner that acquires what it is told to and releases the rest.
type owner struct {
	owners *lease.Owners
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}

	mu     sync.Mutex
	routes map[string]actors.Route
	want   map[plan.Key]actors.Desired
	busy   map[plan.Key]bool
	owned  map[plan.Key]lease.Owned
	never  chan struct{}
}

func newOwner(owners *lease.Owners) *owner {
	o := &owner{
		owners: owners, slots: make(chan struct{}, acquiringAtOnce), never: make(chan struct{}),
		busy: map[plan.Key]bool{}, owned: map[plan.Key]lease.Owned{},
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

func (o *owner) SetDesired(routes map[string]actors.Route, want []actors.Desired) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.routes, o.want = routes, make(map[plan.Key]actors.Desired, len(want))
	for _, d := range want {
		k := plan.Key{Route: d.Route, Partition: d.Partition.ID}
		o.want[k] = d
		o.work(k)
	}
	for k := range o.owned {
		o.work(k)
	}
}

// work brings a partition to where it is wanted, if nobody does already. Called
// with mu.
func (o *owner) work(k plan.Key) {
	_, wanted := o.want[k]
	if _, owned := o.owned[k]; wanted == owned || o.busy[k] {
		return
	}
	o.busy[k] = true
	o.wg.Go(func() {
		for o.ctx.Err() == nil && o.once(k) {
			pause(o.ctx, 20*time.Millisecond)
		}
	})
}

// once makes one step and reports whether another one is needed.
func (o *owner) once(k plan.Key) (again bool) {
	select {
	case o.slots <- struct{}{}:
		defer func() { <-o.slots }()
	case <-o.ctx.Done():
		return false
	}
	o.mu.Lock()
	d, wanted := o.want[k]
	held, owned := o.owned[k]
	r := o.routes[k.Route]
	if wanted == owned {
		delete(o.busy, k)
		o.mu.Unlock()
		return false
	}
	o.mu.Unlock()
	if owned {
		if o.owners.Release(o.ctx, held) == nil {
			o.mu.Lock()
			delete(o.owned, k)
			o.mu.Unlock()
		}
		return true
	}
	got, err := o.owners.Acquire(o.ctx, lease.AcquireRequest{
		Route: k.Route, RouteUID: r.UID, Generation: r.Generation, Partition: k.Partition, AssignmentRev: d.AssignmentRev, RouteRev: r.Rev,
	})
	if err == nil {
		o.mu.Lock()
		o.owned[k] = got
		o.mu.Unlock()
	}
	return true
}

func (o *owner) Status() []lease.PartitionStatus { return nil }
func (o *owner) Changed() <-chan struct{}        { return o.never }

func (o *owner) Stop(ctx context.Context) error {
	o.SetDesired(nil, nil)
	for ctx.Err() == nil {
		o.mu.Lock()
		left := len(o.owned) + len(o.busy)
		o.mu.Unlock()
		if left == 0 {
			break
		}
		pause(ctx, 10*time.Millisecond)
	}
	o.cancel()
	o.wg.Wait()
	return ctx.Err()
}
