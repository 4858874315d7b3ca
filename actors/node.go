package actors

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Route is a route as the coordinator has it, decoded.
type Route struct {
	lease.Route
	Name string
	// Rev is the ModRevision of the route's key.
	Rev  int64
	Spec *route.Spec
	// Older are the decoded specs of Route.Older, for intents that name them.
	Older map[uint64]*route.Spec
}

// Desired is one partition that this node is to hold.
type Desired struct {
	Route         string
	Partition     lease.Partition
	Assignment    lease.Assignment
	AssignmentRev int64
}

// Config is what a node's actors work with. All of it is required but Timing,
// Draining, Observe and Left.
type Config struct {
	Name        string // of this node
	Instance    string
	ClusterName string
	ClusterUID  string
	Coordinator lease.Coordinator
	Keys        lease.Keys
	Owners      *lease.Owners
	Session     *lease.Session
	Registry    *connectors.Registry
	Env         connectors.Env
	Budget      *message.Budget
	Log         *slog.Logger
	Timing      Timing
	// Draining says whether an operator is emptying this node; nil means never.
	// It only chooses words.
	Draining func() bool
	// Observe is told what happens to partitions; nil for nobody. It must not block.
	Observe func(Event)
	// Left is told the last counts of a partition that leaves this node, with what
	// it committed on the way out; nil for nobody. It must not block.
	Left func(Run)
}

// Timing are the supervision's deadlines. Zero values take the defaults.
type Timing struct {
	// Drain is how long a partition that is asked to stop may take to commit
	// what it has read; then it is cancelled. Default 10 s.
	Drain time.Duration
	// Wedge is how long a cancelled attempt may go on before its partition is
	// shown as wedged. Default 5 s.
	Wedge time.Duration
	// Quarantine is the pace of retries of a partition that cannot run. Default 60 s.
	Quarantine time.Duration
	// Intensity panics within Period put a partition into quarantine. Default 5 in 60 s.
	Intensity int
	Period    time.Duration
	// Backoff is the first wait after a failed attempt, doubled with jitter up
	// to BackoffMax. Defaults 100 ms and 5 s.
	Backoff, BackoffMax time.Duration
}

func (t *Timing) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.Drain, 10*time.Second)
	set(&t.Wedge, 5*time.Second)
	set(&t.Quarantine, time.Minute)
	set(&t.Period, time.Minute)
	set(&t.Backoff, 100*time.Millisecond)
	set(&t.BackoffMax, 5*time.Second)
	if t.Intensity == 0 {
		t.Intensity = 5
	}
}

// Node is the actor tree of one process. Safe for concurrent use.
type Node struct {
	cfg      Config
	engine   *engine
	root     pid
	runtimes *runtimes
	ctx      context.Context // of all attempts
	cancel   context.CancelFunc

	mu      sync.Mutex
	routes  map[string]Route
	want    []Desired
	stopped bool
	views   map[partitionKey]*view
	active  map[partitionKey]chan struct{} // closed when the attempt left
	changed chan struct{}
}

type partitionKey struct{ route, partition string }

// New starts the tree, with nothing to hold.
func New(cfg Config) (*Node, error) {
	cfg.Timing.defaults()
	e, err := newEngine(cfg.Log)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, engine: e, runtimes: newRuntimes(cfg),
		views: map[partitionKey]*view{}, active: map[partitionKey]chan struct{}{}, changed: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	a := &nodeActor{node: n, children: map[string]*routeChild{}}
	n.root = e.spawn("node", a.receive)
	return n, nil
}

// SetDesired replaces what this node is to hold: new partitions are acquired,
// missing ones drained and released, partitions of a changed generation drained
// and started anew. It does not wait. It keeps both arguments; the caller must
// not change them afterwards.
func (n *Node) SetDesired(routes map[string]Route, want []Desired) {
	n.mu.Lock()
	if !n.stopped {
		n.routes, n.want = routes, want
	}
	n.mu.Unlock()
	n.engine.send(n.root, reconcile{})
}

// Status lists the partitions that this node holds or tries to hold.
func (n *Node) Status() []lease.PartitionStatus {
	n.mu.Lock()
	views := maps.Clone(n.views)
	n.mu.Unlock()
	out := make([]lease.PartitionStatus, 0, len(views))
	for _, v := range views {
		out = append(out, v.status())
	}
	return out
}

// Runs lists the partitions' counters for metrics; labels are those of Status.
func (n *Node) Runs() []Run {
	n.mu.Lock()
	views := maps.Clone(n.views)
	n.mu.Unlock()
	out := make([]Run, 0, len(views))
	for _, v := range views {
		out = append(out, v.run())
	}
	return out
}

// Run is what metrics say of one partition.
type Run struct {
	Status             lease.PartitionStatus
	Bytes, Commits     int64
	FenceWait, RunTime time.Duration
	// Input and Output are nil unless the route has the middleware metrics there.
	Input, Output *pipeline.CallCounts
}

// Changed returns a channel that is closed when any status changes. Take the
// channel first, then look.
func (n *Node) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *Node) touch() {
	n.mu.Lock()
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
}

func (n *Node) addView(v *view) {
	n.mu.Lock()
	n.views[v.key] = v
	n.mu.Unlock()
	n.touch()
}

func (n *Node) dropView(v *view) {
	if n.cfg.Left != nil {
		n.cfg.Left(v.run()) // before Stop can see that it is gone
	}
	n.mu.Lock()
	if n.views[v.key] == v {
		delete(n.views, v.key)
	}
	n.mu.Unlock()
	n.touch()
}

// Stop drains and releases everything. When ctx ends first, what is left is
// cancelled: it stops writing at once and is still safe, only not released.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	n.stopped = true
	n.routes, n.want = nil, nil
	n.mu.Unlock()
	n.engine.send(n.root, reconcile{})
	err := n.empty(ctx)
	n.cancel()
	if err != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if n.empty(grace) == nil {
			err = nil
		}
	}
	n.engine.remove(n.root)
	n.runtimes.close()
	if err != nil {
		return fmt.Errorf("drain: %d partitions were cancelled and not released: %w", len(n.Status()), err)
	}
	return nil
}

// leaving: Stop was called.
func (n *Node) leaving() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped
}

func (n *Node) empty(ctx context.Context) error {
	for {
		changed := n.Changed()
		n.mu.Lock()
		left := len(n.views)
		n.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Messages of the tree.
type (
	// reconcile: look at what is desired.
	reconcile struct{}
	// routeWanted is what a route's partitions on this node are to be. seq
	// counts them for one child.
	routeWanted struct {
		route Route
		want  map[string]Desired
		seq   uint64
	}
	// routeGone: the child has nothing left after the routeWanted with this seq.
	// One that crossed a later routeWanted on the way is stale.
	routeGone struct {
		route string
		pid   pid
		seq   uint64
	}
	// partitionGone: the child released everything; its pid may be removed.
	partitionGone struct {
		partition string
		pid       pid
	}
)

type nodeActor struct {
	node     *Node
	children map[string]*routeChild
}

type routeChild struct {
	pid pid
	seq uint64 // of the last routeWanted sent to it
}

func (a *nodeActor) receive(self pid, msg any) {
	n := a.node
	switch msg := msg.(type) {
	case reconcile:
		n.mu.Lock()
		routes, want := n.routes, n.want
		n.mu.Unlock()
		byRoute := map[string]routeWanted{}
		for _, d := range want {
			r, ok := routes[d.Route]
			if !ok {
				continue
			}
			w, ok := byRoute[d.Route]
			if !ok {
				w = routeWanted{route: r, want: map[string]Desired{}}
				byRoute[d.Route] = w
			}
			w.want[d.Partition.ID] = d
		}
		for name, w := range byRoute {
			child, ok := a.children[name]
			if !ok {
				r := &routeActor{node: n, parent: self, name: name, children: map[string]*partitionChild{}}
				child = &routeChild{pid: n.engine.spawn("route/"+name, r.receive)}
				a.children[name] = child
			}
			a.tell(child, w)
		}
		for name, child := range a.children {
			if _, ok := byRoute[name]; !ok {
				a.tell(child, routeWanted{route: Route{Name: name}})
			}
		}
	case routeGone:
		// A child that was told to hold something since it sent this lives on: to
		// remove it and spawn another would run its partitions twice.
		if c := a.children[msg.route]; c != nil && c.pid == msg.pid && c.seq == msg.seq {
			delete(a.children, msg.route)
			n.engine.remove(msg.pid)
		}
	}
}

func (a *nodeActor) tell(c *routeChild, w routeWanted) {
	c.seq++
	w.seq = c.seq
	a.node.engine.send(c.pid, w)
}

// enter makes the caller the only attempt at a partition in this process, once
// the one before it has left; ok is false when ctx or drain ended first. It backs
// up the actors: two attempts of one partition at a time would fence each other.
func (n *Node) enter(ctx context.Context, key partitionKey, drain <-chan struct{}) (leave func(), ok bool) {
	for {
		n.mu.Lock()
		busy := n.active[key]
		if busy == nil {
			left := make(chan struct{})
			n.active[key] = left
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				delete(n.active, key)
				n.mu.Unlock()
				close(left)
			}, true
		}
		n.mu.Unlock()
		select {
		case <-busy:
		case <-drain:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}
