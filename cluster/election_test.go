package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

func TestLeaderKilledInTheMiddleOfItsWritesIsSucceeded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.set("r", numbered(350)...)
		leader := w.start("n1")
		w.await(soon, func(v view) error {
			if v.leader.Node != "n1" {
				return errors.New("n1 does not lead")
			}
			return nil
		})
		w.start("n2")
		w.start("n3")
		n := 0
		stuck := leader.client.freezeBefore(func(ops []lease.Op) bool {
			if strings.HasPrefix(ops[0].Key, w.keys.Assignments()) {
				n++
			}
			return n == 3
		})
		w.route("r")
		<-stuck
		if v := w.await(soon, func(v view) error {
			if len(v.assigned) == 0 {
				return errors.New("nothing assigned")
			}
			return nil
		}); len(v.assigned) == 350 {
			t.Fatal("all was written before the kill")
		}
		leader.client.SetAvailable(false)
		w.kill("n1")
		v := w.await(soon, spread(350, "n2", "n3"))
		if v.leader.Term != 2 {
			t.Errorf("term %d, want the next one", v.leader.Term)
		}
	})
}

func TestFrozenLeadersWriteIsRefusedAfterItWokeUp(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(12)
		old := w.members[w.view().leader.Node]
		term := w.view().leader.Term
		// It decides on a drain, and freezes right before it writes.
		stuck := old.client.freezeBefore(func(ops []lease.Op) bool { return strings.HasPrefix(ops[0].Key, w.keys.Assignments()) })
		drained := "n1"
		if old.cfg.Name == "n1" {
			drained = "n2"
		}
		w.put(w.keys.Cordon(drained), lease.Encode(lease.Cordon{Drain: true}))
		<-stuck
		// While it is frozen the operator changes his mind, and another leads.
		w.delete(w.keys.Cordon(drained))
		w.await(soon, func(v view) error {
			if v.leader.Term <= term {
				return errors.New("no new leader")
			}
			return nil
		})
		settled := w.quiet(time.Second)
		old.client.thaw()
		w.await(soon, spread(12, "n1", "n2", "n3")) // it comes back as a follower
		for kv := range w.see.Snapshot().All(w.keys.Assignments()) {
			a, _ := lease.Decode[lease.Assignment](kv.Value)
			if a.Term == term && a.Node != settled.assigned[w.key(kv)] {
				t.Errorf("%s was written by the frozen leader: %s", kv.Key, kv.Value)
			}
		}
		if v := w.view(); v.leader.Node == old.cfg.Name {
			t.Errorf("leads again: %+v", v.leader)
		}
	})
}

func (w *world) key(kv lease.KV) plan.Key {
	r, p, _ := w.keys.SplitPartition(kv.Key)
	return plan.Key{Route: r, Partition: p}
}

func TestDrainedLeaderLeavesItsSeat(t *testing.T) {
	inBubble(t, func(w *world) {
		leader := w.three(9).leader
		w.put(w.keys.Cordon(leader.Node), lease.Encode(lease.Cordon{Drain: true}))
		v := w.await(soon, func(v view) error {
			if v.leader.Node == leader.Node || v.leader.Node == "" {
				return errors.New("still leads")
			}
			if n := v.count(v.owned); n[leader.Node] != 0 || len(v.owned) != 9 {
				return fmt.Errorf("owners %v", n)
			}
			return nil
		})
		if v.leader.Term <= leader.Term {
			t.Errorf("term %d after %d", v.leader.Term, leader.Term)
		}
	})
}

func TestLeaderThatLosesAndWinsItsSeatListsUnderItsNewTerm(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.set("r", "a")
		w.route("r")
		w.start("n1")
		w.await(soon, spread(1, "n1"))
		w.delete(w.keys.Scheduler())
		w.await(soon, func(v view) error {
			if v.leader.Term != 2 {
				return fmt.Errorf("leader %+v", v.leader)
			}
			return nil
		})
		w.inventory.set("r", "a", "b")
		w.await(soon, spread(2, "n1"))
	})
}

func TestCampaignWhoseReplyIsLostStillYieldsALeader(t *testing.T) {
	inBubble(t, func(w *world) {
		w.loses = func(ops []lease.Op) bool { return ops[0].Key == w.keys.Scheduler() }
		w.inventory.set("r", "a")
		w.route("r")
		w.start("n1")
		if v := w.await(soon, spread(1, "n1")); v.leader.Term != 1 {
			t.Errorf("leader %+v", v.leader)
		}
	})
}

func TestLostRepliesChangeNothingInTheEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		dice := rand.New(rand.NewPCG(1, 2))
		lossy := func(call string) memory.Fault {
			switch n := dice.IntN(10); {
			case call != "txn" || n > 4:
				return memory.FaultNone
			case n > 1:
				return memory.FaultLoseReply
			default:
				return memory.FaultRefuse
			}
		}
		w.inventory.set("r", numbered(40)...)
		w.route("r")
		var mu sync.Mutex // of dice
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name).client.SetFault(func(call string) memory.Fault {
				mu.Lock()
				defer mu.Unlock()
				return lossy(call)
			})
		}
		w.await(10*time.Minute, spread(40, "n1", "n2", "n3"))
		terms := map[int64]string{}
		for kv := range w.see.Snapshot().All(w.keys.Assignments()) {
			a, _ := lease.Decode[lease.Assignment](kv.Value)
			terms[a.Term] = kv.Key
		}
		if v := w.view(); v.leader.Node == "" || len(terms) == 0 {
			t.Errorf("leader %+v, terms %v", v.leader, terms)
		}
		for _, m := range w.members {
			m.client.SetFault(nil)
		}
	})
}
