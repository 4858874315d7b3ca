package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mqbridge/mqb/cluster/plan"
)

// world is a cluster whose nodes obey: settle lets every owner follow its assignment.
type world struct {
	in    plan.Input
	moved int // assignments written
}

func (w *world) apply(p plan.Plan) {
	next := map[plan.Key]string{}
	maps.Copy(next, w.in.Assigned)
	w.in.Assigned = next
	for _, c := range p.Changes {
		if c.To == "" {
			delete(w.in.Assigned, c.Key)
			continue
		}
		w.in.Assigned[c.Key] = c.To
		w.moved++
	}
}

// follow lets the owners catch up with the assignments.
func (w *world) follow() { w.in.Owners = maps.Clone(w.in.Assigned) }

// settle plans and obeys until nothing changes.
func (w *world) settle(t fataler) {
	t.Helper()
	for range 10_000 {
		p := plan.Compute(w.in)
		if len(p.Changes) == 0 {
			if maps.Equal(w.in.Owners, w.in.Assigned) {
				if p.Deferred {
					t.Fatalf("deferred, but nothing is on its way")
				}
				return
			}
			w.follow()
			continue
		}
		w.apply(p)
		w.follow()
	}
	t.Fatalf("no fixed point")
}

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func (w *world) loads() map[string]int {
	weights := map[plan.Key]int{}
	for _, p := range w.in.Partitions {
		weights[p.Key] = max(p.Weight, 1)
	}
	loads := map[string]int{}
	for k, n := range w.in.Assigned {
		loads[n] += weights[k]
	}
	return loads
}

func (w *world) drop(node string) {
	w.in.Nodes = slices.DeleteFunc(slices.Clone(w.in.Nodes), func(n plan.Node) bool { return n.Name == node })
	w.in.Owners = maps.Clone(w.in.Owners)
	maps.DeleteFunc(w.in.Owners, func(_ plan.Key, n string) bool { return n == node })
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

func partitions(routes, each int) []plan.Partition {
	var out []plan.Partition
	for r := range routes {
		for p := range each {
			out = append(out, plan.Partition{Key: plan.Key{Route: fmt.Sprintf("r%d", r), Partition: fmt.Sprintf("p%d", p)}})
		}
	}
	return out
}

func nodes(n int) []plan.Node {
	var out []plan.Node
	for i := range n {
		out = append(out, plan.Node{Name: nodeName(i), Settled: true})
	}
	return out
}

// drawInput is any cluster, in any state: assignments to nodes that are gone,
// owners that disagree, pins to nobody.
func drawInput(t *rapid.T) plan.Input {
	in := plan.Input{
		Assigned: map[plan.Key]string{},
		Owners:   map[plan.Key]string{},
		Moves:    rapid.IntRange(0, 40).Draw(t, "moves"),
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "nodes") {
		in.Nodes = append(in.Nodes, plan.Node{
			Name:     nodeName(i),
			Settled:  rapid.IntRange(0, 3).Draw(t, "settled") > 0,
			Draining: rapid.IntRange(0, 4).Draw(t, "draining") == 0,
			Excluded: rapid.IntRange(0, 7).Draw(t, "excluded") == 0,
			Labels:   map[string]string{"zone": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")},
		})
	}
	someNode := rapid.Map(rapid.IntRange(0, 7), nodeName) // n6, n7 never exist
	in.Rules = map[string]plan.Rule{}
	for r := range 4 {
		rule := plan.Rule{}
		if rapid.IntRange(0, 3).Draw(t, "labelled") == 0 {
			rule.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "wanted zone")}
		}
		if rapid.IntRange(0, 5).Draw(t, "avoids") == 0 {
			rule.Avoid = []string{someNode.Draw(t, "avoided")}
		}
		if rapid.IntRange(0, 5).Draw(t, "closes") == 0 {
			rule.Closed = []string{someNode.Draw(t, "closed")}
		}
		in.Rules[fmt.Sprintf("r%d", r)] = rule
	}
	for _, p := range partitions(rapid.IntRange(1, 4).Draw(t, "routes"), rapid.IntRange(0, 12).Draw(t, "each")) {
		if rapid.IntRange(0, 5).Draw(t, "pinned") == 0 {
			p.Node = someNode.Draw(t, "disk")
		}
		if rapid.IntRange(0, 5).Draw(t, "moved") == 0 {
			p.Pin = someNode.Draw(t, "pin")
		}
		p.Weight = rapid.SampledFrom([]int{0, 1, 1, 1, 2, 5}).Draw(t, "weight")
		if rapid.Bool().Draw(t, "assigned") {
			in.Assigned[p.Key] = someNode.Draw(t, "assignee")
		}
		if rapid.Bool().Draw(t, "owned") {
			in.Owners[p.Key] = someNode.Draw(t, "owner")
		}
		if rapid.IntRange(0, 9).Draw(t, "wanted") > 0 {
			in.Partitions = append(in.Partitions, p)
		}
	}
	return in
}

// mayHold is the rule, told apart from the plan's own reading of it.
func mayHold(r plan.Rule, n plan.Node) bool {
	for k, v := range r.Labels {
		if n.Labels[k] != v {
			return false
		}
	}
	return !slices.Contains(r.Avoid, n.Name)
}

// mayGet: mayHold, and no order of an operator is against it.
func mayGet(r plan.Rule, n plan.Node) bool {
	return mayHold(r, n) && !n.Draining && !n.Excluded && !slices.Contains(r.Closed, n.Name)
}

// pinned reports whether the pin of a partition holds.
func pinned(in plan.Input, p plan.Partition) bool {
	if p.Node != "" || p.Pin == "" {
		return false
	}
	for _, n := range in.Nodes {
		if n.Name == p.Pin {
			return !n.Draining && mayHold(in.Rules[p.Route], n)
		}
	}
	return false
}

func TestPlanIsDeterministicWhateverTheOrderOfItsInput(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want := fmt.Sprint(plan.Compute(in))
		other := in
		other.Nodes = slices.Clone(in.Nodes)
		other.Partitions = slices.Clone(in.Partitions)
		slices.Reverse(other.Nodes)
		slices.Reverse(other.Partitions)
		if got := fmt.Sprint(plan.Compute(other)); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func TestPlanOfItsOwnResultIsEmpty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: drawInput(t)}
		p := plan.Compute(w.in)
		w.apply(p)
		again := plan.Compute(w.in)
		if len(again.Changes) > 0 && !p.Deferred {
			t.Fatalf("planned again: %+v", again.Changes)
		}
	})
}

func TestPlanPlacesWhatCanBePlacedAndSaysWhyNot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: drawInput(t)}
		p := plan.Compute(w.in)
		w.apply(p)
		alive := map[string]plan.Node{}
		for _, n := range w.in.Nodes {
			alive[n.Name] = n
		}
		unplaced := map[plan.Key]bool{}
		for _, u := range p.Unplaced {
			unplaced[u.Key] = true
			if u.Reason == "" {
				t.Fatalf("%v: unplaced without a reason", u.Key)
			}
		}
		wanted := map[plan.Key]bool{}
		for _, part := range w.in.Partitions {
			wanted[part.Key] = true
			at, ok := w.in.Assigned[part.Key]
			if ok == unplaced[part.Key] {
				t.Fatalf("%v: assigned %v, unplaced %v", part.Key, ok, !ok)
			}
			if ok && alive[at].Name == "" {
				t.Fatalf("%v is on %s, which is gone", part.Key, at)
			}
			if ok && part.Node != "" && part.Node != at {
				t.Fatalf("%v is on %s but its data is on %s", part.Key, at, part.Node)
			}
			if ok && !mayHold(w.in.Rules[part.Route], alive[at]) && !p.Deferred {
				t.Fatalf("%v is on %s, which its rule bars", part.Key, at)
			}
			if n, here := alive[part.Node]; !ok && here && !n.Draining && mayHold(w.in.Rules[part.Route], n) {
				t.Fatalf("%v is on no node, and its own is here", part.Key)
			}
			for _, n := range w.in.Nodes {
				if !ok && part.Node == "" && mayGet(w.in.Rules[part.Route], n) {
					t.Fatalf("%v is on no node, though %s may have it", part.Key, n.Name)
				}
			}
		}
		for k := range w.in.Assigned {
			if !wanted[k] {
				t.Fatalf("%v is assigned and not wanted", k)
			}
		}
		for _, c := range p.Changes {
			i := slices.IndexFunc(w.in.Partitions, func(p plan.Partition) bool { return p.Key == c.Key })
			if c.To != "" && !mayGet(w.in.Rules[c.Route], alive[c.To]) && w.in.Owners[c.Key] != c.To &&
				w.in.Partitions[i].Pin != c.To && w.in.Partitions[i].Node != c.To {
				t.Fatalf("%v moved to %s, which gets nothing", c.Key, c.To)
			}
			if c.To != "" && (alive[c.To].Draining || !mayHold(w.in.Rules[c.Route], alive[c.To])) {
				t.Fatalf("%v moved to %s, which must not have it", c.Key, c.To)
			}
			if c.From == c.To || c.Reason == "" {
				t.Fatalf("odd change %+v", c)
			}
		}
	})
}

func TestPlanSettlesEvenWithOrdersAndRulesObeyed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: drawInput(t)}
		w.in.Moves = max(w.in.Moves, 1)
		before := maps.Clone(w.in.Assigned)
		w.settle(t)
		loads := w.loads()
		nodes := map[string]plan.Node{}
		for _, n := range w.in.Nodes {
			nodes[n.Name] = n
			if n.Draining && loads[n.Name] > 0 {
				t.Fatalf("%s drains and holds %d", n.Name, loads[n.Name])
			}
		}
		for _, p := range w.in.Partitions {
			at, ok := w.in.Assigned[p.Key]
			rule := w.in.Rules[p.Route]
			if ok && !mayHold(rule, nodes[at]) {
				t.Fatalf("%v is on %s, which its rule bars", p.Key, at)
			}
			settled := func(n plan.Node) bool { return mayGet(rule, n) && n.Settled }
			if pinned(w.in, p) && at != p.Pin && (nodes[p.Pin].Settled || !slices.ContainsFunc(w.in.Nodes, settled)) {
				t.Fatalf("%v is on %s and an operator moved it to %s", p.Key, at, p.Pin)
			}
			// An excluded node keeps what it had and held.
			was := nodes[before[p.Key]]
			if was.Name != "" && !pinned(w.in, p) && (was.Excluded || slices.Contains(rule.Closed, was.Name)) &&
				mayHold(rule, was) && !was.Draining && (p.Node == "" || p.Node == was.Name) && at != was.Name {
				t.Fatalf("%v was on %s, which is excluded, and is on %s", p.Key, was.Name, at)
			}
			if !ok || p.Node != "" || pinned(w.in, p) || !mayGet(rule, nodes[at]) {
				continue
			}
			// No partition could move to a receiver and even the load.
			some := slices.ContainsFunc(w.in.Nodes, settled)
			for _, to := range w.in.Nodes {
				if mayGet(rule, to) && to.Settled == some && loads[at]-loads[to.Name] > max(p.Weight, 1) {
					t.Fatalf("%v (weight %d) on %s (%d), though %s has %d", p.Key, p.Weight, at, loads[at], to.Name, loads[to.Name])
				}
			}
		}
	})
}

func TestPlanHandsOffNoMoreThanTheBudgetByChoice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		byChoice := 0
		for _, c := range plan.Compute(in).Changes {
			switch c.Reason {
			case plan.ReasonBalance:
				byChoice++
			case plan.ReasonDrain, plan.ReasonPlacement, plan.ReasonMove:
				if in.Owners[c.Key] == c.From && c.To != "" {
					byChoice++
				}
			}
		}
		if byChoice > in.Moves {
			t.Fatalf("%d moves by choice, budget %d", byChoice, in.Moves)
		}
	})
}

// Equal weights and settled nodes: the bound that operators are promised.
func TestPlanMovesAtMostAShareAndOnePerMembershipChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "nodes")
		w := &world{in: plan.Input{Nodes: nodes(n), Partitions: partitions(rapid.IntRange(1, 5).Draw(t, "routes"), rapid.IntRange(0, 30).Draw(t, "each")), Moves: 3}}
		total := len(w.in.Partitions)
		w.settle(t)
		for range 6 {
			before := len(w.in.Nodes)
			w.moved = 0
			if before > 1 && rapid.Bool().Draw(t, "leave") {
				w.drop(rapid.SampledFrom(w.in.Nodes).Draw(t, "who").Name)
			} else {
				n++
				w.in.Nodes = append(slices.Clone(w.in.Nodes), plan.Node{Name: nodeName(n), Settled: true})
			}
			w.settle(t)
			if limit := (total+min(before, len(w.in.Nodes))-1)/min(before, len(w.in.Nodes)) + 1; w.moved > limit {
				t.Fatalf("%d → %d nodes, %d partitions: %d moves, limit %d", before, len(w.in.Nodes), total, w.moved, limit)
			}
			loads := w.loads()
			lo, hi := total, 0
			for _, node := range w.in.Nodes {
				lo, hi = min(lo, loads[node.Name]), max(hi, loads[node.Name])
			}
			if hi-lo > 1 {
				t.Fatalf("uneven: %v", loads)
			}
		}
	})
}

func TestPlanUnsettledNodeGetsNothingWhileOthersCan(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(2), Partitions: partitions(1, 9), Moves: plan.DefaultMoves}}
	w.settle(t)
	w.in.Nodes = append(w.in.Nodes, plan.Node{Name: "flapping"})
	w.moved = 0
	w.settle(t)
	if w.moved != 0 {
		t.Fatalf("%d moves to a node that just came", w.moved)
	}
	w.drop(nodeName(0))
	w.settle(t)
	if l := w.loads(); l[nodeName(1)] != 9 {
		t.Fatalf("loads %v", l)
	}
	w.drop(nodeName(1))
	w.settle(t)
	if l := w.loads(); l["flapping"] != 9 {
		t.Fatalf("nobody else is left, and still %v", l)
	}
}

func TestPlanGivesAPartitionBackToWhoStillHoldsIt(t *testing.T) {
	t.Parallel()
	k := plan.Key{Route: "r", Partition: "p"}
	in := plan.Input{
		Nodes:      nodes(3),
		Partitions: []plan.Partition{{Key: k}},
		Assigned:   map[plan.Key]string{k: "dead"},
		Owners:     map[plan.Key]string{k: nodeName(2)},
		Moves:      plan.DefaultMoves,
	}
	want := []plan.Change{{Key: k, From: "dead", To: nodeName(2), Reason: plan.ReasonGone}}
	if got := plan.Compute(in).Changes; !slices.Equal(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestPlanTakesAWedgedPartitionElsewhereAndKeepsItThere(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(3), Partitions: partitions(1, 9), Moves: plan.DefaultMoves}}
	w.settle(t)
	k := w.in.Partitions[4].Key
	hangs := w.in.Assigned[k]
	w.in.Wedged = map[plan.Key]string{k: hangs}
	w.settle(t)
	if w.in.Assigned[k] == hangs {
		t.Fatalf("still on %s", hangs)
	}
	w.in.Nodes = []plan.Node{{Name: hangs, Settled: true}}
	w.settle(t)
	if w.in.Assigned[k] != hangs {
		t.Fatalf("the only node left does not get it")
	}
}

func TestPlanExcludedNodeKeepsWhatItHasAndGetsNothing(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(3), Partitions: partitions(1, 9), Moves: plan.DefaultMoves}}
	w.settle(t)
	w.in.Nodes[0].Excluded = true
	w.in.Partitions = partitions(1, 21)
	w.settle(t)
	if l := w.loads(); l[nodeName(0)] != 3 || l[nodeName(1)] != 9 || l[nodeName(2)] != 9 {
		t.Fatalf("loads %v", l)
	}
	// It gives nothing away either, though the others have less to do.
	w.in.Partitions = partitions(1, 3)
	w.in.Assigned = map[plan.Key]string{}
	for _, p := range w.in.Partitions {
		w.in.Assigned[p.Key] = nodeName(0)
	}
	w.follow()
	w.settle(t)
	if l := w.loads(); l[nodeName(0)] != 3 {
		t.Fatalf("loads %v", l)
	}
	// Not even when nobody else is left.
	w.in.Partitions = partitions(1, 21)
	w.drop(nodeName(1))
	w.drop(nodeName(2))
	p := plan.Compute(w.in)
	w.settle(t)
	if l := w.loads(); l[nodeName(0)] != 3 || len(p.Unplaced) != 18 || p.Unplaced[0].Reason != "no node may take it: n0 is excluded" {
		t.Fatalf("loads %v, unplaced %+v", l, p.Unplaced)
	}
}

func TestPlanRuleOfARouteHoldsForItAlone(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(4), Partitions: partitions(2, 12), Moves: plan.DefaultMoves}}
	w.settle(t)
	for i := range w.in.Nodes {
		w.in.Nodes[i].Labels = map[string]string{"disk": []string{"ssd", "ssd", "hdd", ""}[i]}
	}
	delete(w.in.Nodes[3].Labels, "disk")
	w.in.Rules = map[string]plan.Rule{"r0": {Labels: map[string]string{"disk": "ssd"}}}
	w.settle(t)
	for k, n := range w.in.Assigned {
		if k.Route == "r0" && n != nodeName(0) && n != nodeName(1) {
			t.Fatalf("%v is on %s", k, n)
		}
	}
	if l := w.loads(); l[nodeName(0)] != 6 || l[nodeName(3)] != 6 {
		t.Fatalf("loads %v", l)
	}
	w.in.Rules["r0"] = plan.Rule{Labels: map[string]string{"disk": "nvme"}}
	p := plan.Compute(w.in)
	w.settle(t)
	const why = "no node may take it: n0 has the label disk=ssd, not nvme, n1 has the label disk=ssd, not nvme, n2 has the label disk=hdd, not nvme, n3 has no label disk=nvme"
	if len(p.Unplaced) != 12 || p.Unplaced[0].Reason != why {
		t.Fatalf("unplaced %+v", p.Unplaced)
	}
}

func TestPlanPinHoldsUntilItsNodeIsGone(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(3), Partitions: partitions(1, 9), Moves: 1}}
	w.settle(t)
	for i := range w.in.Partitions {
		w.in.Partitions[i].Pin = nodeName(2) // all of them: unevenness is what the operator wants
	}
	for range 6 {
		p := plan.Compute(w.in)
		if len(p.Changes) > 1 {
			t.Fatalf("%d moves at once, budget 1", len(p.Changes))
		}
		w.apply(p)
		w.follow()
	}
	w.settle(t)
	if l := w.loads(); l[nodeName(2)] != 9 {
		t.Fatalf("loads %v", l)
	}
	w.drop(nodeName(2))
	w.settle(t)
	if l := w.loads(); l[nodeName(0)] == 0 || l[nodeName(0)]+l[nodeName(1)] != 9 {
		t.Fatalf("loads %v", l)
	}
	// It comes back and flaps: the pin does not follow before it has settled.
	w.in.Nodes = append(w.in.Nodes, plan.Node{Name: nodeName(2)})
	w.moved = 0
	w.settle(t)
	if w.moved != 0 {
		t.Fatalf("%d moves to a node that just came back", w.moved)
	}
}

func TestPlanSpreadsEachRoute(t *testing.T) {
	t.Parallel()
	w := &world{in: plan.Input{Nodes: nodes(3), Partitions: partitions(4, 6), Moves: plan.DefaultMoves}}
	w.settle(t)
	per := map[[2]string]int{}
	for k, n := range w.in.Assigned {
		per[[2]string{k.Route, n}]++
	}
	for at, n := range per {
		if n != 2 {
			t.Fatalf("%v holds %d of 6 on 3 nodes", at, n)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	start := &world{in: plan.Input{Nodes: nodes(100), Partitions: partitions(50, 200), Moves: plan.DefaultMoves}}
	start.settle(b)
	b.Run("steady", func(b *testing.B) {
		for b.Loop() {
			plan.Compute(start.in)
		}
	})
	b.Run("from-nothing", func(b *testing.B) {
		in := start.in
		in.Assigned, in.Owners = nil, nil
		for b.Loop() {
			plan.Compute(in)
		}
	})
	b.Run("node-gone", func(b *testing.B) {
		w := *start
		w.drop(nodeName(50))
		for b.Loop() {
			plan.Compute(w.in)
		}
	})
	b.Run("all-on-one", func(b *testing.B) {
		in := start.in
		in.Assigned = map[plan.Key]string{}
		for _, p := range in.Partitions {
			in.Assigned[p.Key] = nodeName(0)
		}
		in.Owners = in.Assigned
		for b.Loop() {
			plan.Compute(in)
		}
	})
}
