// Package plan decides which node holds which partition. It is pure: the same
// input gives the same plan, and nothing here knows of clocks, of the
// coordinator or of who asks. package cluster drives it.
//
// What a plan keeps, in order of precedence:
//
//  1. A partition that is on a node's own disk is on that node or nowhere.
//  2. Nodes that are gone, draining or barred by the route's rule get nothing, and
//     lose what they have: at once where nobody holds the partition, within the
//     move budget where the node still does.
//  3. A partition with a pin is on the node that it names, as long as that one
//     can hold it.
//  4. Excluded nodes get nothing more, and keep what they have.
//  5. Every other partition is assigned to some node.
//  6. A partition stays where it is (sticky) unless moving it evens the load: it
//     moves from a to b only if load(a) − load(b) > weight. So without rules, pins
//     and exclusions the loads end within one partition of even, and a join or
//     leave of one node among P partitions on N nodes moves at most ⌈P/N⌉+1.
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
	// Excluded: it gets nothing more that another node could hold, and keeps what it
	// has; balance neither gives to it nor takes from it.
	Excluded bool
	// Labels that rules may ask for.
	Labels map[string]string
}

// Rule says which nodes may hold the partitions of a route.
type Rule struct {
	// Labels that a node must have, all of them.
	Labels map[string]string
	// Avoid are nodes that must not hold any.
	Avoid []string
	// Closed are nodes that are excluded for this route (see Node.Excluded).
	Closed []string
}

// Partition is one that wants a node: partitions of paused or deleted routes are
// left out of the input, and so lose their assignment.
type Partition struct {
	Key
	// Node is the only one that can hold it; "" is any.
	Node string
	// Pin is where an operator moved it: it is there while that node is here, does
	// not drain and may hold it by its rule, and anywhere otherwise. "" is none.
	Pin string
	// Weight in the balance; 0 means 1.
	Weight int
}

// Input is the cluster as the scheduler sees it.
type Input struct {
	Nodes      []Node
	Partitions []Partition
	// Rules by route; a route without one may be on any node.
	Rules map[string]Rule
	// Assigned is what the scheduler wrote before.
	Assigned map[Key]string
	// Owners is which live node holds a partition now; absent if none does.
	Owners map[Key]string
	// Wedged is on which node the run of a partition hangs beyond its drain
	// deadline: the partition is better off on any other.
	Wedged map[Key]string
	// Moves is how many partitions may change hands at the same time by choice
	// (balance, drain, rules, pins). Those that are on their way count: assigned to one node,
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
	// ReasonPinned: it was on another node than the one whose disk it is on.
	ReasonPinned Reason = "pinned"
	// ReasonPlacement: the route's rule bars its node.
	ReasonPlacement Reason = "placement"
	// ReasonMove: an operator moved it.
	ReasonMove Reason = "move"
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
	route    int // index into planner.routes
	scope    *scope
	at       int // planned node, or none
	was      string
	reason   Reason
	owner    int // the live node that holds it, or none
	wedged   int // the live node on which it hangs, or none
	unplaced string
}

type planner struct {
	nodes  []Node
	index  map[string]int
	parts  []partition
	scopes int     // how many differ
	load   []int   // weight per node
	routes [][]int // partitions per node and route
	moves  int     // budget left
	short  bool    // the budget was too small
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
	p.obey()
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
	routes, scopes := 0, newScopes(p.nodes, in.Rules)
	for i := range p.parts {
		if i > 0 && p.parts[i].Route != p.parts[i-1].Route {
			routes++
		}
		p.parts[i].route, p.parts[i].scope = routes, scopes.of(p.parts[i].Route)
	}
	p.scopes = len(scopes.byRule)
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
// node that drains or is barred keeps what it holds for now: vacate moves that
// within the budget, since it is running.
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
	case p.leaves(part, n) && (part.Node != "" || part.owner != n):
		// Nobody else may have it, or the node does not hold it: no hand-off to pay for.
		part.reason = p.whyLeaves(n)
	case part.wedged == n && part.Node == "" && slices.ContainsFunc(part.scope.receivers, func(to int) bool { return to != n }):
		part.reason = ReasonWedged
	default:
		p.put(i, n)
		return true
	}
	return false
}

// leaves reports whether a partition must not stay on node n.
func (p *planner) leaves(part *partition, n int) bool {
	return p.nodes[n].Draining || part.scope.barred[n] != ""
}

func (p *planner) whyLeaves(n int) Reason {
	if p.nodes[n].Draining {
		return ReasonDrain
	}
	return ReasonPlacement
}

// pin is the node that an operator's pin puts the partition on; none if there is
// no pin or its node cannot have it now. Like balance, a pin does not follow a
// node that flaps.
func (p *planner) pin(part *partition) int {
	n, alive := p.index[part.Pin]
	if part.Pin == "" || !alive || part.Node != "" || p.leaves(part, n) || part.wedged == n {
		return none
	}
	if !p.nodes[n].Settled && part.scope.settled && part.was != part.Pin {
		return none
	}
	return n
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
			} else if why := part.scope.barred[n]; why != "" {
				part.unplaced = "its node " + part.Node + " " + why
			} else { // exclusion is about choices, and here is none
				p.put(i, n)
			}
			continue
		}
		if n := p.pin(part); n != none {
			p.put(i, n)
			continue
		}
		// Who holds it already need not hand it off.
		if part.owner != none && !p.leaves(part, part.owner) && part.reason != ReasonWedged {
			p.put(i, part.owner)
			continue
		}
		p.putLightest(i)
	}
}

// putLightest puts a partition on the receiver with the least load; among equals
// the one with fewest partitions of the route, so that a route spreads over the
// cluster, then by name. The node on which the partition hangs comes last.
func (p *planner) putLightest(i int) {
	part := &p.parts[i]
	if len(part.scope.receivers) == 0 {
		part.unplaced = part.scope.why(p.nodes)
		return
	}
	hangs := func(n int) int {
		if n == part.wedged {
			return 1
		}
		return 0
	}
	p.put(i, slices.MinFunc(part.scope.receivers, func(a, b int) int {
		return cmp.Or(cmp.Compare(hangs(a), hangs(b)), cmp.Compare(p.load[a], p.load[b]),
			cmp.Compare(p.routes[a][part.route], p.routes[b][part.route]))
	}))
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

// obey moves partitions to where operators pinned them, as far as the budget goes.
func (p *planner) obey() {
	for i := range p.parts {
		part := &p.parts[i]
		to := p.pin(part)
		if part.at == none || to == none || to == part.at {
			continue
		}
		// Back to who still holds it, a move is the end of one.
		if to != part.owner && !part.handingOff() && !p.spend() {
			return
		}
		part.reason = ReasonMove
		p.take(i)
		p.put(i, to)
	}
}

// vacate moves partitions off nodes that must not keep them, as far as the
// budget goes. With nowhere to go they are taken away all the same: that is what
// drain, and a rule, ask.
func (p *planner) vacate() {
	for i := range p.parts {
		part := &p.parts[i]
		if part.at == none || !p.leaves(part, part.at) {
			continue
		}
		if !p.spend() {
			return
		}
		part.reason = p.whyLeaves(part.at)
		p.take(i)
		p.putLightest(i)
	}
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
