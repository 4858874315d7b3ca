package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

func TestTenure(t *testing.T) {
	t.Parallel()
	const after = 3 * time.Second
	start := time.Unix(0, 0)
	tn := newTenure("me", after)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	check := func(s int, name string, want bool) {
		t.Helper()
		if got := tn.settled(at(s), name); got != want {
			t.Errorf("at %d s: %s settled %v, want %v", s, name, got, want)
		}
	}
	tn.observe(at(0), map[string]int64{"me": 1, "old": 2})
	check(0, "old", true) // it was here before us
	check(0, "me", false)
	check(3, "me", true)

	tn.observe(at(10), map[string]int64{"me": 1, "old": 2, "new": 3})
	check(12, "new", false)
	check(13, "new", true)
	if next := tn.next(at(10)); !next.Equal(at(13)) {
		t.Errorf("next %v, want 13 s", next.Sub(start))
	}

	tn.observe(at(20), map[string]int64{"me": 1, "old": 2})
	check(20, "new", false)
	tn.observe(at(21), map[string]int64{"me": 1, "old": 2, "new": 4})
	check(26, "new", false) // twice as long after a loss
	check(27, "new", true)
	tn.observe(at(30), map[string]int64{"me": 1, "old": 2, "new": 5}) // gone between two looks
	check(41, "new", false)
	check(42, "new", true)
	for s := range 20 {
		tn.observe(at(50+s), map[string]int64{"me": 1, "old": 2, "new": int64(100 + s)})
	}
	check(69+59, "new", false)
	check(69+60, "new", true) // however often

	tn.observe(at(200), map[string]int64{"me": 1, "old": 2})
	tn.observe(at(200+301), map[string]int64{"me": 1, "old": 2})
	tn.observe(at(600), map[string]int64{"me": 1, "old": 2, "new": 7})
	check(603, "new", true) // forgiven
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	var i inventory
	types := i.registry()
	for _, k := range []struct {
		source, sink route.Locality
		shared       bool
		want         placement
	}{
		{route.Shared, route.Shared, false, anywhere},
		{route.NodeLocal, route.Shared, false, perNode},
		{route.NodeLocal, route.NodeLocal, false, perNode},
		{route.NodeLocal, route.NodeLocal, true, anywhere},
		{route.Shared, route.NodeLocal, false, oneNode},
		{route.Shared, route.NodeLocal, true, anywhere},
		{route.EveryNode, route.Shared, false, perNode},
		{route.EveryNode, route.NodeLocal, true, perNode},
	} {
		spec := &route.Spec{
			Input:         route.Endpoint{Type: "listed", Config: &listedConfig{Locality: string(k.source)}},
			Output:        route.Endpoint{Type: "sunk", Config: &sunkConfig{Locality: string(k.sink)}},
			SharedStorage: k.shared,
		}
		if got := placementOf(spec, types); got != k.want {
			t.Errorf("%s → %s, shared storage %v: %d, want %d", k.source, k.sink, k.shared, got, k.want)
		}
	}
}

// Another node than the one that has the positions on its disk would begin anew.
func TestPlacementFollowsTheStoreOfThePositions(t *testing.T) {
	t.Parallel()
	var i inventory
	types := i.registry()
	for store, want := range map[string]placement{
		"": anywhere, "postgres://h/db": anywhere, "file:///dir": oneNode, "sqlite:///x.db": oneNode,
	} {
		spec := &route.Spec{
			Input:           route.Endpoint{Type: "listed", Config: &listedConfig{Locality: string(route.Shared)}},
			Output:          route.Endpoint{Type: "sunk", Config: &sunkConfig{Locality: string(route.Shared)}},
			CheckpointStore: store,
		}
		if got := placementOf(spec, types); got != want {
			t.Errorf("store %q: %d, want %d", store, got, want)
		}
		if spec.SharedStorage = true; placementOf(spec, types) != anywhere {
			t.Errorf("store %q on shared storage is not anywhere", store)
		}
	}
}

func TestStatusTooLargeKeepsWhatIsLoud(t *testing.T) {
	t.Parallel()
	s := lease.NodeStatus{Node: "n"}
	for i := range 20_000 {
		s.Partitions = append(s.Partitions, lease.PartitionStatus{Route: "r", Partition: fmt.Sprint(i), State: lease.StateRunning})
	}
	s.Partitions[19_000].State, s.Partitions[19_000].Error = lease.StateQuarantined, "no such table"
	value := encodeStatus(s)
	if len(value) > statusBytes {
		t.Fatalf("%d bytes", len(value))
	}
	got, err := lease.Decode[lease.NodeStatus](value)
	if err != nil {
		t.Fatal(err)
	}
	if got.Partitions[0].Error != "no such table" || got.Omitted+len(got.Partitions) != 20_000 || len(got.Partitions) < 1000 {
		t.Errorf("%d kept, %d omitted, first %+v", len(got.Partitions), got.Omitted, got.Partitions[0])
	}
}

// Real time: the cost of planning and writing is what is measured.
func TestTenThousandPartitionsArePlacedAndTakenOver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of both cores")
	}
	runWorld(t, func(w *world) {
		w.inventory.set("big", numbered(10_000)...)
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name)
		}
		w.await(time.Minute, func(v view) error {
			if len(v.nodes) != 3 || v.leader.Node == "" {
				return fmt.Errorf("nodes %v", v.nodes)
			}
			return nil
		})
		w.settle()
		began := time.Now()
		w.route("big")
		w.poll(5*time.Minute, func() bool { return w.count(w.keys.Assignments()) == 10_000 })
		t.Logf("assigned after %v", time.Since(began))
		w.poll(5*time.Minute, func() bool { return w.count(w.keys.Owners()) == 10_000 })
		t.Logf("owned after %v", time.Since(began))
		v := w.await(5*time.Minute, spread(10_000, "n1", "n2", "n3"))
		killed := "n1"
		if v.leader.Node == "n1" {
			killed = "n2"
		}
		w.kill(killed)
		w.poll(5*time.Minute, func() bool { return w.count(w.keys.Owners()) < 10_000 })
		expired := time.Now()
		w.poll(5*time.Minute, func() bool { return w.view().count(w.view().assigned)[killed] == 0 })
		t.Logf("a node's share assigned anew %v after its lease ended", time.Since(expired))
		w.poll(5*time.Minute, func() bool { return w.count(w.keys.Owners()) == 10_000 })
		t.Logf("and owned after %v", time.Since(expired))
	})
}

func (w *world) count(prefix string) (n int) {
	for range w.see.Snapshot().All(prefix) {
		n++
	}
	return n
}

// poll looks rarely enough not to be what is measured.
func (w *world) poll(limit time.Duration, cond func() bool) {
	w.t.Helper()
	tick, deadline := time.NewTicker(50*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("after %v: %s", limit, w.view())
		}
	}
}

// settle waits until every node counts as settled for all others.
func (w *world) settle() {
	w.t.Helper()
	w.await(time.Minute, func(v view) error {
		for _, m := range w.members {
			s := m.Status()
			if s.Ready != nil {
				return s.Ready
			}
		}
		return nil
	})
	w.quiet(4 * time.Second)
}
