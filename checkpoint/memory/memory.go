// Package memory keeps checkpoint records in this process, for tests and
// simulation. It keeps them encoded, as every other store does, and fails on
// demand in the ways that real stores fail.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
)

// ErrLost is what a call returns whose fault was FaultRefuse or FaultLoseReply.
var ErrLost = errors.New("memory: connection lost")

// Fault is what happens to one call.
type Fault uint8

const (
	// FaultNone lets the call through.
	FaultNone Fault = iota
	// FaultRefuse fails the call before it has an effect.
	FaultRefuse
	// FaultLoseReply lets the call take effect and then fails it.
	FaultLoseReply
	// FaultConflict makes a Swap meet a conflict that is none, as a store does
	// that repeats a write by itself after a lost reply.
	FaultConflict
)

// Call names a call to the fault function.
type Call string

const (
	CallLoad Call = "load"
	CallSwap Call = "swap"
	CallList Call = "list"
)

// Store is a checkpoint.Store.
type Store struct {
	mu      sync.Mutex
	records map[string][]byte
	fault   func(Call, string) Fault
}

var _ checkpoint.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{records: map[string][]byte{}, fault: func(Call, string) Fault { return FaultNone }}
}

// Fail asks decide about every call from now on; nil ends it. decide runs while
// the store is locked, so its answers are in the order of the calls.
func (s *Store) Fail(decide func(call Call, key string) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if decide == nil {
		decide = func(Call, string) Fault { return FaultNone }
	}
	s.fault = decide
}

// Tamper replaces the stored bytes of key by what change makes of them, past
// every comparison: a torn write, a restored backup. nil in is an absent record,
// nil out deletes it.
func (s *Store) Tamper(key string, change func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body := change(slices.Clone(s.records[key])); body != nil {
		s.records[key] = body
	} else {
		delete(s.records, key)
	}
}

// Load implements checkpoint.Store.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx, CallLoad, key); err != nil {
		return checkpoint.Record{}, err
	}
	body, ok := s.records[key]
	if !ok {
		return checkpoint.Record{}, checkpoint.ErrNotFound
	}
	return checkpoint.Decode(body)
}

// begin answers a call that has no effect to lose.
func (s *Store) begin(ctx context.Context, call Call, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.fault(call, key) != FaultNone {
		return fmt.Errorf("%s %s: %w", call, key, ErrLost)
	}
	return nil
}

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 {
		return fmt.Errorf("swap %s: version %d cannot follow version %d", key, rec.Version, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	fault := s.fault(CallSwap, key)
	if fault == FaultRefuse {
		return fmt.Errorf("swap %s: %w", key, ErrLost)
	}
	if err := s.compare(key, expected); err != nil {
		return err
	}
	s.records[key] = body // in the same step as the comparison (invariant 1)
	switch fault {
	case FaultLoseReply:
		return fmt.Errorf("swap %s: %w", key, ErrLost)
	case FaultConflict:
		return checkpoint.ErrConflict
	}
	return nil
}

func (s *Store) compare(key string, expected uint64) error {
	body, ok := s.records[key]
	switch {
	case !ok && expected > 0:
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	case !ok:
		return nil
	}
	now, err := checkpoint.Decode(body)
	if err != nil {
		return err
	}
	if checkpoint.Fenced && now.Version != expected {
		return checkpoint.ErrConflict
	}
	return nil
}

// List implements checkpoint.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx, CallList, prefix); err != nil {
		return nil, err
	}
	var out []checkpoint.Entry
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		if strings.HasPrefix(key, prefix) {
			rec, err := checkpoint.Decode(s.records[key])
			out = append(out, checkpoint.Entry{Key: key, Record: rec, Err: err})
		}
	}
	return out, nil
}

// Identity implements checkpoint.Store.
func (s *Store) Identity() string { return "memory" }

// Close implements checkpoint.Store; the records stay.
func (s *Store) Close() error { return nil }
