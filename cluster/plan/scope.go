package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// scope is what a rule makes of the nodes. Routes with equal rules share one.
type scope struct {
	// barred says why the rule bars a node for good; "" if it does not.
	barred []string
	// closed are nodes that get nothing more and keep what they have.
	closed []bool
	// receivers are the nodes that may get more: the settled ones, or, while there
	// is none, all that are open.
	receivers []int
	settled   bool // whether receivers are settled

	unplaced string // why, once somebody asked

	// The receiver with the least load, in which round of balance.
	lightest, round int
}

// scopes makes the scope of each route.
type scopes struct {
	nodes  []Node
	rules  map[string]Rule
	byRule map[string]*scope
}

func newScopes(nodes []Node, rules map[string]Rule) scopes {
	return scopes{nodes: nodes, rules: rules, byRule: map[string]*scope{}}
}

func (s scopes) of(route string) *scope {
	rule := s.rules[route]
	key := rule.key()
	if known, ok := s.byRule[key]; ok {
		return known
	}
	made := newScope(s.nodes, rule)
	s.byRule[key] = made
	return made
}

// key is equal for equal rules.
func (r Rule) key() string {
	if len(r.Labels)+len(r.Avoid)+len(r.Closed) == 0 {
		return ""
	}
	return fmt.Sprintf("%q %q %q", r.wants(), slices.Sorted(slices.Values(r.Avoid)), slices.Sorted(slices.Values(r.Closed)))
}

// wants lists the labels in order.
func (r Rule) wants() []string {
	out := make([]string, 0, len(r.Labels))
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		out = append(out, k+"="+r.Labels[k])
	}
	return out
}

// Bars says why the rule bars a node for good, as a predicate of it ("has no
// label zone=a"); "" if it does not.
func (r Rule) Bars(n Node) string {
	if slices.Contains(r.Avoid, n.Name) {
		return "is excluded by the route's placement"
	}
	for _, want := range r.wants() {
		k, v, _ := strings.Cut(want, "=")
		if has, ok := n.Labels[k]; !ok || has != r.Labels[k] {
			if ok {
				return fmt.Sprintf("has the label %s=%s, not %s", k, has, v)
			}
			return "has no label " + want
		}
	}
	return ""
}

func newScope(nodes []Node, rule Rule) *scope {
	s := &scope{barred: make([]string, len(nodes)), closed: make([]bool, len(nodes)), round: -1}
	var open []int
	for i, n := range nodes {
		s.barred[i] = rule.Bars(n)
		s.closed[i] = n.Excluded || slices.Contains(rule.Closed, n.Name)
		if s.closedTo(nodes, i) != "" {
			continue
		}
		open = append(open, i)
		if n.Settled {
			s.receivers = append(s.receivers, i)
		}
	}
	if s.settled = len(s.receivers) > 0; !s.settled {
		s.receivers = open
	}
	return s
}

// closedTo says why a node gets nothing more, as a predicate of it; "" if it does.
func (s *scope) closedTo(nodes []Node, n int) string {
	switch {
	case nodes[n].Draining:
		return "is draining"
	case s.barred[n] != "":
		return s.barred[n]
	case s.closed[n]:
		return "is excluded"
	}
	return ""
}

// namedNodes bounds the reason of a partition that no node can hold.
const namedNodes = 5

// why says why there is no receiver.
func (s *scope) why(nodes []Node) string {
	if s.unplaced != "" {
		return s.unplaced
	}
	all := len(nodes) > 0
	var each []string
	for i, n := range nodes {
		why := s.closedTo(nodes, i)
		all = all && n.Draining
		each = append(each, n.Name+" "+why)
	}
	switch {
	case len(nodes) == 0:
		s.unplaced = "the cluster has no node"
	case all:
		s.unplaced = "every node is draining"
	default:
		more := ""
		if n := len(each) - namedNodes; n > 0 {
			each, more = each[:namedNodes], fmt.Sprintf(", and %d more", n)
		}
		s.unplaced = "no node may take it: " + strings.Join(each, ", ") + more
	}
	return s.unplaced
}
