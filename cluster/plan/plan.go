// Package plan decides which node holds which partition. It is pure: the same
// input gives the same plan, and nothing here knows of clocks, of the
// coordinator or of who asks. package cluster drives it.
//
// What a plan keeps, in order of precedence:
//
//  1. A pinned partition is on its node or nowhere.
//  2. Nodes that are gone or draining get nothing, and lose what they have: at
//     once where nobody holds the partition, within the move budget where the
//     draining node still does.
//  3. Every other partition is assigned to some node.
//  4. A partition stays where it is (sticky) unless moving it evens the load: it
//     moves from a to b only if load(a) − load(b) > weight. So the loads end
//     within one partition of even, and a join or leave of one node among P
//     partitions on N nodes moves at most ⌈P/N⌉+1 of them.
package plan

import (
	"cmp"
	"slices"
)

// DefaultMoves is the default of Input.Moves. A hand-off costs its partition a
// drain, a commit and a claim; this many at a time keep a full rebalance of a
// thousand partitions within seconds, and leave all others running meanwhile.
const DefaultMoves = 32

// Key names a partition.
type Key struct{ Route, Partition string }

// Compare orders keys by route, then partition.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Route, o.Route), cmp.Compare(k.Partition, o.Partition))
}

// Node is a live member.
type Node struct {
	Name string
	// Settled: alive for so long that partitions may move to it without need.
	// Nodes that just joined, or flap, are not; they keep what they hold, and
	// get more only while no settled node could take it.
	Settled bool
	// Draining: an operator wants it empty.
	Draining bool
}

// Partition is one that wants a node: partitions of paused or deleted routes are
// left out of the input, and so lose their assignment.
type Partition struct {
	Key
	// Node pins it; "" is any.
	Node string
	// Weight in the balance; 0 means 1.
	Weight int
}

// Input is the cluster as the scheduler sees it.
type Input struct {
	Nodes      []Node
	Partitions []Partition
	// Assigned is what the scheduler wrote before.
	Assigned map[Key]string
	// Owners is which live node holds a partition now; absent if none does.
	Owners map[Key]string
	// Wedged is on which node the run of a partition hangs beyond its drain
	// deadline: the partition is better off on any other.
	Wedged map[Key]string
	// Moves is how many partitions may change hands at the same time by choice
	// (balance, drain). Those that are on their way count: assigned to one node,
	// still held by another.
	Moves int
}

// Reason says why an assignment changes.
type Reason string

const (
	// ReasonNew: the partition had no node.
	ReasonNew Reason = "new"
	// ReasonGone: its node left or died.
	ReasonGone Reason = "node gone"
	// ReasonDrain: its node is draining.
	ReasonDrain Reason = "drain"
	// ReasonPinned: it was on another node than the one it is pinned to.
	ReasonPinned Reason = "pinned"
	// ReasonBalance: another node has less to do.
	ReasonBalance Reason = "balance"
	// ReasonWedged: its run hangs on the node it was on.
	ReasonWedged Reason = "wedged"
	// ReasonUnwanted: the partition is gone, or its route is paused or deleted.
	ReasonUnwanted Reason = "not wanted"
)

// Change of one assignment. To == "" takes it away.
type Change struct {
	Key
	From, To string
	Reason   Reason
}

// Unplaced is a partition that no node can hold.
type Unplaced struct {
	Key
	Reason string // for people
}

// Plan is the difference between what is assigned and what should be.
type Plan struct {
	// Changes, in key order.
	Changes []Change
	// Unplaced, in key order.
	Unplaced []Unplaced
	// Deferred says that more would move but for Input.Moves: plan again when an
	// owner changed.
	Deferred bool
}

// none marks a partition that is on no node.
const none = -1

type partition struct {
	Partition
	route    int // index into load.routes
	at       int // planned node, or none
	was      string
	reason   Reason
	owner    int // the live node that holds it, or none
	wedged   int // the live node on which it hangs, or none
	unplaced string
}

type planner struct {
	nodes []Node
	index map[string]int
	parts []partition
	// receivers are the nodes that may get more, by index.
	receivers []int
	load      []int   // weight per node
	routes    [][]int // partitions per node and route
	moves     int     // budget left
	short     bool    // the budget was too small
}

// Compute makes the plan. It is deterministic and does not keep or change in.
// Its own result, applied, needs no further change (unless it is Deferred) until
// a node, a partition or an owner changes.
func Compute(in Input) Plan {
	p := newPlanner(in)
	var waiting []int
	for i := range p.parts {
		if !p.keep(i) {
			waiting = append(waiting, i)
		}
	}
	p.place(waiting)
	p.countHandOffs()
	p.vacate()
	p.balance()
	return p.result(in)
}

func newPlanner(in Input) *planner {
	p := &planner{nodes: slices.Clone(in.Nodes), index: make(map[string]int, len(in.Nodes)), moves: in.Moves}
	slices.SortFunc(p.nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i, n := range p.nodes {
		p.index[n.Name] = i
	}
	p.receivers = openNodes(p.nodes)
	p.parts = make([]partition, len(in.Partitions))
	for i, part := range in.Partitions {
		if part.Weight <= 0 {
			part.Weight = 1
		}
		p.parts[i] = partition{
			Partition: part, at: none, was: in.Assigned[part.Key],
			owner: p.lookup(in.Owners, part.Key), wedged: p.lookup(in.Wedged, part.Key),
		}
	}
	slices.SortFunc(p.parts, func(a, b partition) int { return a.Key.Compare(b.Key) })
	routes := 0
	for i := range p.parts {
		if i > 0 && p.parts[i].Route != p.parts[i-1].Route {
			routes++
		}
		p.parts[i].route = routes
	}
	p.load = make([]int, len(p.nodes))
	p.routes = make([][]int, len(p.nodes))
	for n := range p.routes {
		p.routes[n] = make([]int, routes+1)
	}
	return p
}

// lookup is the live node that m names for k, or none.
func (p *planner) lookup(m map[Key]string, k Key) int {
	if name, ok := m[k]; ok {
		if n, alive := p.index[name]; alive {
			return n
		}
	}
	return none
}

// keep leaves partition i where it is assigned, if it may be there at all. A
// draining node keeps what it holds for now: vacate moves that within the
// budget, since it is running.
func (p *planner) keep(i int) bool {
	part := &p.parts[i]
	n, alive := p.index[part.was]
	switch {
	case part.was == "":
		part.reason = ReasonNew
	case part.Node != "" && part.Node != part.was:
		part.reason = ReasonPinned
	case !alive:
		part.reason = ReasonGone
	case p.nodes[n].Draining && (part.Node != "" || part.owner != n):
		// Nobody else may have it, or the node does not hold it: no hand-off to pay for.
		part.reason = ReasonDrain
	case part.wedged == n && part.Node == "" && slices.ContainsFunc(p.receivers, func(to int) bool { return to != n }):
		part.reason = ReasonWedged
	default:
		p.put(i, n)
		return true
	}
	return false
}

// place finds a node for each partition that has none, heaviest first so that
// the light ones even out what the heavy ones leave.
func (p *planner) place(waiting []int) {
	slices.SortStableFunc(waiting, func(a, b int) int {
		return cmp.Compare(p.parts[b].Weight, p.parts[a].Weight)
	})
	for _, i := range waiting {
		part := &p.parts[i]
		if part.Node != "" {
			if n, ok := p.index[part.Node]; !ok {
				part.unplaced = "its node " + part.Node + " is not in the cluster"
			} else if p.nodes[n].Draining {
				part.unplaced = "its node " + part.Node + " is draining"
			} else {
				p.put(i, n)
			}
			continue
		}
		// Who holds it already need not hand it off.
		if part.owner != none && !p.nodes[part.owner].Draining && part.reason != ReasonWedged {
			p.put(i, part.owner)
			continue
		}
		switch {
		case len(p.receivers) > 0:
			p.put(i, p.lightest(part))
		case len(p.nodes) > 0:
			part.unplaced = "every node is draining"
		default:
			part.unplaced = "the cluster has no node"
		}
	}
}

// openNodes are those that may get more: the settled ones, or, while there is
// none, all that do not drain.
func openNodes(nodes []Node) []int {
	var settled, open []int
	for i, n := range nodes {
		if n.Draining {
			continue
		}
		open = append(open, i)
		if n.Settled {
			settled = append(settled, i)
		}
	}
	if len(settled) > 0 {
		return settled
	}
	return open
}

// lightest is the receiver with the least load; among equals the one with fewest
// partitions of the route, so that a route spreads over the cluster, then by
// name. The node on which the partition hangs comes last.
func (p *planner) lightest(part *partition) int {
	hangs := func(n int) int {
		if n == part.wedged {
			return 1
		}
		return 0
	}
	return slices.MinFunc(p.receivers, func(a, b int) int {
		return cmp.Or(cmp.Compare(hangs(a), hangs(b)), cmp.Compare(p.load[a], p.load[b]),
			cmp.Compare(p.routes[a][part.route], p.routes[b][part.route]))
	})
}

// handingOff: another live node still holds it than the one it is to be on.
func (part *partition) handingOff() bool {
	return part.at != none && part.owner != none && part.owner != part.at
}

// countHandOffs takes the hand-offs that are under way, or that the plan cannot
// avoid, out of the budget.
func (p *planner) countHandOffs() {
	for i := range p.parts {
		if p.parts[i].handingOff() {
			p.moves--
		}
	}
}

// vacate moves partitions off draining nodes, as far as the budget goes. With
// nowhere to go they are taken away all the same: that is what drain asks.
func (p *planner) vacate() {
	for i := range p.parts {
		part := &p.parts[i]
		if part.at == none || !p.nodes[part.at].Draining {
			continue
		}
		if !p.spend() {
			return
		}
		part.reason = ReasonDrain
		p.take(i)
		if len(p.receivers) == 0 {
			part.unplaced = "every node is draining"
			continue
		}
		p.put(i, p.lightest(part))
	}
}

// balance moves partitions from the heaviest node to the lightest while that
// evens them.
//
// It ends: each move lowers the sum of squared loads. A donor that has nothing
// to give to the lightest node has nothing to give to any, and stays so unless
// it receives, since the lightest load never falls.
func (p *planner) balance() {
	if len(p.receivers) == 0 {
		return
	}
	movable := make([][]int, len(p.nodes))
	for i := range p.parts {
		part := &p.parts[i]
		if part.at != none && part.Node == "" && part.wedged == none && !part.handingOff() && !p.nodes[part.at].Draining {
			movable[part.at] = append(movable[part.at], i)
		}
	}
	exhausted := make([]bool, len(p.nodes))
	for {
		donor := none
		for n := range p.nodes {
			if !exhausted[n] && len(movable[n]) > 0 && (donor == none || p.load[n] > p.load[donor]) {
				donor = n
			}
		}
		if donor == none {
			return
		}
		to := slices.MinFunc(p.receivers, func(a, b int) int { return cmp.Compare(p.load[a], p.load[b]) })
		pick := p.pick(movable[donor], donor, to)
		if pick == none {
			exhausted[donor] = true
			continue
		}
		i := movable[donor][pick]
		part := &p.parts[i]
		// What this very plan placed, and nobody holds, moves for nothing.
		if (part.reason == "" || part.owner != none) && !p.spend() {
			return
		}
		movable[donor] = slices.Delete(movable[donor], pick, pick+1)
		p.take(i)
		p.put(i, to)
		part.reason = cmp.Or(part.reason, ReasonBalance)
		if !part.handingOff() {
			movable[to] = append(movable[to], i)
			exhausted[to] = false
		}
	}
}

// pick chooses which of the donor's partitions evens donor and to best; among
// equals one of the route that leans most to the donor. none if no move helps.
func (p *planner) pick(movable []int, donor, to int) int {
	gap := p.load[donor] - p.load[to]
	best, bestGap, bestLean := none, gap, 0
	for k, i := range movable {
		part := &p.parts[i]
		after := max(gap-2*part.Weight, 2*part.Weight-gap)
		lean := p.routes[donor][part.route] - p.routes[to][part.route]
		if after < bestGap || after == bestGap && best != none && lean > bestLean {
			best, bestGap, bestLean = k, after, lean
		}
	}
	return best
}

// spend takes one move of the budget.
func (p *planner) spend() bool {
	if p.moves <= 0 {
		p.short = true
		return false
	}
	p.moves--
	return true
}

func (p *planner) put(i, n int) {
	p.parts[i].at = n
	p.load[n] += p.parts[i].Weight
	p.routes[n][p.parts[i].route]++
}

func (p *planner) take(i int) {
	n := p.parts[i].at
	p.parts[i].at = none
	p.load[n] -= p.parts[i].Weight
	p.routes[n][p.parts[i].route]--
}

func (p *planner) result(in Input) Plan {
	out := Plan{Deferred: p.short}
	wanted := make(map[Key]struct{}, len(p.parts))
	for i := range p.parts {
		part := &p.parts[i]
		wanted[part.Key] = struct{}{}
		to := ""
		if part.at != none {
			to = p.nodes[part.at].Name
		} else {
			out.Unplaced = append(out.Unplaced, Unplaced{Key: part.Key, Reason: part.unplaced})
		}
		if to != part.was {
			out.Changes = append(out.Changes, Change{Key: part.Key, From: part.was, To: to, Reason: part.reason})
		}
	}
	for k, node := range in.Assigned {
		if _, ok := wanted[k]; !ok {
			out.Changes = append(out.Changes, Change{Key: k, From: node, Reason: ReasonUnwanted})
		}
	}
	slices.SortFunc(out.Changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	return out
}
