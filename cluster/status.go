package cluster

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/mqbridge/mqb/lease"
)

const (
	// statusEvery is the pace of positions, lags and counters.
	statusEvery = 2 * time.Second
	// statusAtOnce bounds the pace of changes of state, which people wait for.
	statusAtOnce = 200 * time.Millisecond
	// statusBytes bounds a status in the coordinator, whose transactions are
	// limited to 1.5 MiB.
	statusBytes = 1 << 20
)

// Status is what a node knows of itself.
type Status struct {
	lease.NodeStatus
	Instance   string
	Cluster    string
	ClusterUID string
	// Leader is the scheduler as this node sees it; zero if there is none.
	Leader lease.Leader
	// Ready is Node.Ready.
	Ready error
}

// Status describes the node now.
func (n *Node) Status() Status {
	s := Status{Instance: n.cfg.Instance, Cluster: n.cfg.Cluster, Ready: n.Ready()}
	s.Leader, _ = n.scheduler.election.current(n.mirrors.scheduler.Snapshot())
	n.mu.Lock()
	s.ClusterUID = n.uid
	runner := n.runner
	n.mu.Unlock()
	s.NodeStatus = n.nodeStatus(runner)
	return s
}

// nodeStatus gathers what all parts of the node say.
func (n *Node) nodeStatus(runner Runner) lease.NodeStatus {
	s := lease.NodeStatus{Node: n.cfg.Name}
	if runner != nil {
		s.Partitions = runner.Status()
	}
	slices.SortFunc(s.Partitions, func(a, b lease.PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Partition, b.Partition))
	})
	n.mu.Lock()
	s.Routes = slices.Collect(maps.Values(n.unreadable))
	n.mu.Unlock()
	s.Routes = append(append(s.Routes, n.local.errors()...), n.scheduler.discovery.errors()...)
	slices.SortFunc(s.Routes, func(a, b lease.RouteStatus) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Error, b.Error))
	})
	told, _ := n.scheduler.reported()
	s.Settling = told.settling
	for _, u := range told.unplaced {
		s.Unplaced = append(s.Unplaced, lease.PartitionStatus{
			Route: u.Route, Partition: u.Partition, State: lease.StateUnassigned, Lag: -1, Error: u.Reason,
		})
	}
	return s
}

// reportStatus writes the node's status until ctx ends: a changed state soon,
// everything else at the slow pace, and nothing that did not change.
func (n *Node) reportStatus(ctx context.Context, runner Runner) {
	r := reporter{node: n, seed: maphash.MakeSeed()}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		n.mu.Lock()
		changed := n.changed
		n.mu.Unlock()
		_, told := n.scheduler.reported()
		ran, session := runner.Changed(), n.session.Changed()
		r.write(ctx, n.nodeStatus(runner))
		select {
		case <-changed:
		case <-told:
		case <-ran:
		case <-session:
		case <-tick.C:
			r.slow = true
		case <-ctx.Done():
			return
		}
		sleep(ctx, min(statusAtOnce, max(0, statusAtOnce-time.Since(r.at))))
	}
}

// reporter remembers what was written last.
type reporter struct {
	node    *Node
	seed    maphash.Seed
	at      time.Time // of the last write
	session uint64    // whose lease it was bound to
	states  uint64    // hash of what is written at once
	value   []byte
	slow    bool // a slow write is due
}

// write writes the status if it is news. What fails is written the next time.
func (r *reporter) write(ctx context.Context, s lease.NodeStatus) {
	n := r.node
	if n.session.Gate() != nil {
		return
	}
	session, id := n.session.Generation(), n.session.Lease()
	states := r.hash(s)
	if session == r.session && states == r.states && !r.slow {
		return
	}
	r.slow = false
	value := encodeStatus(s)
	if session == r.session && bytes.Equal(value, r.value) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := n.cfg.Coordinator.Txn(ctx, nil, []lease.Op{lease.PutLeased(n.keys.Status(n.cfg.Name), value, id)}); err != nil {
		n.cfg.Log.Debug("status not written", "error", err)
		return
	}
	r.at, r.session, r.states, r.value = time.Now(), session, states, value
}

// hash covers what people wait for: who runs what, in which state, and errors.
func (r *reporter) hash(s lease.NodeStatus) uint64 {
	var h maphash.Hash
	h.SetSeed(r.seed)
	field := func(s string) {
		_, _ = h.WriteString(s)
		_ = h.WriteByte(0)
	}
	for _, list := range [][]lease.PartitionStatus{s.Partitions, s.Unplaced} {
		for _, p := range list {
			field(p.Route)
			field(p.Partition)
			field(string(p.State))
			field(p.Error)
			maphash.WriteComparable(&h, p.Epoch)
		}
		_ = h.WriteByte(1)
	}
	for _, node := range slices.Sorted(maps.Keys(s.Settling)) {
		field(node)
	}
	for _, e := range s.Routes {
		field(e.Route)
		field(e.Error)
	}
	return h.Sum64()
}

// encodeStatus leaves partitions out, the quiet ones first, until the status
// fits. The owners' keys still say who holds them.
func encodeStatus(s lease.NodeStatus) []byte {
	value := lease.Encode(s)
	if len(value) <= statusBytes {
		return value
	}
	loudFirst := func(a, b lease.PartitionStatus) int {
		quiet := func(p lease.PartitionStatus) int {
			if p.Error == "" && (p.State == lease.StateRunning || p.State == lease.StateDone) {
				return 1
			}
			return 0
		}
		return cmp.Compare(quiet(a), quiet(b))
	}
	s.Partitions = slices.Clone(s.Partitions)
	slices.SortStableFunc(s.Partitions, loudFirst)
	for len(value) > statusBytes && len(s.Partitions)+len(s.Unplaced) > 0 {
		keep := func(n int) int { return n * statusBytes / (len(value) + 1) }
		p, u := keep(len(s.Partitions)), keep(len(s.Unplaced))
		s.Omitted += len(s.Partitions) - p + len(s.Unplaced) - u
		s.Partitions, s.Unplaced = s.Partitions[:p], s.Unplaced[:u]
		value = lease.Encode(s)
	}
	return value
}
