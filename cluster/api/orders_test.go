package api_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
)

func TestOrdersThroughTheClient(t *testing.T) {
	t.Parallel()
	members := map[string]bool{"n1": true, "n2": true, "n3": false}
	f := newFixture(t, func(c *api.Config) {
		c.Voters = func(context.Context) map[string]bool { return members }
		c.RemoveMember = func(_ context.Context, node string) error {
			delete(members, node)
			return nil
		}
	})
	f.apply(t, file, "")
	ctx := t.Context()
	f.put(t, f.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1"}))
	f.put(t, f.keys.Node("n2"), lease.Encode(lease.Node{Name: "n2"}))
	f.put(t, f.keys.Partition("orders/eu", "p/0"), lease.Encode(lease.Partition{ID: "p/0"}))
	f.put(t, f.keys.Scheduler(), lease.Encode(lease.Leader{Node: "n1", Term: 1}))
	settles := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	f.put(t, f.keys.Status("n1"), lease.Encode(lease.NodeStatus{Node: "n1", Settling: map[string]time.Time{"n2": settles}}))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(f.Move(ctx, "orders/eu", "p/0", "n2"))
	must(f.Exclude(ctx, "n1", ""))
	must(f.Exclude(ctx, "n2", "orders/eu"))
	if err := f.Move(ctx, "orders/eu", "p/0", "n1"); code(err) != api.CodeRefused || !strings.Contains(err.Error(), "excluded") {
		t.Errorf("a move to an excluded node: %v", err)
	}
	if err := f.Move(ctx, "orders/eu", "", "n1"); code(err) != api.CodeUsage {
		t.Errorf("a move of nothing: %v", err)
	}
	ls, err := f.Leases(ctx, "")
	if err != nil || len(ls.Leases) != 1 || ls.Leases[0].Pinned != "n2" {
		t.Errorf("leases %+v %v", ls, err)
	}
	ns, err := f.Nodes(ctx)
	if err != nil || len(ns.Nodes) != 3 {
		t.Fatalf("nodes %+v %v", ns, err)
	}
	n1, n2, n3 := ns.Nodes[0], ns.Nodes[1], ns.Nodes[2]
	if !n1.Excluded || !n1.Settles.IsZero() || n2.Excluded || !slices.Equal(n2.ExcludedRoutes, []string{"orders/eu"}) || !n2.Settles.Equal(settles) {
		t.Errorf("n1 %+v, n2 %+v", n1, n2)
	}
	if n3.State != api.NodeGone || n3.Voter {
		t.Errorf("a member without a lease: %+v", n3)
	}
	must(f.Include(ctx, "n1", ""))
	must(f.Include(ctx, "n2", "orders/eu"))
	must(f.Release(ctx, "orders/eu", "p/0"))

	if _, err := f.RemoveNode(ctx, "n1"); code(err) != api.CodeRefused || !members["n1"] {
		t.Errorf("removal of a node that lives: %v, members %v", err, members)
	}
	if v, err := f.RemoveNode(ctx, "n3"); err != nil || !v.Member {
		t.Errorf("removal: %+v %v", v, err)
	}
	if _, ok := members["n3"]; ok {
		t.Error("n3 is still a member")
	}
	if _, err := f.RemoveNode(ctx, "n3"); code(err) != api.CodeNotFound {
		t.Errorf("removal of nothing: %v", err)
	}
}

// TestNodeIsRemovedFromEtcdsKeysAlone: without an embedded raft there is no
// membership to end.
func TestNodeIsRemovedFromEtcdsKeysAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, f.keys.Cordon("n3"), lease.Encode(lease.Cordon{Drain: true}))
	if v, err := f.RemoveNode(t.Context(), "n3"); err != nil || v.Member || v.Orders != 1 {
		t.Errorf("removal: %+v %v", v, err)
	}
	if ns, err := f.Nodes(t.Context()); err != nil || len(ns.Nodes) != 0 {
		t.Errorf("nodes %+v %v", ns, err)
	}
}
