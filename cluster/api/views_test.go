package api

import (
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
)

func cluster() *Snapshot {
	return &Snapshot{
		Nodes:       map[string]lease.Node{"n1": {Name: "n1"}, "n2": {Name: "n2"}},
		Cordons:     map[string]lease.Cordon{},
		Routes:      map[string]lease.Route{"orders": {UID: "u", Generation: 2}},
		Partitions:  map[place]lease.Partition{},
		Assignments: map[place]lease.Assignment{},
		Owners:      map[place]lease.Owner{},
		Statuses:    map[string]lease.NodeStatus{},
		Leader:      lease.Leader{Node: "n1", Term: 1},
	}
}

var ordersAbout = map[string]About{"orders": {Enabled: true, Guarantee: "exactly-once"}}

func TestUnassignedPartitionsSayWhy(t *testing.T) {
	t.Parallel()
	p := place{"orders", "orders-0"}
	for name, c := range map[string]struct {
		change func(*Snapshot)
		state  lease.State
		reason string
	}{
		"waiting": {func(*Snapshot) {}, lease.StateUnassigned, "waiting for the scheduler"},
		"no scheduler": {func(s *Snapshot) { s.Leader = lease.Leader{} },
			lease.StateUnassigned, "no scheduler is elected"},
		"no nodes": {func(s *Snapshot) { s.Nodes = nil },
			lease.StateUnassigned, "no live nodes"},
		"paused": {func(s *Snapshot) { s.Routes["orders"] = lease.Route{Paused: true} },
			lease.StatePaused, "paused by an operator"},
		"pinned to a dead node": {func(s *Snapshot) { s.Partitions[p] = lease.Partition{Node: "n9"} },
			lease.StateUnassigned, "its data is on node n9, which is gone"},
		"pinned to a drained node": {func(s *Snapshot) {
			s.Partitions[p] = lease.Partition{Node: "n2"}
			s.Cordons["n2"] = lease.Cordon{Drain: true}
		}, lease.StateUnassigned, "its data is on node n2, which is drained"},
		"all drained": {func(s *Snapshot) {
			s.Cordons["n1"], s.Cordons["n2"] = lease.Cordon{Drain: true}, lease.Cordon{Drain: true}
		}, lease.StateUnassigned, "all nodes are drained"},
		"assigned to a dead node": {func(s *Snapshot) { s.Assignments[p] = lease.Assignment{Node: "n9"} },
			lease.StateUnassigned, "assigned to n9, which is gone; waiting for the scheduler"},
		"assigned, not taken": {func(s *Snapshot) { s.Assignments[p] = lease.Assignment{Node: "n2"} },
			lease.StateAcquiring, "assigned to n2, which has not taken it yet"},
		"deleted route": {func(s *Snapshot) { delete(s.Routes, "orders") },
			lease.StateUnassigned, "the route was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cluster()
			s.Partitions[p] = lease.Partition{ID: p.partition}
			c.change(s)
			got := s.Leases(ordersAbout).Leases
			if len(got) != 1 || got[0].State != c.state || got[0].Reason != c.reason || got[0].Owner != "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestOwnedPartitionShowsItsReport(t *testing.T) {
	t.Parallel()
	s := cluster()
	p := place{"orders", "orders-0"}
	s.Owners[p] = lease.Owner{Node: "n2", Epoch: 5}
	since := time.Unix(1000, 0)
	report := lease.PartitionStatus{
		Route: "orders", Partition: "orders-0", State: lease.StateRunning, Epoch: 5,
		Position: "42", Lag: 7, Guarantee: "at-least-once", Since: since,
	}
	s.Statuses["n2"] = lease.NodeStatus{Node: "n2", Partitions: []lease.PartitionStatus{report}}
	got := s.Leases(ordersAbout).Leases[0]
	if got.Owner != "n2" || got.Epoch != 5 || got.State != lease.StateRunning || got.Position != "42" ||
		got.Lag != 7 || got.Guarantee != "at-least-once" || !got.Since.Equal(since) {
		t.Errorf("got %+v", got)
	}

	// Another node's old report of the same partition counts for nothing.
	s.Owners[p] = lease.Owner{Node: "n1", Epoch: 6}
	got = s.Leases(ordersAbout).Leases[0]
	if got.Owner != "n1" || got.Epoch != 6 || got.State != lease.StateAcquiring || got.Lag != -1 {
		t.Errorf("after a move: %+v", got)
	}
}

func TestReportOlderThanOwnershipIsNotShownAsRunning(t *testing.T) {
	t.Parallel()
	s := cluster()
	p := place{"orders", "orders-0"}
	s.Owners[p] = lease.Owner{Node: "n2", Epoch: 6}
	s.Statuses["n2"] = lease.NodeStatus{Partitions: []lease.PartitionStatus{{
		Route: "orders", Partition: "orders-0", State: lease.StateRunning, Epoch: 5, Position: "42",
	}}}
	if got := s.Leases(ordersAbout).Leases[0]; got.State != lease.StateAcquiring || got.Position != "42" {
		t.Errorf("got %+v", got)
	}
}

func TestSummarySaysWhenNodesOutnumberPartitions(t *testing.T) {
	t.Parallel()
	s := cluster()
	s.Nodes["n3"] = lease.Node{}
	s.Partitions[place{"orders", "a"}] = lease.Partition{}
	s.Owners[place{"orders", "a"}] = lease.Owner{Node: "n1", Epoch: 1}
	if got := s.Leases(ordersAbout).Summary.Text; got != "3 nodes, 1 partition: 2 nodes have nothing to do" {
		t.Errorf("got %q", got)
	}
	for _, p := range []string{"b", "c"} {
		s.Partitions[place{"orders", p}] = lease.Partition{}
	}
	if got := s.Leases(ordersAbout).Summary.Text; got != "3 nodes, 3 partitions, 2 not owned" {
		t.Errorf("got %q", got)
	}
}

func TestPartitionsSortAsPeopleCount(t *testing.T) {
	t.Parallel()
	order := []string{"a-2", "a-10", "a-010", "b", "b-1", "b-1-3"}
	for i, a := range order {
		for j, b := range order {
			got := comparePartitions(a, b)
			if (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("compare(%q, %q) = %d", a, b, got)
			}
		}
	}
}

func TestRouteShowsTheStateThatMattersMost(t *testing.T) {
	t.Parallel()
	s := cluster()
	for p, st := range map[string]lease.PartitionStatus{
		"a": {State: lease.StateDone, Lag: 0, Guarantee: "exactly-once", Counters: lease.Counters{Written: 10}},
		"b": {State: lease.StateQuarantined, Lag: 5, Guarantee: "at-least-once", Error: "no such table", Counters: lease.Counters{Written: 3}},
		"c": {State: lease.StateRunning, Lag: -1, Guarantee: "exactly-once"},
	} {
		st.Route, st.Partition, st.Epoch = "orders", p, 1
		s.Owners[place{"orders", p}] = lease.Owner{Node: "n1", Epoch: 1}
		n := s.Statuses["n1"]
		n.Partitions = append(n.Partitions, st)
		s.Statuses["n1"] = n
	}
	got := s.RoutesView(ordersAbout).Routes[0]
	if got.State != lease.StateQuarantined || got.Error != "no such table" || got.Lag != 5 ||
		got.Written != 13 || got.Owned != 3 || got.Partitions != 3 || got.Guarantee != "at-least-once" {
		t.Errorf("got %+v", got)
	}
}

func TestDrainedNodeIsBusyWhileAssignmentsName(t *testing.T) {
	t.Parallel()
	s := cluster()
	s.Cordons["n2"] = lease.Cordon{Drain: true}
	s.Cordons["n7"] = lease.Cordon{Drain: true}
	p := place{"orders", "a"}
	s.Assignments[p] = lease.Assignment{Node: "n2"}
	state := func() map[string]NodeState {
		out := map[string]NodeState{}
		for _, n := range s.NodesView(nil).Nodes {
			out[n.Name] = n.State
		}
		return out
	}
	if got := state(); got["n1"] != NodeActive || got["n2"] != NodeDraining || got["n7"] != NodeGone {
		t.Errorf("got %v", got)
	}
	delete(s.Assignments, p)
	if got := state(); got["n2"] != NodeDrained {
		t.Errorf("got %v", got)
	}
}
