package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

const soon = 20 * time.Second // of the bubble's time

// three starts n1 to n3 with one route of so many partitions, and waits until
// they are spread.
func (w *world) three(partitions int) view {
	w.t.Helper()
	w.inventory.set("r", numbered(partitions)...)
	w.route("r")
	for _, name := range []string{"n1", "n2", "n3"} {
		w.start(name)
	}
	return w.await(soon, spread(partitions, "n1", "n2", "n3"))
}

func (w *world) acquisitions() int {
	n := 0
	for _, e := range w.journal.all() {
		if e.acquire {
			n++
		}
	}
	return n
}

func TestThreeNodesShareAndTakeOver(t *testing.T) {
	inBubble(t, func(w *world) {
		before := w.three(24)
		n := w.acquisitions()
		follower := "n1"
		if before.leader.Node == "n1" {
			follower = "n2"
		}
		w.kill(follower)
		killed := time.Now()
		rest := slices.DeleteFunc([]string{"n1", "n2", "n3"}, func(s string) bool { return s == follower })
		after := w.await(soon, spread(24, rest...))
		if d := time.Since(killed); d > 4*time.Second {
			t.Errorf("taken over %v after the kill, with a TTL of 3 s", d)
		}
		for k, node := range after.assigned {
			if before.assigned[k] != follower && node != before.assigned[k] {
				t.Errorf("%v moved from %s to %s, though %s died", k, before.assigned[k], node, follower)
			}
		}
		if moved := w.acquisitions() - n; moved > 24/3+1 {
			t.Errorf("%d moves", moved)
		}
	})
}

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

func TestHandOffReleasesBeforeTheNextOwnerAcquires(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain.Store(int64(100 * time.Millisecond))
		w.three(30)
		began := time.Now()
		w.put(w.keys.Cordon("n2"), lease.Encode(lease.Cordon{Drain: true}))
		w.await(soon, spread(30, "n1", "n3"))
		released := map[plan.Key]time.Time{}
		holder := map[plan.Key]string{}
		for _, e := range w.journal.all() {
			switch {
			case !e.acquire:
				if e.at.After(began) && e.node != "n2" {
					t.Errorf("%s released %v though it does not drain", e.node, e.key)
				}
				released[e.key] = e.at
				delete(holder, e.key)
			case holder[e.key] != "":
				t.Errorf("%v acquired by %s while %s holds it", e.key, e.node, holder[e.key])
			default:
				if gap := e.at.Sub(released[e.key]); e.at.After(began) && gap > 900*time.Millisecond {
					t.Errorf("%v was without an owner for %v", e.key, gap)
				}
				holder[e.key] = e.node
			}
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("drained after %v", d)
		}
		w.delete(w.keys.Cordon("n2"))
		w.await(soon, spread(30, "n1", "n2", "n3"))
	})
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

func TestFlappingNodeIsNotFollowed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.set("r", numbered(12)...)
		w.route("r")
		w.start("n1")
		w.start("n2")
		w.await(soon, spread(12, "n1", "n2"))
		n := w.acquisitions()
		for range 8 {
			m := w.start("n3")
			w.await(soon, func(v view) error {
				if _, ok := v.nodes["n3"]; !ok {
					return errors.New("not here")
				}
				return nil
			})
			w.quiet(1500 * time.Millisecond)
			if err := m.Stop(context.Background()); err != nil {
				t.Fatal(err)
			}
			delete(w.members, "n3")
		}
		if moved := w.acquisitions() - n; moved != 0 {
			t.Errorf("%d moves after a node that comes and goes", moved)
		}
		w.start("n3")
		w.await(2*time.Minute, spread(12, "n1", "n2", "n3"))
	})
}

func TestDeletedRouteLeavesNothingBehindAndItsNameIsFree(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(9)
		w.delete(w.keys.Route("r"))
		w.await(soon, func(v view) error {
			if len(v.assigned)+len(v.owned)+len(v.partitions) > 0 {
				return errors.New("something is left")
			}
			return nil
		})
		w.inventory.set("r", "a", "b", "c")
		w.route("r", func(r *lease.Route) { r.UID = "again" })
		w.await(soon, spread(3, "n1", "n2", "n3"))
		// Deleted and created again in one breath: the partitions of the first
		// are not the second's.
		w.inventory.set("r", "x", "y", "z")
		if _, err := w.admin.Txn(context.Background(), nil, []lease.Op{lease.Delete(w.keys.Route("r"))}); err != nil {
			t.Fatal(err)
		}
		w.route("r", func(r *lease.Route) { r.UID = "a third" })
		v := w.await(soon, func(v view) error {
			if _, ok := v.partitions[plan.Key{Route: "r", Partition: "x"}]; !ok {
				return errors.New("not listed")
			}
			return spread(3, "n1", "n2", "n3")(v)
		})
		if _, ok := v.owned[plan.Key{Route: "r", Partition: "a"}]; ok || len(v.partitions) != 3 {
			t.Errorf("partitions %v", v.partitions)
		}
	})
}

func TestPausedRouteIsHeldByNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(9)
		w.route("r", func(r *lease.Route) { r.Paused = true })
		w.await(soon, func(v view) error {
			if len(v.assigned)+len(v.owned) > 0 {
				return errors.New("still held")
			}
			return nil
		})
		w.route("r")
		w.await(soon, spread(9, "n1", "n2", "n3"))
	})
}

func TestNewPartitionsAppearWithinSecondsAndVanishedOnesStay(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(3)
		w.quiet(15 * time.Second) // the slow pace
		w.inventory.set("r", append(numbered(3)[1:], "new")...)
		w.await(listEvery+time.Second, spread(4, "n1", "n2", "n3"))
	})
}

func TestNewGenerationDropsPartitionsThatItsSourceDoesNotKnow(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(3)
		w.inventory.set("other", "p-0002", "q")
		w.route("r", func(r *lease.Route) {
			r.Generation = 2
			r.Spec = strings.Replace(r.Spec, "name: r", "name: other", 1)
		})
		v := w.await(soon, func(v view) error {
			if len(v.partitions) != 2 || len(v.owned) != 2 {
				return fmt.Errorf("%d partitions", len(v.partitions))
			}
			return nil
		})
		for k, p := range v.partitions {
			if p.Generation != 2 {
				t.Errorf("%v is of generation %d", k, p.Generation)
			}
		}
	})
}

func TestSourceThatFailsOrPanicsIsItsRoutesErrorAlone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.serve("broken", func(string) ([]connectors.Partition, error) { return nil, errors.New("no broker there") })
		w.inventory.serve("mad", func(string) ([]connectors.Partition, error) { panic("oh") })
		w.route("broken")
		w.route("mad")
		w.route("unreadable", func(r *lease.Route) { r.Spec = "input: {teleport: {}}\n" })
		v := w.three(6)
		w.await(soon, func(v view) error {
			errs := map[string]string{}
			for _, s := range v.statuses {
				for _, r := range s.Routes {
					errs[r.Route] = r.Error
				}
			}
			for name, part := range map[string]string{"broken": "no broker there", "mad": "oh", "unreadable": "teleport"} {
				if !strings.Contains(errs[name], part) {
					return fmt.Errorf("%s: %q", name, errs[name])
				}
			}
			return nil
		})
		w.inventory.set("broken", "b")
		w.await(time.Minute, func(v view) error {
			for _, s := range v.statuses {
				for _, r := range s.Routes {
					if r.Route == "broken" {
						return errors.New("still shown as broken")
					}
				}
			}
			return spread(7, "n1", "n2", "n3")(v)
		})
		_ = v
	})
}

func TestPartitionsOnANodesDiskAreItsOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.serve("local", func(node string) ([]connectors.Partition, error) {
			return []connectors.Partition{{ID: node + "/a.csv", Node: node}, {ID: "b.csv"}}, nil
		})
		w.route("local", func(r *lease.Route) {
			r.Spec = "input: {listed: {name: local, locality: node}}\noutput: {sunk: {}}\n"
		})
		w.start("n1")
		w.start("n2")
		v := w.await(soon, spread(4, "n1", "n2"))
		for k, node := range v.owned {
			if !strings.HasPrefix(k.Partition, node+"/") || v.partitions[k].Node != node {
				t.Errorf("%v is on %s, pinned to %q", k, node, v.partitions[k].Node)
			}
		}
		w.kill("n2")
		leader := "n1"
		w.await(soon, func(v view) error {
			un := v.statuses[leader].Unplaced
			if len(un) != 2 || !strings.Contains(un[0].Error, "its node n2 is not in the cluster") {
				return fmt.Errorf("unplaced: %+v", un)
			}
			return nil
		})
		w.start("n2")
		w.await(soon, spread(4, "n1", "n2"))
	})
}

func TestSinkOnANodesDiskKeepsTheRouteOnOneNode(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := func(r *lease.Route) { r.Spec = "input: {listed: {name: r}}\noutput: {sunk: {locality: node}}\n" }
		w.inventory.set("r", numbered(6)...)
		w.start("n1")
		w.start("n2")
		w.route("r", spec)
		one := func(total int) func(v view) error {
			return func(v view) error {
				if n := v.count(v.owned); len(v.owned) != total || len(n) != 1 {
					return fmt.Errorf("owners %v", n)
				}
				return nil
			}
		}
		before := w.await(soon, one(6))
		w.start("n3")
		w.quiet(10 * time.Second)
		w.inventory.set("r", numbered(8)...)
		after := w.await(soon, one(8))
		if !maps.Equal(before.count(before.owned), map[string]int{after.owned[plan.Key{Route: "r", Partition: "p-0000"}]: 6}) {
			t.Errorf("moved from %v to %v", before.count(before.owned), after.count(after.owned))
		}
	})
}

func TestWedgedOwnerLosesItsPartitionOnlyAfterItsTime(t *testing.T) {
	inBubble(t, func(w *world) {
		v := w.three(6)
		var k plan.Key
		for k = range v.owned {
			break
		}
		was := v.owned[k]
		w.members[was].runner.hang(k)
		hung := time.Now()
		w.await(time.Minute, func(v view) error {
			if o := v.owned[k]; o == was || o == "" {
				return fmt.Errorf("%v is with %q", k, o)
			}
			return nil
		})
		if d := time.Since(hung); d < w.members[was].cfg.EvictAfter {
			t.Errorf("taken away after %v, before the drain's deadline", d)
		}
	})
}

func TestStoppedNodeHandsOverWithoutWaitingForItsLeaseOrItsSlowestPartition(t *testing.T) {
	inBubble(t, func(w *world) {
		w.drain.Store(int64(50 * time.Millisecond))
		w.inventory.set("slow", "s")
		w.route("slow")
		slow := plan.Key{Route: "slow", Partition: "s"}
		w.slow = map[plan.Key]time.Duration{slow: 2 * time.Second}
		w.route("slow")
		w.inventory.set("r", numbered(29)...)
		w.route("r")
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name)
		}
		v := w.await(soon, spread(30, "n1", "n2", "n3"))
		stopped := v.owned[slow]
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- w.members[stopped].Stop(context.Background()) }()
		w.await(soon, func(v view) error {
			if n := v.count(v.owned); n[stopped] != 1 || len(v.owned) != 30 {
				return fmt.Errorf("owners %v", n)
			}
			return nil
		})
		if d := time.Since(began); d > time.Second {
			t.Errorf("all but the slow one handed over after %v", d)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		delete(w.members, stopped)
		after := w.await(soon, func(v view) error {
			if v.owned[slow] == "" || v.owned[slow] == stopped {
				return errors.New("the slow one is with nobody")
			}
			return nil
		})
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("the slow one handed over after %v", d)
		}
		if _, there := after.nodes[stopped]; there {
			t.Error("its node key is still there")
		}
	})
}

func TestSecondProcessOfANameIsRefusedUntilTheFirstIsGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.inventory.set("r", "a")
		w.route("r")
		first := w.start("n1")
		w.await(soon, spread(1, "n1"))
		second := w.start("n1")
		w.quiet(10 * time.Second)
		if err := second.Ready(); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("ready: %v", err)
		}
		if err := first.Ready(); err != nil {
			t.Errorf("the first one suffers: %v", err)
		}
		if err := first.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.await(soon, func(v view) error {
			if v.nodes["n1"].Instance != second.cfg.Instance {
				return errors.New("the second one does not get the name")
			}
			return spread(1, "n1")(v)
		})
	})
}

func TestCutOffNodeComesBackWithNewEpochs(t *testing.T) {
	inBubble(t, func(w *world) {
		v := w.three(9)
		cut := w.members["n1"]
		if v.leader.Node == "n1" {
			cut = w.members["n2"]
		}
		name := cut.cfg.Name
		cut.client.SetAvailable(false)
		rest := slices.DeleteFunc([]string{"n1", "n2", "n3"}, func(s string) bool { return s == name })
		w.await(soon, spread(9, rest...))
		if err := cut.Ready(); err == nil {
			t.Error("ready, though cut off")
		}
		cut.client.SetAvailable(true)
		w.await(time.Minute, spread(9, "n1", "n2", "n3"))
		if err := cut.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		last := map[plan.Key]uint64{}
		for _, e := range w.journal.all() {
			if e.acquire {
				if e.epoch <= last[e.key] {
					t.Errorf("%v: epoch %d after %d", e.key, e.epoch, last[e.key])
				}
				last[e.key] = e.epoch
			}
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

func TestStopWithoutACoordinatorEndsAtItsDeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(6)
		m := w.members["n2"]
		delete(w.members, "n2")
		m.client.SetAvailable(false)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := m.Stop(ctx); err == nil {
			t.Error("stopped in order, without a coordinator")
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("took %v", d)
		}
		w.await(soon, spread(6, "n1", "n3"))
	})
}

func TestSecondSignalEndsAnOrderlyStop(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(6)
		w.drain.Store(int64(time.Hour))
		m := w.members["n2"]
		delete(w.members, "n2")
		began := time.Now()
		stopped := make(chan error, 1)
		go func() { stopped <- m.Stop(context.Background()) }()
		w.await(soon, func(v view) error {
			if !v.nodes["n2"].Leaving {
				return errors.New("not leaving")
			}
			return nil
		})
		m.cancel()
		if err := <-stopped; err == nil {
			t.Error("no error, though partitions were cut off")
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("took %v", d)
		}
		w.await(soon, spread(6, "n1", "n3"))
	})
}
