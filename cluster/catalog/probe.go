package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/route"
)

// ErrLocalStore: the store of a route is on the disk of one node, which need not
// be this one.
var ErrLocalStore = errors.New("the store is on one node's disk")

// UnsafeStoreError says that a store did something that no store may do.
type UnsafeStoreError struct{ Store, What string }

func (e *UnsafeStoreError) Error() string { return e.Store + " " + e.What }

// Probe asks the store of a route whether it compares and writes in one step,
// with a record of its own that no route has. It names the store. Errors:
// ErrLocalStore, *UnsafeStoreError, or what opening and asking it returned.
func (c *Catalog) Probe(ctx context.Context, e Entry) (store string, err error) {
	def, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		return "", err
	}
	if def.Spec.StoreLocality() == route.NodeLocal {
		return route.MaskURL(def.Spec.CheckpointStore), ErrLocalStore
	}
	if def.sink.Tier == route.TierTransactional && def.sink.Locality == route.NodeLocal && !def.Spec.SharedStorage {
		return def.Spec.Output.Type, ErrLocalStore
	}
	err = c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
		store = s.Identity()
		return c.probe(ctx, s)
	})
	return store, err
}

// probe writes over the probe record, then tries the same comparison again, and
// then to create it: both must meet a conflict and change nothing. What it leaves
// is a tombstone, since a store takes nothing away.
func (c *Catalog) probe(ctx context.Context, s checkpoint.Store) error {
	key := checkpoint.Key{Cluster: c.cfg.Cluster, RouteUID: "-doctor", Partitioning: "1", Partition: "probe", Leg: "out"}.String()
	unsafe := func(format string, args ...any) error {
		return &UnsafeStoreError{Store: s.Identity(), What: fmt.Sprintf(format, args...)}
	}
	for range maxTries {
		old, err := s.Load(ctx, key)
		if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
			return fmt.Errorf("load the probe: %w", err)
		}
		rec := checkpoint.Record{V: 1, RouteUID: "-doctor", Epoch: old.Epoch + 1, Run: c.cfg.NewID(), Version: old.Version + 1, Tombstone: true}
		err = s.Swap(ctx, key, old.Version, rec)
		if errors.Is(err, checkpoint.ErrConflict) {
			continue // somebody else asks too
		}
		if err != nil {
			return fmt.Errorf("write the probe: %w", err)
		}
		late := rec
		late.Run = c.cfg.NewID()
		if err := s.Swap(ctx, key, old.Version, late); err == nil {
			return unsafe("wrote over a version that was replaced")
		} else if !errors.Is(err, checkpoint.ErrConflict) {
			return fmt.Errorf("write the probe late: %w", err)
		}
		late.Version = 1
		if err := s.Swap(ctx, key, 0, late); err == nil {
			return unsafe("created a record that was there")
		} else if !errors.Is(err, checkpoint.ErrConflict) {
			return fmt.Errorf("create the probe again: %w", err)
		}
		now, err := s.Load(ctx, key)
		switch {
		case err != nil:
			return fmt.Errorf("read the probe back: %w", err)
		case now.Version == rec.Version && now.Run != rec.Run, now.Version < rec.Version:
			return unsafe("does not hold what it said it wrote")
		}
		return nil
	}
	return fmt.Errorf("probe: %w", ErrContended)
}

// InCoordinator reports whether a route keeps its checkpoint records in the
// coordinator. A route that cannot be read does not.
func (c *Catalog) InCoordinator(ctx context.Context, name string) bool {
	e, err := c.Get(ctx, name)
	if err != nil {
		return false
	}
	def, err := c.stored(name, e.Route.Spec)
	if err != nil {
		return false
	}
	return def.sink.Tier != route.TierTransactional && (def.Spec.CheckpointStore == "" || def.Spec.CheckpointStore == "coordinator")
}
