package cluster

import (
	"context"
	"fmt"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/lease"
)

// Events holds what happened on this node lately.
func (n *Node) Events() *events.Ring { return n.cfg.events }

func (n *Node) partitionEvent(e actors.Event) {
	n.cfg.events.Add(events.Event{
		Kind: events.Kind(e.Kind), Time: e.Time, Route: e.Route, Partition: e.Partition, Epoch: e.Epoch, Text: e.Text,
	})
}

// cordoned: an operator is emptying this node.
func (n *Node) cordoned() bool {
	kv, ok := n.mirrors.cordons.Snapshot().Get(n.keys.Cordon(n.cfg.Name))
	if !ok {
		return false
	}
	c, err := lease.Decode[lease.Cordon](kv.Value)
	return err == nil && c.Drain
}

// noteMembers tells of nodes that come and go and of schedulers that take turns,
// until ctx ends. Who is there when it begins is no event.
func (n *Node) noteMembers(ctx context.Context) {
	var before map[string]lease.Node
	var leader lease.Leader
	for {
		nodes, scheduler := n.mirrors.nodes.Changed(), n.mirrors.scheduler.Changed()
		if members := n.mirrors.nodes.Snapshot(); members.Synced {
			now := map[string]lease.Node{}
			for kv := range members.All(n.keys.Nodes()) {
				name, ok := n.keys.SplitName(kv.Key)
				if m, err := lease.Decode[lease.Node](kv.Value); ok && err == nil {
					now[name] = m
				}
			}
			if before != nil {
				n.members(before, now)
			}
			before = now
		}
		if l, rev := n.scheduler.election.current(n.mirrors.scheduler.Snapshot()); rev != 0 && l != leader {
			leader = l
			n.cfg.events.Add(events.Event{
				Kind: events.Scheduler, Subject: fmt.Sprintf("%s/%d", l.Node, l.Term),
				Text: fmt.Sprintf("node %s decides from term %d on", l.Node, l.Term),
			})
		}
		select {
		case <-nodes:
		case <-scheduler:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) members(before, now map[string]lease.Node) {
	for name, m := range now {
		if old, was := before[name]; !was || old.Instance != m.Instance {
			n.cfg.events.Add(events.Event{Kind: events.NodeJoined, Subject: name + "/" + m.Instance,
				Text: fmt.Sprintf("node %s at %s, version %s", name, m.Address, m.Version)})
		}
	}
	for name, old := range before {
		if m, is := now[name]; is && m.Instance == old.Instance {
			continue
		}
		why := "its lease ended: it was killed, frozen or cut off"
		if old.Leaving {
			why = "it was stopped"
		}
		n.cfg.events.Add(events.Event{Kind: events.NodeLeft, Subject: name + "/" + old.Instance,
			Text: fmt.Sprintf("node %s: %s", name, why)})
	}
}
