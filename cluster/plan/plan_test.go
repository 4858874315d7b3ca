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
		})
	}
	someNode := rapid.Map(rapid.IntRange(0, 7), nodeName) // n6, n7 never exist
	for _, p := range partitions(rapid.IntRange(1, 4).Draw(t, "routes"), rapid.IntRange(0, 12).Draw(t, "each")) {
		if rapid.IntRange(0, 5).Draw(t, "pinned") == 0 {
			p.Node = someNode.Draw(t, "pin")
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
		alive, open := map[string]plan.Node{}, 0
		for _, n := range w.in.Nodes {
			alive[n.Name] = n
			if !n.Draining {
				open++
			}
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
				t.Fatalf("%v is on %s but pinned to %s", part.Key, at, part.Node)
			}
			if !ok && part.Node == "" && open > 0 {
				t.Fatalf("%v is on no node, though there are %d", part.Key, open)
			}
		}
		for k := range w.in.Assigned {
			if !wanted[k] {
				t.Fatalf("%v is assigned and not wanted", k)
			}
		}
		for _, c := range p.Changes {
			if alive[c.To].Draining {
				t.Fatalf("%v moved to %s, which is draining", c.Key, c.To)
			}
			if c.From == c.To || c.Reason == "" {
				t.Fatalf("odd change %+v", c)
			}
		}
	})
}

func TestPlanSettlesEvenWithDrainedNodesEmpty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{in: drawInput(t)}
		w.in.Moves = max(w.in.Moves, 1)
		w.settle(t)
		loads := w.loads()
		var open, settled []string
		for _, n := range w.in.Nodes {
			if n.Draining {
				if loads[n.Name] > 0 {
					t.Fatalf("%s drains and holds %d", n.Name, loads[n.Name])
				}
				continue
			}
			open = append(open, n.Name)
			if n.Settled {
				settled = append(settled, n.Name)
			}
		}
		if len(settled) == 0 {
			settled = open
		}
		// No partition could move to a receiver and even the load.
		for _, p := range w.in.Partitions {
			at, ok := w.in.Assigned[p.Key]
			if !ok || p.Node != "" {
				continue
			}
			for _, to := range settled {
				if loads[at]-loads[to] > max(p.Weight, 1) {
					t.Fatalf("%v (weight %d) on %s (%d), though %s has %d", p.Key, p.Weight, at, loads[at], to, loads[to])
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
			if c.Reason == plan.ReasonBalance || c.Reason == plan.ReasonDrain && in.Owners[c.Key] == c.From && c.To != "" {
				byChoice++
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
