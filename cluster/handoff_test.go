package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

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
