package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/lease/raft"
	"github.com/mqbridge/mqb/route"
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

// realCluster is real nodes on real raft, in this process, with a file a
// partition, each of them read to its end.
func (w *work) realCluster(ctx context.Context) error {
	dir := w.path("scale")
	in := filepath.Join(dir, "in")
	if err := os.MkdirAll(in, 0o755); err != nil {
		return err
	}
	for i := range realPartitions {
		if err := os.WriteFile(filepath.Join(in, fmt.Sprintf("%04d.csv", i)), []byte("id\n1\n"), 0o644); err != nil {
			return err
		}
	}
	var engines []*raft.Engine
	defer func() {
		for _, e := range engines {
			_ = e.Close()
		}
	}()
	var m *members
	founder := ""
	start := func(node string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		o := raft.Options{
			Cluster: "scale", Node: node, DataDir: filepath.Join(dir, node), Advertise: l.Addr().String(), Log: slog.New(slog.DiscardHandler),
		}
		if founder != "" {
			o.Join = []string{founder}
		} else {
			founder = o.Advertise
		}
		e, err := raft.Open(o)
		if err != nil {
			return err
		}
		engines = append(engines, e)
		e.Mux(l)
		if m == nil {
			m, ctx = observe(ctx, e)
		}
		return m.start(ctx, cluster.Config{Name: node, Coordinator: e, Registry: builtin.Registry(), DataDir: filepath.Join(dir, node), LeaseTTL: realTTL})
	}
	for i := range realNodes {
		if err := start(fmt.Sprintf("n%d", i)); err != nil {
			return err
		}
	}
	defer func() { m.stop() }()
	name := fmt.Sprintf("%d × %d, raft", realNodes, realPartitions)
	spec := lease.Encode(lease.Route{UID: "u", Series: "s", Generation: 1, Spec: fmt.Sprintf(
		"input: {file: {path: %q, format: csv}}\noutput: \"null\"\nshared_storage: true\n", filepath.Join(in, "*.csv"))})
	if _, err := engines[0].Txn(ctx, nil, []lease.Op{lease.Put(m.keys.Route("r"), spec)}); err != nil {
		return err
	}
	began := time.Now()
	if err := m.even(ctx, realPartitions); err != nil {
		return err
	}
	if err := m.done(ctx); err != nil {
		return err
	}
	row(name, "all read to their end after the route was written, s", fmt.Sprintf("%.1f", time.Since(began).Seconds()), "–")
	idle := m.idle(ctx)
	row(name, fmt.Sprintf("idle, calls/s (TTL %v)", realTTL), fmt.Sprintf("%.1f", idle), maxIdleOps)

	m.moved.Store(0)
	if err := start(fmt.Sprintf("n%d", realNodes)); err != nil {
		return err
	}
	joined := time.Now()
	var first time.Time
	for m.moved.Load() == 0 && ctx.Err() == nil {
		pause(ctx, 5*time.Millisecond)
	}
	first = time.Now()
	if err := m.even(ctx, realPartitions); err != nil {
		return err
	}
	if err := m.done(ctx); err != nil {
		return err
	}
	took, moved := time.Since(first), m.moved.Load()
	limit := int64((realPartitions+realNodes)/(realNodes+1) + 1)
	row(name, "a node joins and has settled, s until all is even and runs", fmt.Sprintf("%.1f", took.Seconds()), maxRebalance.Seconds())
	row(name, "a node joins, s with its settling", fmt.Sprintf("%.1f", time.Since(joined).Seconds()), "–")
	row(name, "a node joins, moves", fmt.Sprint(moved), limit)
	var errs []error
	if idle > maxIdleOps {
		errs = append(errs, fmt.Errorf("%.1f calls/s idle, at most %.0f", idle, maxIdleOps))
	}
	if took > maxRebalance || moved > limit {
		errs = append(errs, fmt.Errorf("%d moves in %v, at most %d in %v", moved, took, limit, maxRebalance))
	}
	return errors.Join(errs...)
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
