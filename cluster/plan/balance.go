package plan

import (
	"cmp"
	"slices"
)

// balance moves partitions from the heaviest nodes to the lightest that may have
// them while that evens the two.
//
// It ends: each move lowers the sum of squared loads. With one scope a donor that
// has nothing to give to the lightest node has nothing to give to any, and stays
// so unless it receives, since the lightest load never falls. With several the
// lightest of one may fall as a donor in another, so every donor is asked again.
func (p *planner) balance() {
	movable := make([][]int, len(p.nodes))
	for i := range p.parts {
		part := &p.parts[i]
		if part.at != none && p.movable(part) {
			movable[part.at] = append(movable[part.at], i)
		}
	}
	exhausted := make([]bool, len(p.nodes))
	for round := 0; ; round++ {
		donor := none
		for n := range p.nodes {
			if !exhausted[n] && len(movable[n]) > 0 && (donor == none || p.load[n] > p.load[donor]) {
				donor = n
			}
		}
		if donor == none {
			return
		}
		pick, to := p.pick(movable[donor], donor, round)
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
		if p.scopes > 1 {
			clear(exhausted)
		}
	}
}

// movable reports whether balance may take a partition from where it is.
func (p *planner) movable(part *partition) bool {
	return part.Node == "" && p.pin(part) == none && part.wedged == none && !part.handingOff() &&
		!p.leaves(part, part.at) && !part.scope.closed[part.at]
}

// pick chooses which of the donor's partitions evens the load best, and to which
// node; among equals one of the route that leans most to the donor. none if no
// move helps.
func (p *planner) pick(movable []int, donor, round int) (best, to int) {
	best, bestGain, bestLean := none, 0, 0
	for k, i := range movable {
		part := &p.parts[i]
		n := p.lightest(part.scope, round)
		if n == none {
			continue
		}
		// Half of what the move takes off the sum of squared loads.
		gain := part.Weight * (p.load[donor] - p.load[n] - part.Weight)
		lean := p.routes[donor][part.route] - p.routes[n][part.route]
		if gain > bestGain || gain == bestGain && best != none && lean > bestLean {
			best, to, bestGain, bestLean = k, n, gain, lean
		}
	}
	return best, to
}

// lightest is the receiver of a scope with the least load, looked up once a round.
func (p *planner) lightest(s *scope, round int) int {
	if s.round == round {
		return s.lightest
	}
	s.round, s.lightest = round, none
	if len(s.receivers) > 0 {
		s.lightest = slices.MinFunc(s.receivers, func(a, b int) int { return cmp.Compare(p.load[a], p.load[b]) })
	}
	return s.lightest
}
