package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
)

func TestTablesShowOrdersAndWhatWaits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var out bytes.Buffer
	nodesTable(&out, api.Nodes{Nodes: []api.Node{
		{Name: "n1", State: api.NodeActive, Excluded: true},
		{Name: "n2", State: api.NodeActive, Settles: now.Add(time.Second), ExcludedRoutes: []string{"orders"}},
		{Name: "n3", State: api.NodeActive, Settles: now.Add(-time.Second)},
		{Name: "n4", State: api.NodeDraining, Excluded: true},
	}}, now)
	leasesTable(&out, api.Leases{Leases: []api.Lease{
		{Route: "orders", Partition: "a", Owner: "n2", State: lease.StateRunning, Pinned: "n2"},
		{Route: "orders", Partition: "b", Owner: "n2", State: lease.StateQuarantined, Reason: "no such host", NextTry: now.Add(90 * time.Second)},
		{Route: "orders", Partition: "c", Owner: "n2", State: lease.StateQuarantined, Reason: "no such host", NextTry: now.Add(30 * time.Second)},
	}}, now)
	for _, want := range []string{
		"n1 - excluded", "n2 - settling", "n3 - active", "n4 - draining", "n2 is excluded for orders",
		"moved to n2 by an operator: orders/a", "orders b, c: quarantined: no such host (next try in 30s)",
	} {
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestOrdersOnTheCommandLine(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(t, n.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1"}))
	if r := n.ctl(t, "", "apply", "-f", write(t, "r.yaml", plain)); r.code != 0 {
		t.Fatal(r)
	}
	n.put(t, n.keys.Partition("orders", "2026/a"), lease.Encode(lease.Partition{ID: "2026/a"}))
	n.put(t, n.keys.Cordon("n9"), lease.Encode(lease.Cordon{Drain: true}))
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"move orders/2026/a", 2, "either --to NODE or --release"},
		{"move orders/2026/a --to n1 --release", 2, "either --to NODE or --release"},
		{"move orders/nope --to n1", 1, "no partition orders/nope"},
		{"move orders/2026/a --to n9", 1, "node n9: not found among the live ones"},
		{"move orders/2026/a --release", 1, "pin not found"},
		{"exclude n1 --route orders", 0, "n1: exclude done"},
		{"move orders/2026/a --to n1", 5, "include n1 --route orders"},
		{"include n1", 0, "n1: include done"},
		{"move orders/2026/a --to n1 --no-wait", 0, "orders/2026/a: move done"},
		{"move orders/2026/a --to n1 --timeout 300ms", 1, "the order stays"},
		{"move orders/2026/a --release", 0, "orders/2026/a: release done"},
		{"pause orders", 0, "orders: pause done"},
		{"nodes remove n1 --yes", 5, "node n1 lives"},
		{"nodes remove n9", 5, "not confirmed"},
		{"nodes remove n9 --yes", 0, "n9: removed, with 1 orders"},
		{"nodes remove n9 --yes", 1, "nothing is kept of it"},
	} {
		r := n.ctl(t, "", strings.Fields(c.line)...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.says) {
			t.Errorf("mqbctl %s: %+v, want code %d and %q", c.line, r, c.code, c.says)
		}
	}
}
