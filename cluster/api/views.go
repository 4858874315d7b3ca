package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mqbridge/mqb/lease"
)

// About is what the spec of a route says, as far as the views need it.
type About struct {
	Enabled       bool
	Input, Output string
	Guarantee     string
	Error         string
}

// Leases joins what is discovered, wanted and held, and what the holders say.
func (s *Snapshot) Leases(about map[string]About) Leases {
	places := map[place]bool{}
	for p := range s.Partitions {
		places[p] = true
	}
	for p := range s.Assignments {
		places[p] = true
	}
	for p := range s.Owners {
		places[p] = true
	}
	reports, unplaced := s.reports(), s.unplaced()
	out := Leases{Leases: make([]Lease, 0, len(places))}
	for p := range places {
		l := s.lease(p, reports, about[p.route])
		if why := unplaced[p]; why != "" && l.State == lease.StateUnassigned {
			l.Reason = why
		}
		out.Leases = append(out.Leases, l)
	}
	for name, err := range s.routeErrors() {
		out.Problems = append(out.Problems, Problem{Route: name, Error: err})
	}
	slices.SortFunc(out.Problems, func(a, b Problem) int { return cmp.Compare(a.Route, b.Route) })
	slices.SortFunc(out.Leases, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), comparePartitions(a.Partition, b.Partition))
	})
	out.Summary = s.summary(len(places))
	return out
}

// unplaced finds why the scheduler could place a partition nowhere.
func (s *Snapshot) unplaced() map[place]string {
	out := map[place]string{}
	for _, p := range s.Statuses[s.Leader.Node].Unplaced {
		out[place{p.Route, p.Partition}] = p.Error
	}
	return out
}

// routeErrors says what nodes cannot do for whole routes.
func (s *Snapshot) routeErrors() map[string]string {
	out := map[string]string{}
	for _, node := range slices.Sorted(maps.Keys(s.Statuses)) {
		for _, r := range s.Statuses[node].Routes {
			if _, exists := s.Routes[r.Route]; exists && out[r.Route] == "" {
				out[r.Route] = node + ": " + r.Error
			}
		}
	}
	return out
}

// reports finds what a node says of a partition.
func (s *Snapshot) reports() map[string]map[place]lease.PartitionStatus {
	out := make(map[string]map[place]lease.PartitionStatus, len(s.Statuses))
	for node, st := range s.Statuses {
		m := make(map[place]lease.PartitionStatus, len(st.Partitions))
		for _, p := range st.Partitions {
			m[place{p.Route, p.Partition}] = p
		}
		out[node] = m
	}
	return out
}

func (s *Snapshot) lease(p place, reports map[string]map[place]lease.PartitionStatus, about About) Lease {
	row := Lease{Route: p.route, Partition: p.partition, Pinned: s.Pins[p].Node, Lag: -1, Guarantee: about.Guarantee}
	fill := func(node string) (lease.PartitionStatus, bool) {
		st, ok := reports[node][p]
		if !ok {
			return st, false
		}
		row.State, row.Position, row.Lag = st.State, st.Position, st.Lag
		row.Since, row.Reason, row.NextTry = st.Since, st.Error, st.NextTry
		row.Guarantee = cmp.Or(st.Guarantee, row.Guarantee)
		counters := st.Counters
		row.Counters = &counters
		return st, true
	}
	if owner, held := s.Owners[p]; held {
		st, reported := fill(owner.Node)
		row.Owner, row.Epoch = owner.Node, owner.Epoch
		if !reported || st.Epoch < owner.Epoch {
			// The owner key is newer than what its holder last said.
			row.State, row.Since, row.Reason = lease.StateAcquiring, time.Time{}, ""
		}
		return row
	}
	a, assigned := s.Assignments[p]
	if assigned {
		if st, reported := fill(a.Node); reported {
			row.Epoch = st.Epoch
			row.Reason = cmp.Or(row.Reason, "assigned to "+a.Node)
			return row
		}
		if _, alive := s.Nodes[a.Node]; alive {
			row.State, row.Reason = lease.StateAcquiring, "assigned to "+a.Node+", which has not taken it yet"
			return row
		}
	}
	row.State, row.Reason = s.unassigned(p, about)
	if assigned && row.State == lease.StateUnassigned {
		row.Reason = "assigned to " + a.Node + ", which is gone; " + row.Reason
	}
	return row
}

// unassigned says why nobody holds a partition.
func (s *Snapshot) unassigned(p place, about About) (lease.State, string) {
	r, exists := s.Routes[p.route]
	pin := s.Partitions[p].Node
	switch {
	case !exists:
		return lease.StateUnassigned, "the route was deleted"
	case r.Paused:
		return lease.StatePaused, "paused by an operator"
	case !about.Enabled:
		return lease.StatePaused, "enabled: false"
	case len(s.Nodes) == 0:
		return lease.StateUnassigned, "no live nodes"
	case pin != "":
		if _, alive := s.Nodes[pin]; !alive {
			return lease.StateUnassigned, "its data is on node " + pin + ", which is gone"
		}
		if s.Cordons[pin].Drain {
			return lease.StateUnassigned, "its data is on node " + pin + ", which is drained"
		}
	case s.schedulable() == 0:
		return lease.StateUnassigned, "all nodes are drained"
	}
	if s.Leader.Node == "" {
		return lease.StateUnassigned, "no scheduler is elected"
	}
	return lease.StateUnassigned, "waiting for the scheduler"
}

func (s *Snapshot) schedulable() (n int) {
	for name := range s.Nodes {
		if !s.Cordons[name].Drain && !s.Nodes[name].Leaving {
			n++
		}
	}
	return n
}

func (s *Snapshot) summary(partitions int) Summary {
	busy := s.held()
	sum := Summary{Nodes: len(s.Nodes), Partitions: partitions, Owned: len(s.Owners)}
	for name := range s.Nodes {
		if busy[name] == 0 {
			sum.IdleNodes++
		}
	}
	sum.Text = fmt.Sprintf("%s, %s", count(sum.Nodes, "node"), count(partitions, "partition"))
	switch {
	case sum.Nodes > partitions && sum.IdleNodes == 1:
		sum.Text += ": 1 node has nothing to do"
	case sum.Nodes > partitions && sum.IdleNodes > 1:
		sum.Text += fmt.Sprintf(": %d nodes have nothing to do", sum.IdleNodes)
	case sum.Owned < partitions:
		sum.Text += fmt.Sprintf(", %d not owned", partitions-sum.Owned)
	}
	return sum
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// held counts owner records by node.
func (s *Snapshot) held() map[string]int {
	out := map[string]int{}
	for _, o := range s.Owners {
		out[o.Node]++
	}
	return out
}

// NodesView lists the live nodes, and dead ones that an order is noted for or that
// are still members of the embedded raft. voters names its members and says who
// votes; nil if there is none.
func (s *Snapshot) NodesView(voters map[string]bool) Nodes {
	held := s.held()
	// What is assigned to a draining node may still be acquired by it.
	wanted := map[string]bool{}
	for _, a := range s.Assignments {
		wanted[a.Node] = true
	}
	out := Nodes{Nodes: make([]Node, 0, len(s.Nodes))}
	for name, n := range s.Nodes {
		v := Node{
			Name: name, Address: n.Address, Version: n.Version, Instance: n.Instance,
			Labels: n.Labels, Started: n.Started, State: NodeActive,
			Partitions: held[name], Scheduler: s.Leader.Node == name, Voter: voters[name],
			Settles: s.Statuses[s.Leader.Node].Settling[name],
		}
		switch {
		case s.Cordons[name].Drain && held[name] == 0 && !wanted[name]:
			v.State = NodeDrained
		case s.Cordons[name].Drain, n.Leaving:
			v.State = NodeDraining
		}
		out.Nodes = append(out.Nodes, v)
	}
	gone := map[string]bool{}
	for name := range s.Cordons {
		gone[name] = true
	}
	for name := range voters {
		gone[name] = true
	}
	for name := range gone {
		if _, alive := s.Nodes[name]; !alive {
			out.Nodes = append(out.Nodes, Node{Name: name, State: NodeGone, Partitions: held[name], Voter: voters[name]})
		}
	}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Excluded = s.Cordons[n.Name].Exclude
		for name, uid := range s.Cordons[n.Name].Routes {
			if s.Routes[name].UID == uid {
				n.ExcludedRoutes = append(n.ExcludedRoutes, name)
			}
		}
		slices.Sort(n.ExcludedRoutes)
	}
	slices.SortFunc(out.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// RoutesView lists the routes, each with the worst state of its partitions.
func (s *Snapshot) RoutesView(about map[string]About) Routes {
	byRoute := map[string][]Lease{}
	for _, l := range s.Leases(about).Leases {
		byRoute[l.Route] = append(byRoute[l.Route], l)
	}
	problems := s.routeErrors()
	out := Routes{Routes: make([]Route, 0, len(s.Routes))}
	for _, name := range slices.Sorted(maps.Keys(s.Routes)) {
		r, a := s.Routes[name], about[name]
		v := Route{
			Name: name, UID: r.UID, Series: r.Series, Generation: r.Generation,
			Input: a.Input, Output: a.Output, Guarantee: a.Guarantee, Lag: -1, Error: cmp.Or(a.Error, problems[name]),
			State: lease.StateUnassigned,
		}
		if r.Paused || !a.Enabled {
			v.State = lease.StatePaused
		}
		for i, l := range byRoute[name] {
			v.Partitions++
			if l.Owner != "" {
				v.Owned++
			}
			if l.Lag >= 0 {
				v.Lag = max(v.Lag, 0) + l.Lag
			}
			if l.Counters != nil {
				v.Written += l.Counters.Written
			}
			if l.Guarantee != "" {
				v.Guarantee = weaker(v.Guarantee, l.Guarantee)
			}
			if i == 0 || severity[l.State] > severity[v.State] {
				v.State = l.State
			}
			if v.Error == "" && severity[l.State] >= severity[lease.StateSuspended] {
				v.Error = l.Reason
			}
		}
		out.Routes = append(out.Routes, v)
	}
	return out
}

// severity orders states by how much a person should know of them.
var severity = map[lease.State]int{
	lease.StateDone:        0,
	lease.StateRunning:     1,
	lease.StatePaused:      2,
	lease.StateDraining:    3,
	lease.StateOpening:     4,
	lease.StateClaiming:    5,
	lease.StateAcquiring:   6,
	lease.StateUnassigned:  7,
	lease.StateSuspended:   8,
	lease.StateWedged:      9,
	lease.StateQuarantined: 10,
}
