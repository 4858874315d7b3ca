package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

// handoffs remembers since when each partition is held by a node that should
// have released it.
type handoffs map[plan.Key]handoff

type handoff struct {
	owner int64 // ModRevision of the owner key: another one is another hand-off
	due   time.Time
}

// next is when the next hand-off becomes overdue. Those that are overdue already
// wait for the node to die or to report itself wedged, which are changes.
func (h handoffs) next(now time.Time) (at time.Time) {
	for _, o := range h {
		if o.due.After(now) && (at.IsZero() || o.due.Before(at)) {
			at = o.due
		}
	}
	return at
}

// evict takes the ownership record from nodes that should have released it long
// ago and cannot: the run is reported as wedged, or its node is gone. It is safe
// at any time, since the next owner's epoch fences whatever still runs; the wait
// gives an orderly drain its chance.
func (s *scheduler) evict(ctx context.Context, now time.Time, hung map[plan.Key]string) error {
	for k, o := range s.tables.owners.rows {
		a, assigned := s.tables.assignment(k)
		if assigned && a.value.Node == o.value.Node {
			delete(s.handoffs, k)
			continue
		}
		h, known := s.handoffs[k]
		if !known || h.owner != o.ModRevision {
			h = handoff{owner: o.ModRevision, due: now.Add(s.cfg.EvictAfter)}
			s.handoffs[k] = h
		}
		_, alive := s.tables.nodes.rows[o.value.Node]
		if now.Before(h.due) || alive && hung[k] != o.value.Node {
			continue
		}
		rev, err := s.write(ctx, []lease.Compare{lease.ModRevisionIs(o.Key, o.ModRevision)}, []lease.Op{lease.Delete(o.Key)})
		if err != nil || !s.election.leads() {
			return err
		}
		if rev != 0 {
			delete(s.handoffs, k)
			s.log.Warn("ownership taken away", "route", k.Route, "partition", k.Partition, "node", o.value.Node,
				"epoch", o.value.Epoch, "wedged", alive)
			why := "node " + o.value.Node + " is gone"
			if alive {
				why = "node " + o.value.Node + " did not hand it over, and its run ignores its cancellation"
			}
			s.cfg.events.Add(events.Event{Kind: events.TakenAway, Route: k.Route, Partition: k.Partition, Epoch: o.value.Epoch, Text: why})
		}
	}
	for k := range s.handoffs {
		if _, owned := s.tables.owners.rows[k]; !owned {
			delete(s.handoffs, k)
		}
	}
	return nil
}

// statuses is the leader's view of what hangs. Safe for concurrent use.
type statuses struct {
	mirror *lease.Mirror
	prefix string
	keys   lease.Keys

	mu      sync.Mutex
	hung    map[plan.Key]string
	changed chan struct{}
}

func newStatuses(c lease.Coordinator, k lease.Keys, log *slog.Logger) *statuses {
	return &statuses{mirror: lease.NewMirror(c, k.Statuses(), log), prefix: k.Statuses(), keys: k, changed: make(chan struct{})}
}

// wedged is on which node each hanging partition hangs, and a channel that is
// closed when that changes. The map is never changed.
func (s *statuses) wedged() (map[plan.Key]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung, s.changed
}

// run follows the statuses until ctx ends. They change all the time, and only
// what hangs is of interest.
func (s *statuses) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.mirror.Run(ctx) })
	defer wg.Wait()
	for {
		changed := s.mirror.Changed()
		hung := s.find(s.mirror.Snapshot())
		s.mu.Lock()
		if !maps.Equal(hung, s.hung) {
			s.hung = hung
			close(s.changed)
			s.changed = make(chan struct{})
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (s *statuses) find(snapshot lease.Snapshot) map[plan.Key]string {
	hung := map[plan.Key]string{}
	for kv := range snapshot.All(s.prefix) {
		// Almost no status has one, and decoding them all would cost more than
		// the plan.
		if !bytes.Contains(kv.Value, []byte(`"`+lease.StateWedged+`"`)) {
			continue
		}
		node, ok := s.keys.SplitName(kv.Key)
		status, err := lease.Decode[lease.NodeStatus](kv.Value)
		if !ok || err != nil {
			continue
		}
		for _, p := range status.Partitions {
			if p.State == lease.StateWedged {
				hung[plan.Key{Route: p.Route, Partition: p.Partition}] = node
			}
		}
	}
	return hung
}
