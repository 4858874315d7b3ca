package catalog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Drain orders a live node to hand over all it has and to take nothing new. The
// order stays, over restarts of the node too, until Undrain.
func (c *Catalog) Drain(ctx context.Context, node string) error {
	return c.order(ctx, node, true, func(o *lease.Cordon) error {
		o.Drain = true
		return nil
	})
}

// Undrain takes the order back. It is no error if there is none.
func (c *Catalog) Undrain(ctx context.Context, node string) error {
	return c.order(ctx, node, false, func(o *lease.Cordon) error {
		o.Drain = false
		return nil
	})
}

// Exclude keeps new partitions off a live node: all, or those of one route. What
// it has stays with it.
func (c *Catalog) Exclude(ctx context.Context, node, name string) error {
	var uid string
	if name != "" {
		e, err := c.Get(ctx, name)
		if err != nil {
			return err
		}
		uid = e.Route.UID
	}
	return c.order(ctx, node, true, func(o *lease.Cordon) error {
		if name == "" {
			o.Exclude = true
			return nil
		}
		if o.Routes == nil {
			o.Routes = map[string]string{}
		}
		o.Routes[name] = uid
		return nil
	})
}

// Include takes back every exclusion of a node, or that for one route.
func (c *Catalog) Include(ctx context.Context, node, name string) error {
	return c.order(ctx, node, false, func(o *lease.Cordon) error {
		if name != "" && o.Exclude {
			return &Refusal{
				Reason: fmt.Sprintf("node %s is excluded from all routes, not from route %s alone", node, name),
				Hint:   "mqbctl include " + node,
			}
		}
		if name == "" {
			o.Exclude, o.Routes = false, nil
		}
		delete(o.Routes, name)
		return nil
	})
}

// order changes what is ordered for a node. live says that it must be here: an
// order for a node that nobody knows is a slip of the pen.
func (c *Catalog) order(ctx context.Context, node string, live bool, change func(*lease.Cordon) error) error {
	if live {
		if _, err := c.liveNode(ctx, node); err != nil {
			return err
		}
	}
	key := c.cfg.Keys.Cordon(node)
	for range maxTries {
		kv, _, err := c.cfg.Coordinator.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("read the orders for node %s: %w", node, err)
		}
		var o lease.Cordon
		var rev int64
		if kv != nil {
			rev = kv.ModRevision
			if o, err = lease.Decode[lease.Cordon](kv.Value); err != nil {
				return fmt.Errorf("read the orders for node %s: %w", node, err)
			}
		}
		if err := change(&o); err != nil {
			return err
		}
		op := lease.Delete(key)
		if !o.Empty() {
			o.Since = time.Now().UTC()
			op = lease.Put(key, lease.Encode(o))
		}
		res, err := c.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.ModRevisionIs(key, rev)}, []lease.Op{op})
		if err != nil {
			return fmt.Errorf("write the orders for node %s: %w", node, err)
		}
		if res.Succeeded {
			return nil
		}
	}
	return fmt.Errorf("order for node %s: %w", node, ErrContended)
}

func (c *Catalog) liveNode(ctx context.Context, node string) (lease.Node, error) {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Node(node))
	if err != nil {
		return lease.Node{}, fmt.Errorf("read node %s: %w", node, err)
	}
	if kv == nil {
		return lease.Node{}, fmt.Errorf("node %s: %w among the live ones", node, ErrNotFound)
	}
	return lease.Decode[lease.Node](kv.Value)
}

// Move pins a partition to a node. The pin holds until Release, or until the node
// is gone for good (some minutes); while the node is away or drains, the
// partition is where the scheduler puts it. A node that may not have the
// partition is a *Refusal.
func (c *Catalog) Move(ctx context.Context, name, partition, node string) error {
	k := c.cfg.Keys
	for range maxTries {
		e, err := c.Get(ctx, name)
		if err != nil {
			return err
		}
		kv, err := c.partition(ctx, name, partition)
		if err != nil {
			return err
		}
		p, err := lease.Decode[lease.Partition](kv.Value)
		if err != nil {
			return fmt.Errorf("route %s partition %s: %w", name, partition, err)
		}
		if err := c.eligible(ctx, e, p, node); err != nil {
			return err
		}
		// What the decision was made on must still be so: a pin of a deleted route
		// would wait for another one of its name.
		res, err := c.cfg.Coordinator.Txn(ctx,
			[]lease.Compare{lease.ModRevisionIs(k.Route(name), e.Revision), lease.ModRevisionIs(kv.Key, kv.ModRevision)},
			[]lease.Op{lease.Put(k.Pin(name, partition), lease.Encode(lease.Pin{Node: node, Since: time.Now().UTC()}))})
		if err != nil {
			return fmt.Errorf("route %s partition %s: write the pin: %w", name, partition, err)
		}
		if res.Succeeded {
			return nil
		}
	}
	return fmt.Errorf("move route %s partition %s: %w", name, partition, ErrContended)
}

func (c *Catalog) partition(ctx context.Context, name, partition string) (*lease.KV, error) {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Partition(name, partition))
	if err != nil {
		return nil, fmt.Errorf("route %s partition %s: %w", name, partition, err)
	}
	if kv == nil {
		return nil, fmt.Errorf("route %s: partition %s: %w", name, partition, ErrNotFound)
	}
	return kv, nil
}

// eligible refuses a move to a node that would not get the partition.
func (c *Catalog) eligible(ctx context.Context, e Entry, p lease.Partition, node string) error {
	refuse := func(hint, reason string, args ...any) error {
		return &Refusal{Route: e.Name, Reason: fmt.Sprintf("partition %s stays where it is: %s", p.ID, fmt.Sprintf(reason, args...)), Hint: hint}
	}
	if p.Node != "" {
		return refuse("", "only node %s can hold it, since its data, its output or its positions are on that node's disk", p.Node)
	}
	n, err := c.liveNode(ctx, node)
	if err != nil {
		return err
	}
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Cordon(node))
	if err != nil {
		return fmt.Errorf("read the orders for node %s: %w", node, err)
	}
	var o lease.Cordon
	if kv != nil {
		if o, err = lease.Decode[lease.Cordon](kv.Value); err != nil {
			return fmt.Errorf("read the orders for node %s: %w", node, err)
		}
	}
	uid, closed := o.Routes[e.Name]
	switch {
	case o.Drain:
		return refuse("mqbctl undrain "+node, "node %s is draining", node)
	case n.Leaving:
		return refuse("", "node %s is shutting down", node)
	case o.Exclude:
		return refuse("mqbctl include "+node, "node %s is excluded", node)
	case closed && uid == e.Route.UID:
		return refuse(fmt.Sprintf("mqbctl include %s --route %s", node, e.Name), "node %s is excluded for this route", node)
	}
	spec, err := route.DecodeRoute(e.Name, e.Route.Spec, c.cfg.Registry)
	if err != nil {
		return fmt.Errorf("the spec of route %s as it is stored: %w", e.Name, invalid(err))
	}
	rule := plan.Rule{Labels: spec.Placement.Labels, Avoid: spec.Placement.Exclude}
	if why := rule.Bars(plan.Node{Name: node, Labels: n.Labels}); why != "" {
		return refuse("change the route's placement, or the node's --label", "node %s %s", node, why)
	}
	return nil
}

// Release takes the pin of a partition away; ErrNotFound if it has none.
func (c *Catalog) Release(ctx context.Context, name, partition string) error {
	key := c.cfg.Keys.Pin(name, partition)
	kv, _, err := c.cfg.Coordinator.Get(ctx, key)
	if err == nil && kv == nil {
		return fmt.Errorf("route %s: partition %s: pin %w", name, partition, ErrNotFound)
	}
	if err == nil {
		_, err = c.cfg.Coordinator.Txn(ctx, nil, []lease.Op{lease.Delete(key)})
	}
	if err != nil {
		return fmt.Errorf("route %s partition %s: release: %w", name, partition, err)
	}
	return nil
}

// Forgotten is what RemoveNode took out of the coordinator.
type Forgotten struct {
	Orders, Pins int
	// Partitions that only the node could hold. Their checkpoint records stay.
	Partitions int
}

// removeOps bounds the operations of one transaction, of which etcd takes 128.
const removeOps = 100

// RemoveNode forgets a node that does not come back, or comes back without its
// disk: orders for it, pins to it, and partitions that only it could hold. A node
// that lives is a *Refusal.
func (c *Catalog) RemoveNode(ctx context.Context, node string) (Forgotten, error) {
	k := c.cfg.Keys
	fail := func(err error) (Forgotten, error) { return Forgotten{}, fmt.Errorf("remove node %s: %w", node, err) }
	if err := c.Dead(ctx, node); err != nil {
		return Forgotten{}, err
	}
	var out Forgotten
	var ops []lease.Op
	kv, _, err := c.cfg.Coordinator.Get(ctx, k.Cordon(node))
	if err != nil {
		return fail(err)
	}
	if kv != nil {
		out.Orders++
		ops = append(ops, lease.Delete(kv.Key))
	}
	pins, _, err := c.cfg.Coordinator.List(ctx, k.Pins())
	if err != nil {
		return fail(err)
	}
	for _, kv := range pins {
		if p, err := lease.Decode[lease.Pin](kv.Value); err == nil && p.Node == node {
			out.Pins++
			ops = append(ops, lease.Delete(kv.Key))
		}
	}
	partitions, _, err := c.cfg.Coordinator.List(ctx, k.Partitions())
	if err != nil {
		return fail(err)
	}
	for _, kv := range partitions {
		if p, err := lease.Decode[lease.Partition](kv.Value); err == nil && p.Node == node {
			out.Partitions++
			ops = append(ops, lease.Delete(kv.Key))
		}
	}
	for some := range slices.Chunk(ops, removeOps) {
		// It may have come to life meanwhile and listed its partitions anew.
		res, err := c.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.Absent(k.Node(node))}, some)
		if err != nil {
			return fail(err)
		}
		if !res.Succeeded {
			return fail(ErrContended)
		}
	}
	return out, nil
}

// Dead refuses what must not be done to a node that lives.
func (c *Catalog) Dead(ctx context.Context, node string) error {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Node(node))
	if err != nil {
		return fmt.Errorf("read node %s: %w", node, err)
	}
	if kv == nil {
		return nil
	}
	n, _ := lease.Decode[lease.Node](kv.Value)
	return &Refusal{
		Reason: fmt.Sprintf("node %s lives at %s", node, n.Address),
		Hint:   "stop it and wait for its lease to end; to empty a node that lives, mqbctl drain " + node,
	}
}
