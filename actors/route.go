package actors

// routeActor holds the partitions of one route on this node. It keeps routes
// apart: a panic storm in one never touches another.
type routeActor struct {
	node     *Node
	parent   pid
	name     string
	children map[string]*partitionChild
	last     routeWanted
}

type partitionChild struct {
	pid      pid
	stopping bool
}

func (a *routeActor) receive(self pid, msg any) {
	switch msg := msg.(type) {
	case routeWanted:
		a.last = msg
		a.reconcile(self)
	case partitionGone:
		if c := a.children[msg.partition]; c != nil && c.pid == msg.pid {
			delete(a.children, msg.partition)
			a.node.engine.remove(msg.pid)
		}
		a.reconcile(self)
	}
}

// reconcile starts what is wanted and stops what is not. A partition that is
// wanted again while its old actor still stops waits for that: one node never
// runs a partition twice.
func (a *routeActor) reconcile(self pid) {
	e := a.node.engine
	for id, d := range a.last.want {
		c := a.children[id]
		switch {
		case c == nil:
			p := newPartitionActor(a.node, self, a.last.route, d)
			c = &partitionChild{pid: e.spawn("partition/"+a.name+"/"+id, p.receive)}
			a.children[id] = c
			e.send(c.pid, begin{})
		case !c.stopping:
			e.send(c.pid, update{route: a.last.route, want: d})
		}
	}
	for id, c := range a.children {
		if _, wanted := a.last.want[id]; !wanted && !c.stopping {
			c.stopping = true
			e.send(c.pid, stop{})
		}
	}
	if len(a.children) == 0 && len(a.last.want) == 0 {
		e.send(a.parent, routeGone{route: a.name, pid: self, seq: a.last.seq})
	}
}
