package cluster

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
)

// steer tells the runner what this node is to hold, whenever that changes, and
// lists the partitions that are on this node, until ctx ends.
func (n *Node) steer(ctx context.Context, runner Runner) {
	defer n.local.close()
	t := newTables(n.mirrors, n.keys)
	for {
		changed, looked := n.mirrors.Changed(), time.Now()
		if n.mirrors.synced() {
			// Not short-circuited: each update takes its table's state over.
			news := []bool{t.routes.update(), t.partitions.update(), t.assignments.update()}
			if slices.Contains(news, true) && ctx.Err() == nil {
				routes := n.routes(t)
				runner.SetDesired(routes, n.desired(t, routes))
				n.local.set(ctx, nil, n.localTargets(t))
			}
		}
		took := time.Since(looked)
		select {
		case <-changed:
			sleep(ctx, max(debounce, min(took, retryWait)))
		case <-ctx.Done():
			return
		}
	}
}

// routes are those that are to run and that this node can read. The others' is
// an error for people to see; it is theirs alone (invariant 12).
func (n *Node) routes(t *tables) map[string]actors.Route {
	n.specs.keep(t.routes.rows)
	out := make(map[string]actors.Route, len(t.routes.rows))
	failed := map[string]lease.RouteStatus{}
	for name, r := range t.routes.rows {
		d := n.specs.of(name, r)
		switch {
		case d.err != nil:
			failed[name] = lease.RouteStatus{Route: name, Error: "read spec: " + d.err.Error(), Since: time.Now()}
		case !r.value.Paused && d.spec.Enabled:
			out[name] = actors.Route{Route: r.value, Name: name, Rev: r.ModRevision, Spec: d.spec, Older: d.older}
		}
	}
	n.mu.Lock()
	before := n.unreadable
	for name, f := range failed {
		if old, ok := before[name]; ok && old.Error == f.Error {
			failed[name] = old
		} else {
			n.cfg.Log.Error("route cannot be read by this node", "route", name, "error", f.Error)
		}
	}
	n.unreadable = failed
	n.mu.Unlock()
	if !maps.Equal(before, failed) {
		n.touch()
	}
	return out
}

// desired is what is assigned to this node, in key order.
func (n *Node) desired(t *tables, routes map[string]actors.Route) []actors.Desired {
	var keys []plan.Key
	for k, a := range t.assignments.rows {
		if a.value.Node == n.cfg.Name {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, plan.Key.Compare)
	want := make([]actors.Desired, 0, len(keys))
	for _, k := range keys {
		a, current := t.assignment(k)
		p, exists := t.partition(k)
		if _, runs := routes[k.Route]; !runs || !current || !exists {
			continue
		}
		want = append(want, actors.Desired{Route: k.Route, Partition: p.value, Assignment: a.value, AssignmentRev: a.ModRevision})
	}
	return want
}

// localTargets are the routes whose input is on each node's own disk.
func (n *Node) localTargets(t *tables) map[string]target {
	out := map[string]target{}
	for name, r := range t.routes.rows {
		d := n.specs.of(name, r)
		if d.err != nil || d.placement != perNode || r.value.Paused || !d.spec.Enabled {
			continue
		}
		out[name] = target{
			name: name, uid: r.value.UID, generation: r.value.Generation, created: r.CreateRevision,
			spec: d.spec, pin: n.cfg.Name, own: n.cfg.Name,
		}
	}
	return out
}
