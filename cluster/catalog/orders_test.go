package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/lease"
)

func (f *fixture) node(t *testing.T, n lease.Node) {
	t.Helper()
	put(t, f.c, f.keys.Node(n.Name), string(lease.Encode(n)))
}

func (f *fixture) list(t *testing.T, p lease.Partition) {
	t.Helper()
	put(t, f.c, f.keys.Partition("r", p.ID), string(lease.Encode(p)))
}

// cordon is what is ordered for a node; the zero value if nothing is.
func (f *fixture) cordon(t *testing.T, node string) (o lease.Cordon, ordered bool) {
	t.Helper()
	kv, _, err := f.c.Get(t.Context(), f.keys.Cordon(node))
	if err != nil {
		t.Fatal(err)
	}
	if kv == nil {
		return o, false
	}
	if o, err = lease.Decode[lease.Cordon](kv.Value); err != nil {
		t.Fatal(err)
	}
	return o, true
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOrdersForANodeAreApartFromEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	ctx := t.Context()
	if err := f.Exclude(ctx, "n1", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("a node that nobody knows: %v", err)
	}
	f.node(t, lease.Node{Name: "n1"})
	if err := f.Exclude(ctx, "n1", "nope"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a route that nobody knows: %v", err)
	}
	must(t, f.Drain(ctx, "n1"))
	must(t, f.Exclude(ctx, "n1", ""))
	must(t, f.Exclude(ctx, "n1", "r"))
	must(t, f.Undrain(ctx, "n1"))
	if o, _ := f.cordon(t, "n1"); o.Drain || !o.Exclude || o.Routes["r"] != f.route(t, "r").UID {
		t.Errorf("undrain left %+v", o)
	}
	var refused *Refusal
	if err := f.Include(ctx, "n1", "r"); !errors.As(err, &refused) || !strings.Contains(refused.Hint, "include n1") {
		t.Errorf("including a route of a node that is excluded from all: %v", err)
	}
	must(t, f.Include(ctx, "n1", ""))
	if o, ordered := f.cordon(t, "n1"); ordered {
		t.Errorf("include left %+v", o)
	}
	must(t, f.Exclude(ctx, "n1", "r"))
	must(t, f.Include(ctx, "n1", "r"))
	if o, ordered := f.cordon(t, "n1"); ordered {
		t.Errorf("include of the route left %+v", o)
	}
}

func TestMoveIsRefusedWhereThePartitionWouldNotGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB, "placement: {labels: {zone: a}, exclude: [n7]}"), ApplyOptions{})
	ctx := t.Context()
	a := map[string]string{"zone": "a"}
	for _, n := range []lease.Node{
		{Name: "n1", Labels: a}, {Name: "n2", Labels: a}, {Name: "n3", Labels: a}, {Name: "n4", Labels: a}, {Name: "n5", Labels: a, Leaving: true},
		{Name: "n6", Labels: map[string]string{"zone": "b"}}, {Name: "n7", Labels: a}, {Name: "n8"},
	} {
		f.node(t, n)
	}
	f.list(t, lease.Partition{ID: "p"})
	f.list(t, lease.Partition{ID: "local", Node: "n1"})
	must(t, f.Drain(ctx, "n2"))
	must(t, f.Exclude(ctx, "n3", ""))
	must(t, f.Exclude(ctx, "n4", "r"))
	for _, c := range []struct{ partition, to, why, hint string }{
		{"p", "n2", "node n2 is draining", "undrain n2"},
		{"p", "n3", "node n3 is excluded", "include n3"},
		{"p", "n4", "excluded for this route", "include n4 --route r"},
		{"p", "n5", "shutting down", ""},
		{"p", "n6", "has the label zone=b, not a", "--label"},
		{"p", "n7", "excluded by the route's placement", "placement"},
		{"p", "n8", "has no label zone=a", "--label"},
		{"local", "n2", "only node n1 can hold it", ""},
	} {
		err := f.Move(ctx, "r", c.partition, c.to)
		var refused *Refusal
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.why) || !strings.Contains(refused.Hint, c.hint) {
			t.Errorf("%s to %s: %v", c.partition, c.to, err)
		}
	}
	for _, c := range [][3]string{{"nope", "p", "n1"}, {"r", "nope", "n1"}, {"r", "p", "n9"}} {
		if err := f.Move(ctx, c[0], c[1], c[2]); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := f.Release(ctx, "r", "p"); !errors.Is(err, ErrNotFound) {
		t.Errorf("release of what is not pinned: %v", err)
	}
	must(t, f.Move(ctx, "r", "p", "n1"))
	kv, _, err := f.c.Get(ctx, f.keys.Pin("r", "p"))
	must(t, err)
	if p, err := lease.Decode[lease.Pin](kv.Value); err != nil || p.Node != "n1" {
		t.Errorf("pin %+v %v", p, err)
	}
	must(t, f.Release(ctx, "r", "p"))
	if kv, _, _ := f.c.Get(ctx, f.keys.Pin("r", "p")); kv != nil {
		t.Error("still pinned")
	}
}

func TestRemovedNodeLeavesNothingAndALivingOneIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	ctx := t.Context()
	f.node(t, lease.Node{Name: "n1", Address: "h:1"})
	f.list(t, lease.Partition{ID: "p"})
	f.list(t, lease.Partition{ID: "n1/a", Node: "n1"})
	f.list(t, lease.Partition{ID: "n2/a", Node: "n2"})
	must(t, f.Move(ctx, "r", "p", "n1"))
	must(t, f.Drain(ctx, "n1"))
	var refused *Refusal
	if _, err := f.RemoveNode(ctx, "n1"); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "lives at h:1") {
		t.Errorf("a node that lives: %v", err)
	}
	if _, err := f.c.Txn(ctx, nil, []lease.Op{lease.Delete(f.keys.Node("n1"))}); err != nil {
		t.Fatal(err)
	}
	got, err := f.RemoveNode(ctx, "n1")
	if err != nil || got != (Forgotten{Orders: 1, Pins: 1, Partitions: 1}) {
		t.Errorf("removed %+v %v", got, err)
	}
	kvs, _, err := f.c.List(ctx, f.keys.Partitions())
	must(t, err)
	if len(kvs) != 2 {
		t.Errorf("partitions left: %v", kvs)
	}
	if got, err := f.RemoveNode(ctx, "n1"); err != nil || got != (Forgotten{}) {
		t.Errorf("again: %+v %v", got, err)
	}
}

// TestRemovalThatANodesReturnOvertakesTakesNothing: the node came back and listed
// its partitions anew while it was being forgotten.
func TestRemovalThatANodesReturnOvertakesTakesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	f.list(t, lease.Partition{ID: "n1/a", Node: "n1"})
	o := &overtaken{Coordinator: f.c, by: func() { f.node(t, lease.Node{Name: "n1"}) }}
	c := New(Config{Coordinator: o, Keys: f.keys, Cluster: "test", Registry: registry()})
	if _, err := c.RemoveNode(t.Context(), "n1"); !errors.Is(err, ErrContended) {
		t.Errorf("removed a node that came back: %v", err)
	}
	if kv, _, err := f.c.Get(t.Context(), f.keys.Partition("r", "n1/a")); err != nil || kv == nil {
		t.Errorf("its partition is gone: %v", err)
	}
}
