// Package coordinator keeps checkpoint records in the coordinator itself. It is
// the default store: no other system is needed, and its writes are as durable
// and as ordered as those of the owners they belong to.
package coordinator

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
)

// Store implements checkpoint.Store over a lease.Coordinator.
//
// A record is put once by each Swap and never deleted, so the version the
// coordinator counts for its key is the record's own, and the comparison is one
// of the coordinator's transaction (invariant 1).
type Store struct {
	c      lease.Coordinator
	prefix string
}

var _ checkpoint.Store = (*Store)(nil)

// New returns the store of a cluster. The coordinator belongs to the caller and
// outlives the store.
func New(c lease.Coordinator, keys lease.Keys) *Store {
	return &Store{c: c, prefix: keys.Checkpoints()}
}

// Load implements checkpoint.Store.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	kv, _, err := s.c.Get(ctx, s.prefix+key)
	switch {
	case err != nil:
		return checkpoint.Record{}, fmt.Errorf("load %s: %w", key, err)
	case kv == nil:
		return checkpoint.Record{}, checkpoint.ErrNotFound
	}
	return decode(key, *kv)
}

func decode(key string, kv lease.KV) (checkpoint.Record, error) {
	rec, err := checkpoint.Decode(kv.Value)
	if err == nil && checkpoint.Fenced && rec.Version != uint64(kv.Version) {
		// Somebody wrote to the key past this store, or deleted it once.
		return rec, fmt.Errorf("load %s: %w: the record says version %d, its key was put %d times", key, checkpoint.ErrRegressed, rec.Version, kv.Version)
	}
	return rec, err
}

// Swap implements checkpoint.Store. One transaction of the coordinator for each
// call; a node that holds thousands of busy partitions would gather its swaps
// here, comparing each alone so that one fenced partition fails alone.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 {
		return fmt.Errorf("swap %s: version %d cannot follow version %d", key, rec.Version, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	full := s.prefix + key
	var compares []lease.Compare
	if checkpoint.Fenced {
		compares = append(compares, lease.VersionIs(full, int64(expected)))
	}
	res, err := s.c.Txn(ctx, compares, []lease.Op{lease.Put(full, body)})
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	if res.Succeeded {
		return nil
	}
	if expected > 0 {
		// Nothing deletes a record: one that is gone went back.
		kv, _, err := s.c.Get(ctx, full)
		if err == nil && kv == nil {
			return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
		}
	}
	return checkpoint.ErrConflict
}

// List implements checkpoint.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	kvs, _, err := s.c.List(ctx, s.prefix+prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	out := make([]checkpoint.Entry, len(kvs))
	for i, kv := range kvs {
		out[i].Key = strings.TrimPrefix(kv.Key, s.prefix)
		out[i].Record, out[i].Err = decode(out[i].Key, kv)
	}
	return out, nil
}

// Identity implements checkpoint.Store. A partition that moves between clusters
// is told by the cluster uid in its record.
func (s *Store) Identity() string { return "coordinator" }

// Close does nothing: the coordinator belongs to the node.
func (s *Store) Close() error { return nil }
