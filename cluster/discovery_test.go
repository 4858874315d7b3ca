package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
)

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

// A server may count wrong passwords, and nobody's asking again mends them.
func TestSourceThatOnlyAHandCanMendIsAskedRarelyUntilItsRouteChanges(t *testing.T) {
	inBubble(t, func(w *world) {
		var mu sync.Mutex
		var asked []time.Time
		w.inventory.serve("r", func(string) ([]connectors.Partition, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, time.Now())
			return nil, connectors.Permanent(errors.New("password refused"), "")
		})
		times := func() []time.Time {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(asked)
		}
		w.start("n1")
		w.route("r")
		w.quiet(10 * time.Minute)
		tries := times()
		if n := len(tries); n < 6 || n > 20 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		for i := range tries[1:] {
			if d := tries[i+1].Sub(tries[i]); d > 2*time.Minute {
				t.Errorf("not asked for %v", d)
			}
		}
		w.inventory.set("mended", "p")
		w.route("r", func(r *lease.Route) {
			r.Generation = 2
			r.Spec = strings.Replace(r.Spec, "name: r", "name: mended", 1)
		})
		w.await(time.Second, spread(1, "n1"))
	})
}

// A directory on a server that is gone answers no call, whatever its context says.
func TestASourceThatHangsKeepsNeitherAStopNorTheNextElectionWaiting(t *testing.T) {
	inBubble(t, func(w *world) {
		back := make(chan struct{})
		defer close(back)
		w.inventory.serve("hung", func(string) ([]connectors.Partition, error) {
			<-back
			return []connectors.Partition{{ID: "late"}}, nil
		})
		w.route("hung")
		v := w.three(6)
		leader := w.members[v.leader.Node]
		began := time.Now()
		if err := leader.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the leader stopped after %v", d)
		}
		delete(w.members, leader.cfg.Name)
		rest := slices.Collect(maps.Keys(w.members))
		w.await(soon, spread(6, rest...))
	})
}
