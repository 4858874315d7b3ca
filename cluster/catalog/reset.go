package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Checkpoint is one record of a route, as its store holds it.
type Checkpoint struct {
	Partition, Leg string
	Key            string
	Record         checkpoint.Record
	// Err is set when the record cannot be read; the others can.
	Err error
}

// Checkpoints lists the records of a route, and names their store.
func (c *Catalog) Checkpoints(ctx context.Context, name string) (list []Checkpoint, store string, err error) {
	e, err := c.Get(ctx, name)
	if err != nil {
		return nil, "", err
	}
	def, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		return nil, "", err
	}
	err = c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
		store = s.Identity()
		list, err = c.records(ctx, s, e.Route.UID)
		return err
	})
	return list, store, err
}

func (c *Catalog) withStore(ctx context.Context, spec *route.Spec, f func(checkpoint.Store) error) error {
	s, closeStore, err := c.cfg.OpenStore(ctx, spec)
	if err != nil {
		return fmt.Errorf("route %s: open the checkpoint store: %w", spec.Name, err)
	}
	return errors.Join(f(s), closeStore())
}

func (c *Catalog) records(ctx context.Context, s checkpoint.Store, uid string) ([]Checkpoint, error) {
	entries, err := s.List(ctx, checkpoint.Key{Cluster: c.cfg.Cluster, RouteUID: uid}.Prefix())
	if err != nil {
		return nil, fmt.Errorf("list checkpoints in %s: %w", s.Identity(), err)
	}
	out := make([]Checkpoint, 0, len(entries))
	for _, e := range entries {
		cp := Checkpoint{Key: e.Key, Record: e.Record, Err: e.Err}
		if seg := strings.Split(e.Key, "/"); len(seg) == 5 {
			cp.Partition, _ = url.PathUnescape(seg[3])
			cp.Leg, _ = url.PathUnescape(seg[4])
		}
		out = append(out, cp)
	}
	return out, nil
}

// Reset sends a route, or one of its partitions, back to the start of its input,
// and returns the records as they were. A whole route gets a new series, under
// which everything is written anew; running owners are fenced by an epoch from
// the coordinator's counter. One partition stays in the series, so it can be
// reset only where the sink does not know the records again by it.
func (c *Catalog) Reset(ctx context.Context, name, partition string) ([]Checkpoint, error) {
	e, err := c.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	def, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		return nil, err
	}
	var before []Checkpoint
	err = c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
		if before, err = c.records(ctx, s, e.Route.UID); err != nil {
			return err
		}
		if partition != "" {
			before, err = c.resetPartition(ctx, s, e, def, before, partition)
			return err
		}
		next := e.Route
		next.Generation++
		next.Series = c.cfg.NewID()
		next.Older = nil // a new series inherits no intents
		return c.startSeries(ctx, s, e, next)
	})
	return before, err
}

func (c *Catalog) resetPartition(ctx context.Context, s checkpoint.Store, e Entry, def definition, all []Checkpoint, partition string) ([]Checkpoint, error) {
	if caps := def.sink; caps.Parts || caps.Window != "" {
		return nil, &Refusal{
			Route:  e.Name,
			Reason: fmt.Sprintf("partition %s cannot be reset alone: %s knows its records again by the series of the whole route", partition, def.Spec.Output.Type),
			Hint:   "reset all partitions of the route",
		}
	}
	var reset []Checkpoint
	for _, cp := range all {
		if cp.Partition == partition {
			reset = append(reset, cp)
		}
	}
	if len(reset) == 0 {
		return nil, fmt.Errorf("route %s: partition %s: checkpoint %w", e.Name, partition, ErrNotFound)
	}
	for _, cp := range reset {
		err := c.rewind(ctx, s, e, cp, func(checkpoint.Record) bool { return false })
		if err != nil {
			return nil, err
		}
	}
	return reset, nil
}

// startSeries writes next, which has a new series and generation, over e, and
// takes every record of the route into the series. The route is written first:
// from then on each claim starts anew by itself, since its series differs from
// the record's, so that a crash after this step loses nothing of the reset; the
// second step fences those who still run under the series before.
//
// s is the store of the new generation. The marks move to it in the same step
// as the route, so that no claim in between meets a floor of another store.
func (c *Catalog) startSeries(ctx context.Context, s checkpoint.Store, e Entry, next lease.Route) error {
	k := c.cfg.Keys
	found, err := c.records(ctx, s, next.UID)
	if err != nil {
		return err
	}
	byMark := map[string]Checkpoint{}
	for _, cp := range found {
		byMark[k.Claimed(next.UID, cp.Partition, cp.Leg)] = cp
	}
	marks, _, err := c.cfg.Coordinator.List(ctx, k.ClaimedBy(next.UID))
	if err != nil {
		return fmt.Errorf("route %s: list claims: %w", e.Name, err)
	}
	after := Entry{Name: e.Name, Route: next}
	ops := []lease.Op{lease.Put(k.Route(e.Name), lease.Encode(next))}
	for _, kv := range marks {
		cp, exists := byMark[kv.Key]
		if !exists {
			// Claimed once, but not in this store: the store was changed, or the
			// record is lost. The floor needs a record to stand on.
			if cp, err = c.plant(ctx, s, after, kv.Key); err != nil {
				return err
			}
		}
		ops = append(ops, lease.Put(kv.Key, lease.Encode(lease.Claimed{
			Store: s.Identity(), Epoch: cp.Record.Epoch, Version: cp.Record.Version,
		})))
	}
	res, err := c.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.ModRevisionIs(k.Route(e.Name), e.Revision)}, ops)
	if err != nil {
		return fmt.Errorf("write route %s: %w", e.Name, err)
	}
	if !res.Succeeded {
		return fmt.Errorf("reset route %s: %w", e.Name, ErrContended)
	}
	for _, cp := range found {
		err := c.rewind(ctx, s, after, cp, func(now checkpoint.Record) bool { return now.Series == next.Series })
		if err != nil {
			return fmt.Errorf("%w; the reset has begun and goes on when it is asked for again", err)
		}
	}
	return nil
}

// plant creates the record of a mark in a store that has none.
func (c *Catalog) plant(ctx context.Context, s checkpoint.Store, e Entry, mark string) (Checkpoint, error) {
	seg := strings.Split(strings.TrimPrefix(mark, c.cfg.Keys.ClaimedBy(e.Route.UID)), "/")
	if len(seg) != 2 {
		return Checkpoint{}, fmt.Errorf("route %s: no such claim: %s", e.Name, mark)
	}
	var cp Checkpoint
	cp.Partition, _ = url.PathUnescape(seg[0])
	cp.Leg, _ = url.PathUnescape(seg[1])
	cp.Key = checkpoint.Key{
		Cluster: c.cfg.Cluster, RouteUID: e.Route.UID, Partitioning: "1", Partition: cp.Partition, Leg: cp.Leg,
	}.String()
	rec, err := c.fresh(ctx, e, cp.Partition, checkpoint.Record{})
	if err != nil {
		return cp, err
	}
	if err := s.Swap(ctx, cp.Key, 0, rec); err != nil {
		return cp, fmt.Errorf("route %s partition %s: create the checkpoint: %w", e.Name, cp.Partition, err)
	}
	cp.Record = rec
	return cp, nil
}

// rewind swaps a record of position zero over the one that is there, under an
// epoch of its own, in one step, so that the run before is fenced and whatever
// claims next finds the start. done ends it: somebody was there first.
func (c *Catalog) rewind(ctx context.Context, s checkpoint.Store, e Entry, cp Checkpoint, done func(now checkpoint.Record) bool) error {
	_, err := c.replace(ctx, s, e, cp, done, func(old checkpoint.Record) (checkpoint.Record, error) {
		return c.fresh(ctx, e, cp.Partition, old)
	})
	return err
}

// replace swaps what next makes of the record that is there over it, until nobody
// came in between, and returns it; next takes an epoch of its own each time. done
// ends it with the record as it is.
func (c *Catalog) replace(ctx context.Context, s checkpoint.Store, e Entry, cp Checkpoint,
	done func(now checkpoint.Record) bool, next func(old checkpoint.Record) (checkpoint.Record, error)) (checkpoint.Record, error) {
	fail := func(err error) (checkpoint.Record, error) {
		return checkpoint.Record{}, fmt.Errorf("route %s partition %s: write the checkpoint: %w", e.Name, cp.Partition, err)
	}
	for range maxTries {
		old, err := s.Load(ctx, cp.Key)
		if err != nil {
			return fail(err)
		}
		if done(old) {
			return old, nil
		}
		rec, err := next(old)
		if err != nil {
			return fail(err)
		}
		err = s.Swap(ctx, cp.Key, old.Version, rec)
		ender, canEnd := s.(checkpoint.SessionEnder)
		switch {
		case err == nil:
			return rec, nil
		case errors.Is(err, checkpoint.ErrConflict):
		case errors.Is(err, checkpoint.ErrLocked) && canEnd && old.Session != "":
			// A frozen owner holds the row; its session goes, as in a claim.
			if err := ender.EndSession(ctx, old.Session); err != nil {
				return fail(err)
			}
		default:
			return fail(err)
		}
	}
	return fail(ErrContended)
}

// fresh is the record of a start: no position, no intents, an unused epoch above
// the one of old (invariant 6).
func (c *Catalog) fresh(ctx context.Context, e Entry, partition string, old checkpoint.Record) (checkpoint.Record, error) {
	uid, err := c.clusterUID(ctx)
	if err != nil {
		return checkpoint.Record{}, err
	}
	if old.ClusterUID != "" && old.ClusterUID != uid {
		return checkpoint.Record{}, fmt.Errorf("%w cluster (%s)", checkpoint.ErrForeign, old.ClusterUID)
	}
	epoch, err := c.epochAbove(ctx, e, partition, old.Epoch)
	if err != nil {
		return checkpoint.Record{}, err
	}
	return checkpoint.Record{
		V: 1, ClusterUID: uid, RouteUID: e.Route.UID, Series: e.Route.Series, Generation: e.Route.Generation,
		Epoch: epoch, Run: "reset-" + c.cfg.NewID(), Version: old.Version + 1,
	}, nil
}

func (c *Catalog) clusterUID(ctx context.Context) (string, error) {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.ClusterUID())
	if err != nil {
		return "", fmt.Errorf("read the cluster's uid: %w", err)
	}
	if kv == nil {
		return "", errors.New("the cluster has no uid yet")
	}
	return string(kv.Value), nil
}

// epochAbove takes an unused epoch above floor (invariant 6).
func (c *Catalog) epochAbove(ctx context.Context, e Entry, partition string, floor uint64) (uint64, error) {
	if err := c.epochs.RaiseEpoch(ctx, e.Route.UID, partition, floor); err != nil {
		return 0, err
	}
	return c.epochs.NextEpoch(ctx, e.Route.UID, partition)
}
