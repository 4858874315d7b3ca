package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// SetPosition sends one partition to a position that its source makes of value,
// and returns its records as they were. The run that there is is fenced by an
// epoch of the coordinator's counter. What lies behind the position is not read,
// or read and written again. Where the sink knows its records by the series of
// the whole route, it goes forward only, and past every part that was promised:
// otherwise parts would overlap. With dryRun nothing is written, and the position
// is where it would go.
func (c *Catalog) SetPosition(ctx context.Context, name, partition, value string, dryRun bool) (before []Checkpoint, at message.Position, err error) {
	e, err := c.Get(ctx, name)
	if err != nil {
		return nil, at, err
	}
	def, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		return nil, at, err
	}
	if at, err = c.seek(ctx, e, def, partition, value); err != nil {
		return nil, at, err
	}
	err = c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
		all, err := c.records(ctx, s, e.Route.UID)
		if err != nil {
			return err
		}
		for _, cp := range all {
			if cp.Partition == partition {
				before = append(before, cp)
			}
		}
		if len(before) == 0 {
			return fmt.Errorf("route %s: partition %s: checkpoint %w", e.Name, partition, ErrNotFound)
		}
		for _, cp := range before {
			if err := settable(e, def, cp.Record, at); err != nil {
				return err
			}
		}
		if dryRun {
			return nil
		}
		for _, cp := range before {
			_, err := c.replace(ctx, s, e, cp, func(checkpoint.Record) bool { return false }, func(old checkpoint.Record) (checkpoint.Record, error) {
				if err := settable(e, def, old, at); err != nil {
					return old, err // the run went on since
				}
				rec, err := c.fresh(ctx, e, partition, old)
				// The position is one of this source: its identity stays to be checked.
				rec.Position, rec.Source = at, old.Source
				return rec, err
			})
			if err != nil {
				return err
			}
		}
		return c.wake(ctx, e.Name)
	})
	return before, at, err
}

// settable refuses what would make two parts, or two batches of one name, of the
// same records.
func settable(e Entry, def definition, old checkpoint.Record, at message.Position) error {
	if !def.sink.Parts && def.sink.Window == "" {
		return nil
	}
	last := old.Position
	for _, in := range old.Intents {
		if in.End.Compare(last) > 0 {
			last = in.End
		}
	}
	if at.Compare(last) >= 0 {
		return nil
	}
	return &Refusal{
		Route: e.Name,
		Reason: fmt.Sprintf("%s knows its records again by the series of the whole route, so a partition can only be set forward, to %s or beyond",
			def.Spec.Output.Type, strings.TrimLeft(last.Sort, "0")),
		Hint: "mqbctl checkpoint reset starts the route anew under another series",
	}
}

// wake has partitions look at once that wait for their next try: they do when
// their route changes, if only its revision. Runs are not disturbed by it.
func (c *Catalog) wake(ctx context.Context, name string) error {
	_, err := c.update(ctx, name, func(*lease.Route) error { return nil })
	return err
}

// seek asks the source of a route for a position.
func (c *Catalog) seek(ctx context.Context, e Entry, def definition, partition, value string) (at message.Position, err error) {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Partition(e.Name, partition))
	if err != nil {
		return at, fmt.Errorf("route %s: read partition %s: %w", e.Name, partition, err)
	}
	if kv == nil {
		return at, fmt.Errorf("route %s: partition %s: %w", e.Name, partition, ErrNotFound)
	}
	p, err := lease.Decode[lease.Partition](kv.Value)
	if err != nil {
		return at, fmt.Errorf("route %s: read partition %s: %w", e.Name, partition, err)
	}
	if p.Node != "" && p.Node != c.cfg.Env.Node {
		return at, &Refusal{Route: e.Name, Reason: fmt.Sprintf("the data of partition %s is on node %s", partition, p.Node),
			Hint: "ask that node, with --server"}
	}
	source, err := c.cfg.Registry.Source(def.Spec, c.cfg.Env)
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	seeker, ok := source.(connectors.Seeker)
	if !ok {
		return at, &Refusal{Route: e.Name, Reason: fmt.Sprintf("%s has no positions that can be named", def.Spec.Input.Type),
			Hint: "mqbctl checkpoint reset goes back to its start"}
	}
	at, err = seeker.Seek(ctx, connectors.Partition{ID: p.ID, Node: p.Node, Weight: p.Weight, Attributes: p.Attributes,
		PartSource: p.PartSource, PartNumber: p.PartNumber}, value)
	if connectors.Classify(err) == connectors.ClassPermanent {
		return at, &Refusal{Route: e.Name, Reason: err.Error()}
	}
	return at, err
}
