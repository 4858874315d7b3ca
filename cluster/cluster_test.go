package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
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
