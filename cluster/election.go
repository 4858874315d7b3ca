package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/mqbridge/mqb/lease"
)

// election makes at most one node the scheduler. The leader's key is bound to
// the node's lease and names a term, which comes from a counter and is never
// given twice. Leadership is only a hint: what makes a frozen leader harmless is
// that each of its writes compares the key's revision (guard). Not safe for
// concurrent use.
type election struct {
	coordinator lease.Coordinator
	keys        lease.Keys
	session     *lease.Session
	node        string
	log         *slog.Logger

	term int64
	rev  int64 // ModRevision of our leader key; 0 while we do not lead
}

// guard holds as long as this leadership does.
func (e *election) guard() []lease.Compare {
	return []lease.Compare{lease.ModRevisionIs(e.keys.Scheduler(), e.rev)}
}

func (e *election) leads() bool { return e.rev != 0 }

// current is who leads, as the mirror has it.
func (e *election) current(s lease.Snapshot) (leader lease.Leader, rev int64) {
	kv, ok := s.Get(e.keys.Scheduler())
	if !ok {
		return lease.Leader{}, 0
	}
	leader, _ = lease.Decode[lease.Leader](kv.Value)
	return leader, kv.ModRevision
}

// deposed gives leadership up if the mirror shows that it is gone.
func (e *election) deposed(s lease.Snapshot) bool {
	if !e.leads() || s.Revision < e.rev {
		return false
	}
	leader, rev := e.current(s)
	if rev == e.rev {
		return false
	}
	e.log.Info("no longer the scheduler", "term", e.term, "leader", leader.Node, "leader_term", leader.Term)
	e.rev = 0
	return true
}

// campaign tries to become the leader of a vacant seat.
func (e *election) campaign(ctx context.Context, s lease.Snapshot) error {
	// The lease is read once, and before the gate: one that ended in between is
	// refused by the coordinator, and a seat without a lease would never be vacant
	// again.
	id := e.session.Lease()
	if _, rev := e.current(s); rev != 0 || id == 0 || e.session.Gate() != nil {
		return nil
	}
	var term, termRev int64
	if kv, ok := s.Get(e.keys.SchedulerTerm()); ok {
		var err error
		if term, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
			return fmt.Errorf("scheduler term: %w", err)
		}
		termRev = kv.ModRevision
	}
	term++
	res, err := e.coordinator.Txn(ctx,
		[]lease.Compare{lease.Absent(e.keys.Scheduler()), lease.ModRevisionIs(e.keys.SchedulerTerm(), termRev)},
		[]lease.Op{
			lease.PutLeased(e.keys.Scheduler(), lease.Encode(lease.Leader{Node: e.node, Term: term}), id),
			lease.Put(e.keys.SchedulerTerm(), strconv.AppendInt(nil, term, 10)),
		})
	if err != nil {
		return err // if it was written all the same, reclaim finds it
	}
	if res.Succeeded {
		e.won(term, res.Revision)
	}
	return nil
}

// reclaim takes up leadership that a campaign with a lost reply left behind: a
// leader that does not know that it leads would leave the cluster without one.
func (e *election) reclaim(s lease.Snapshot) {
	kv, ok := s.Get(e.keys.Scheduler())
	if !ok || e.leads() || e.session.Gate() != nil || kv.Lease != e.session.Lease() {
		return
	}
	if leader, err := lease.Decode[lease.Leader](kv.Value); err == nil && leader.Node == e.node {
		e.won(leader.Term, kv.ModRevision)
	}
}

func (e *election) won(term, rev int64) {
	e.term, e.rev = term, rev
	e.log.Info("this node is the scheduler", "term", term)
}

// lost is called when a guarded write was refused.
func (e *election) lost() {
	e.log.Warn("scheduler's write refused: another leads", "term", e.term)
	e.rev = 0
}

// resign leaves the seat, so that another takes it at once.
func (e *election) resign(ctx context.Context) error {
	if !e.leads() {
		return nil
	}
	guard := e.guard()
	e.rev = 0
	if _, err := e.coordinator.Txn(ctx, guard, []lease.Op{lease.Delete(e.keys.Scheduler())}); err != nil {
		return fmt.Errorf("resign as scheduler: %w", err)
	}
	e.log.Info("resigned as scheduler", "term", e.term)
	return nil
}
