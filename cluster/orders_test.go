package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

func labelled(kv ...string) func(*Config) {
	return func(c *Config) {
		c.Labels = map[string]string{}
		for _, s := range kv {
			k, v, _ := strings.Cut(s, "=")
			c.Labels[k] = v
		}
	}
}

// holds asks that all of total partitions are owned as assigned, each node with
// as many as counts says.
func holds(total int, counts map[string]int) func(view) error {
	return func(v view) error {
		got := v.count(v.owned)
		if len(v.owned) != total || len(v.assigned) != total {
			return fmt.Errorf("%d owned, %d assigned of %d", len(v.owned), len(v.assigned), total)
		}
		for node, n := range counts {
			if got[node] != n {
				return fmt.Errorf("owners %v, want %v", got, counts)
			}
		}
		return nil
	}
}

func TestPlacementKeepsARouteOnNodesWithItsLabels(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := func(placement string, generation uint64) func(*lease.Route) {
			return func(r *lease.Route) {
				r.Generation = generation
				r.Spec = "input: {listed: {name: r}}\noutput: {sunk: {}}\nplacement: " + placement + "\n"
			}
		}
		w.inventory.set("r", numbered(6)...)
		w.inventory.set("free", numbered(6)...)
		w.start("n1", labelled("zone=a", "disk=ssd"))
		w.start("n2", labelled("zone=a"))
		w.start("n3", labelled("zone=b", "disk=ssd"))
		w.route("r", spec("{labels: {zone: a}}", 1))
		w.route("free")
		w.await(soon, func(v view) error {
			for k, node := range v.owned {
				if k.Route == "r" && node == "n3" {
					t.Errorf("%v is on n3", k)
				}
			}
			return holds(12, map[string]int{"n1": 4, "n2": 4, "n3": 4})(v)
		})
		// A new generation bars n1: what it holds moves, what is elsewhere stays.
		w.route("r", spec("{labels: {zone: a}, exclude: [n1]}", 2))
		w.await(soon, func(v view) error {
			for k, node := range v.owned {
				if k.Route == "r" && node != "n2" {
					return fmt.Errorf("%v is on %s", k, node)
				}
			}
			return holds(12, nil)(v)
		})
		// Nobody has such a label: shown, with each node's reason.
		w.route("r", spec("{labels: {zone: c}}", 3))
		v := w.await(soon, func(v view) error {
			if n := len(v.statuses[v.leader.Node].Unplaced); n != 6 || len(v.owned) != 6 {
				return fmt.Errorf("%d unplaced, %d owned", n, len(v.owned))
			}
			return nil
		})
		const why = "no node may take it: n1 has the label zone=a, not c, n2 has the label zone=a, not c, n3 has the label zone=b, not c"
		if u := v.statuses[v.leader.Node].Unplaced[0]; u.State != lease.StateUnassigned || u.Error != why {
			t.Errorf("unplaced: %+v", u)
		}
	})
}

func TestExcludedNodeGetsNothingMoreWhateverComes(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(9)
		w.put(w.keys.Cordon("n1"), lease.Encode(lease.Cordon{Exclude: true}))
		w.inventory.set("r", numbered(21)...)
		w.await(soon, holds(21, map[string]int{"n1": 3, "n2": 9, "n3": 9}))
		w.kill("n3")
		w.await(soon, holds(21, map[string]int{"n1": 3, "n2": 18}))
		w.delete(w.keys.Cordon("n1"))
		w.await(soon, spread(21, "n1", "n2"))
	})
}

func TestNodeExcludedForARouteServesTheOthersAndARouteCreatedAnew(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start("n1")
		w.start("n2")
		w.put(w.keys.Cordon("n1"), lease.Encode(lease.Cordon{Routes: map[string]string{"a": "a-uid"}}))
		w.inventory.set("a", numbered(6)...)
		w.inventory.set("b", numbered(6)...)
		w.route("a")
		w.await(soon, holds(6, map[string]int{"n2": 6}))
		w.route("b")
		w.await(soon, holds(12, map[string]int{"n1": 6, "n2": 6}))
		w.delete(w.keys.Route("a"))
		w.await(soon, spread(6, "n1", "n2"))
		w.delete(w.keys.Route("b"))
		w.await(soon, func(v view) error {
			if len(v.owned) > 0 {
				return errors.New("b is still held")
			}
			return nil
		})
		w.route("a", func(r *lease.Route) { r.UID = "another" })
		w.await(soon, spread(6, "n1", "n2"))
	})
}

func TestMovedPartitionStaysUntilItIsReleased(t *testing.T) {
	inBubble(t, func(w *world) {
		v := w.three(9)
		k := plan.Key{Route: "r", Partition: "p-0004"}
		to := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[v.owned[k]]
		at := func(node string) func(view) error {
			return func(v view) error {
				if v.owned[k] != node {
					return fmt.Errorf("%v is with %q, want %s", k, v.owned[k], node)
				}
				return holds(9, nil)(v)
			}
		}
		w.put(w.keys.Pin(k.Route, k.Partition), lease.Encode(lease.Pin{Node: to}))
		w.await(soon, at(to))
		w.await(soon, spread(9, "n1", "n2", "n3")) // another one made room for it
		// A restart of the node is not its end: the partition comes back to it.
		w.kill(to)
		w.await(soon, func(v view) error {
			if v.owned[k] == "" || v.owned[k] == to {
				return errors.New("not taken over")
			}
			return nil
		})
		w.start(to)
		w.await(time.Minute, at(to))
		// Gone for good, it takes the pin with it.
		w.kill(to)
		w.await(2*tenureMemory, func(view) error {
			if _, pinned := w.see.Snapshot().Get(w.keys.Pin(k.Route, k.Partition)); pinned {
				return errors.New("still pinned")
			}
			return nil
		})
	})
}

func TestPinOfADeletedRouteGoesWithIt(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(3)
		pin := w.keys.Pin("r", "p-0000")
		w.put(pin, lease.Encode(lease.Pin{Node: "n2"}))
		w.delete(w.keys.Route("r"))
		w.await(soon, func(view) error {
			if _, there := w.see.Snapshot().Get(pin); there {
				return errors.New("still pinned")
			}
			return nil
		})
	})
}

// A route created again under the name before the scheduler saw it go.
func TestPinOfADeletedRouteIsNotOneOfItsNamesake(t *testing.T) {
	t.Parallel()
	k := plan.Key{Route: "r", Partition: "p"}
	var tables tables
	tables.pins.rows = map[plan.Key]row[lease.Pin]{k: {KV: lease.KV{ModRevision: 5}, value: lease.Pin{Node: "n2"}}}
	for created, want := range map[int64]string{4: "n2", 6: ""} {
		tables.routes.rows = map[string]row[lease.Route]{"r": {KV: lease.KV{CreateRevision: created}}}
		if got := tables.pin(k); got != want {
			t.Errorf("pin of revision 5, route of %d: %q, want %q", created, got, want)
		}
	}
}

func TestLeaderTellsWhichNodesSettle(t *testing.T) {
	inBubble(t, func(w *world) {
		w.three(6)
		w.quiet(10 * time.Second)
		settling := func(node string) func(view) error {
			return func(v view) error {
				got := v.statuses[v.leader.Node].Settling
				if _, ok := got[node]; node == "" && len(got) > 0 || node != "" && !ok {
					return fmt.Errorf("settling: %v", got)
				}
				return nil
			}
		}
		w.await(soon, settling(""))
		m := w.start("n4")
		w.await(time.Second, settling("n4"))
		w.await(soon, settling(""))
		if err := m.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		delete(w.members, "n4")
	})
}
