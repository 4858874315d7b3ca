// Package storetest is the conformance suite of checkpoint.Store, and of Claim
// and Commit above it.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			New: func(t *testing.T) *storetest.Subject {
//				url := newDatabase(t)
//				return &storetest.Subject{
//					Open:   func(t *testing.T) checkpoint.Store { return open(t, url) },
//					Tamper: func(t *testing.T, key string, change func([]byte) []byte) { … },
//				}
//			},
//		})
//	}
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/message"
)

// Harness is what a store hands to Run.
type Harness struct {
	// New makes an empty store. It is called once and registers its clean-up; each
	// behaviour uses keys of its own.
	New func(t *testing.T) *Subject
	// Histories is the number of random histories (default 10,000), Steps the
	// length of each (default 30) and Workers how many run at a time (default 4).
	// With testing.Short a twentieth of them runs.
	Histories, Steps, Workers int
	// Timeout is how long one behaviour may take (default 1 min).
	Timeout time.Duration
}

// Subject is a store. The fields that may be nil opt into behaviours.
type Subject struct {
	// Open connects to the store; the suite closes it. Called several times, it
	// behaves like several nodes.
	Open func(t *testing.T) checkpoint.Store
	// Tamper replaces the stored bytes of a record past every comparison: torn
	// writes, restored backups. change gets nil for an absent record and returns
	// nil to delete it; what it returns unchanged is not written.
	Tamper func(t *testing.T, key string, change func([]byte) []byte)
	// LockRecord makes a writer session for a record to name; lock makes it hold
	// the record's row and freeze.
	LockRecord func(t *testing.T) (session string, lock func(key string))
}

// Run runs every behaviour that the subject opts into, as named subtests.
func Run(t *testing.T, h Harness) {
	if h.Histories == 0 {
		h.Histories = 10_000
	}
	if testing.Short() {
		h.Histories = max(1, h.Histories/20)
	}
	if h.Steps == 0 {
		h.Steps = 30
	}
	if h.Workers == 0 {
		h.Workers = 4
	}
	if h.Timeout == 0 {
		h.Timeout = time.Minute
	}
	s := h.New(t)
	store := s.Open(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, b := range behaviours {
		if b.applies != nil && !b.applies(s) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
			defer cancel()
			b.run(&rig{T: t, ctx: ctx, s: s, store: store, key: "storetest/" + t.Name()})
		})
	}
	t.Run("random histories", func(t *testing.T) { histories(t, h, store) })
}

type behaviour struct {
	name    string
	applies func(*Subject) bool // nil: always
	run     func(*rig)
}

type rig struct {
	*testing.T
	ctx   context.Context
	s     *Subject
	store checkpoint.Store
	key   string
}

func at(n int) message.Position {
	return message.Position{Token: fmt.Appendf(nil, "token-%d", n), Sort: message.SortKey(int64(n))}
}

// request is a claim of the usual cluster, route and series.
func request(key string, epoch uint64, run string) checkpoint.ClaimRequest {
	return checkpoint.ClaimRequest{
		Key: key, ClusterUID: "cluster", RouteUID: "route", Series: "s1", Generation: 1, Epoch: epoch, Run: run,
	}
}

func (r *rig) claim(epoch uint64, change ...func(*checkpoint.ClaimRequest)) checkpoint.Claimed {
	r.Helper()
	c, err := r.tryClaim(r.store, epoch, change...)
	if err != nil {
		r.Fatalf("claim: %v", err)
	}
	return c
}

func (r *rig) tryClaim(s checkpoint.Store, epoch uint64, change ...func(*checkpoint.ClaimRequest)) (checkpoint.Claimed, error) {
	req := request(r.key, epoch, fmt.Sprintf("run-%d", epoch))
	for _, c := range change {
		c(&req)
	}
	return checkpoint.Claim(r.ctx, s, req)
}

func (r *rig) tryCommit(s checkpoint.Store, held checkpoint.Record, to int) (checkpoint.Record, error) {
	next := held
	next.Position = at(to)
	return checkpoint.Commit(r.ctx, s, r.key, held, next)
}

func (r *rig) commit(held checkpoint.Record, to int) checkpoint.Record {
	r.Helper()
	got, err := r.tryCommit(r.store, held, to)
	if err != nil {
		r.Fatalf("commit: %v", err)
	}
	r.stored(got)
	return got
}

// stored fails unless the store holds want.
func (r *rig) stored(want checkpoint.Record) {
	r.Helper()
	got, err := r.store.Load(r.ctx, r.key)
	if err != nil {
		r.Fatalf("load: %v", err)
	}
	if !same(got, want) {
		r.Errorf("the store holds %+v, want %+v", got, want)
	}
}

// same compares all that a store must keep.
func same(a, b checkpoint.Record) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	// Empty and absent are the same once encoded.
	x, errX := checkpoint.Encode(a)
	y, errY := checkpoint.Encode(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func (r *rig) is(err, want error, why string) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got %v, want %v", why, err, want)
	}
}

// errLost is the connection that broke.
var errLost = errors.New("storetest: connection lost")

// faulty is a store whose next Swap fails as told. Any store can fail like this,
// so it stands above the real one.
type faulty struct {
	checkpoint.Store
	next fault
	// accepted is told of every Swap that the store took.
	accepted func(key string, rec checkpoint.Record)
	// late is a Swap that is still on its way, if any.
	late func() error
}

type fault int

const (
	none     fault = iota
	refuse         // nothing happens
	lose           // it happens, the reply is lost
	conflict       // it happens, then the client repeats it and meets itself
	delay          // nothing happens yet
)

func (f *faulty) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	do := func() error {
		err := f.Store.Swap(ctx, key, expected, rec)
		if err == nil && f.accepted != nil {
			f.accepted(key, rec)
		}
		return err
	}
	now := f.next
	f.next = none
	switch now {
	case refuse:
		return errLost
	case delay:
		f.late = do
		return errLost
	}
	if err := do(); err != nil {
		return err
	}
	switch now {
	case lose:
		return errLost
	case conflict:
		return checkpoint.ErrConflict
	}
	return nil
}
