package cluster

import (
	"context"
	"log/slog"
	"sync"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

// mirrors follow the parts of the coordinator that a node acts on. The
// checkpoint records and statuses are not among them: they are large and change
// all the time.
type mirrors struct {
	scheduler, nodes, cordons, pins, routes, partitions, assignments, owners *lease.Mirror

	mu      sync.Mutex
	changed chan struct{}
}

func newMirrors(c lease.Coordinator, k lease.Keys, log *slog.Logger) *mirrors {
	of := func(prefix string) *lease.Mirror { return lease.NewMirror(c, prefix, log) }
	return &mirrors{
		scheduler:   of(k.Scheduler()),
		nodes:       of(k.Nodes()),
		cordons:     of(k.Cordons()),
		pins:        of(k.Pins()),
		routes:      of(k.Routes()),
		partitions:  of(k.Partitions()),
		assignments: of(k.Assignments()),
		owners:      of(k.Owners()),
		changed:     make(chan struct{}),
	}
}

func (m *mirrors) all() []*lease.Mirror {
	return []*lease.Mirror{m.scheduler, m.nodes, m.cordons, m.pins, m.routes, m.partitions, m.assignments, m.owners}
}

// run follows all of them until ctx ends or the coordinator closes.
func (m *mirrors) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, mirror := range m.all() {
		changed := mirror.Changed() // before it runs: the first list is a change
		wg.Go(func() { _ = mirror.Run(ctx) })
		wg.Go(func() { m.relay(ctx, mirror, changed) })
	}
	wg.Wait()
}

// relay turns each change of one mirror, from changed on, into a change of them
// all. The next channel is taken before a change is announced: whoever hears of it
// and looks sees all that came before, and what comes after is announced again.
func (m *mirrors) relay(ctx context.Context, mirror *lease.Mirror, changed <-chan struct{}) {
	for {
		select {
		case <-changed:
			changed = mirror.Changed()
			m.mu.Lock()
			close(m.changed)
			m.changed = make(chan struct{})
			m.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// Changed returns a channel that is closed at the next change of any mirror.
// Take the channel first, then look.
func (m *mirrors) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// synced reports whether every mirror has listed once.
func (m *mirrors) synced() bool {
	for _, mirror := range m.all() {
		if !mirror.Snapshot().Synced {
			return false
		}
	}
	return true
}

// row is one decoded key of a table.
type row[V any] struct {
	lease.KV
	value V
}

// table is a mirror, decoded. Rows that did not change are not decoded again.
// A value that cannot be decoded (written by a later version) is left out. Not
// safe for concurrent use.
type table[K comparable, V any] struct {
	mirror *lease.Mirror
	prefix string
	parse  func(key string) (K, bool)
	rows   map[K]row[V]
	rev    int64
	listed bool
}

// update takes the mirror's current state over and reports whether it changed.
func (t *table[K, V]) update() bool {
	s := t.mirror.Snapshot()
	if t.listed && s.Revision == t.rev {
		return false
	}
	rows := make(map[K]row[V], s.Len())
	for kv := range s.All(t.prefix) {
		k, ok := t.parse(kv.Key)
		if !ok {
			continue
		}
		if old, ok := t.rows[k]; ok && old.ModRevision == kv.ModRevision {
			rows[k] = old
			continue
		}
		if v, err := lease.Decode[V](kv.Value); err == nil {
			rows[k] = row[V]{KV: kv, value: v}
		}
	}
	t.rows, t.rev, t.listed = rows, s.Revision, s.Synced
	return true
}

// tables is a decoded view of the mirrors; each goroutine that needs one has its own.
type tables struct {
	nodes       table[string, lease.Node]
	cordons     table[string, lease.Cordon]
	pins        table[plan.Key, lease.Pin]
	routes      table[string, lease.Route]
	partitions  table[plan.Key, lease.Partition]
	assignments table[plan.Key, lease.Assignment]
	owners      table[plan.Key, lease.Owner]
}

func newTables(m *mirrors, k lease.Keys) *tables {
	split := func(key string) (plan.Key, bool) {
		route, p, ok := k.SplitPartition(key)
		return plan.Key{Route: route, Partition: p}, ok
	}
	return &tables{
		nodes:       table[string, lease.Node]{mirror: m.nodes, prefix: k.Nodes(), parse: k.SplitName},
		cordons:     table[string, lease.Cordon]{mirror: m.cordons, prefix: k.Cordons(), parse: k.SplitName},
		pins:        table[plan.Key, lease.Pin]{mirror: m.pins, prefix: k.Pins(), parse: split},
		routes:      table[string, lease.Route]{mirror: m.routes, prefix: k.Routes(), parse: k.SplitName},
		partitions:  table[plan.Key, lease.Partition]{mirror: m.partitions, prefix: k.Partitions(), parse: split},
		assignments: table[plan.Key, lease.Assignment]{mirror: m.assignments, prefix: k.Assignments(), parse: split},
		owners:      table[plan.Key, lease.Owner]{mirror: m.owners, prefix: k.Owners(), parse: split},
	}
}

// membership takes over what every node looks at, leader or not.
func (t *tables) membership() {
	t.nodes.update()
	t.cordons.update()
}

// update takes the rest over, which is most of it.
func (t *tables) update() {
	t.pins.update()
	t.routes.update()
	t.partitions.update()
	t.assignments.update()
	t.owners.update()
}

// draining reports whether a live node is to be emptied.
func (t *tables) draining(node string) bool {
	return t.cordons.rows[node].value.Drain || t.nodes.rows[node].value.Leaving
}

// partition returns a partition if it is the route's as it stands: a key that is
// older than the route belongs to an earlier route of the same name.
func (t *tables) partition(k plan.Key) (row[lease.Partition], bool) {
	p, ok := t.partitions.rows[k]
	r, exists := t.routes.rows[k.Route]
	return p, ok && exists && p.ModRevision > r.CreateRevision
}

// assignment is like partition.
func (t *tables) assignment(k plan.Key) (row[lease.Assignment], bool) {
	a, ok := t.assignments.rows[k]
	r, exists := t.routes.rows[k.Route]
	return a, ok && exists && a.ModRevision > r.CreateRevision
}

// pin is where an operator wants a partition; "" is anywhere. Like partition, it
// knows a pin of an earlier route of the same name.
func (t *tables) pin(k plan.Key) string {
	p, ok := t.pins.rows[k]
	r, exists := t.routes.rows[k.Route]
	if !ok || !exists || p.ModRevision <= r.CreateRevision {
		return ""
	}
	return p.value.Node
}

// closed reports whether an operator excluded a node, from all routes or from one.
func (t *tables) closed(node, route string) bool {
	c := t.cordons.rows[node].value
	uid, named := c.Routes[route]
	return c.Exclude || named && uid == t.routes.rows[route].value.UID
}
