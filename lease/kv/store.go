// Package kv is the deterministic heart of every coordinator engine that this
// project carries itself: keys with revisions, leases as sets of keys,
// transactions and a bounded history. It has no clock and does no I/O: an engine
// decides when a lease is over and calls Revoke. The same calls in the same
// order give the same store, which is what replication relies on.
package kv

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/mqbridge/mqb/lease"
)

// MaxTxnBytes bounds the keys and values of one transaction.
const MaxTxnBytes = 1536 << 10

var (
	// ErrTooLarge: a transaction beyond MaxTxnBytes.
	ErrTooLarge = errors.New("kv: transaction too large")
	// ErrDuplicateKey: two operations of one transaction write the same key.
	ErrDuplicateKey = errors.New("kv: key written twice in one transaction")
)

// Options bounds the history that watches are served from.
type Options struct {
	HistoryEvents int // default 32,768
	HistoryBytes  int // default 16 MiB
}

// Store is the state machine. Reads see an immutable tree and may run beside
// one writer; writers are serialized. Values passed in are kept, not copied.
type Store struct {
	mu        sync.RWMutex
	tree      *iradix.Tree[*lease.KV]
	rev       int64
	nextLease lease.LeaseID
	leases    map[lease.LeaseID]*grant
	history   history
	changed   chan struct{} // closed and replaced when a watch may have news
	closed    bool
	ended     chan struct{} // closed by Close
}

// grant is one lease and what hangs on it.
type grant struct {
	ttl  time.Duration
	keys map[string]struct{}
}

// New returns an empty store at revision 0.
func New(o Options) *Store {
	if o.HistoryEvents <= 0 {
		o.HistoryEvents = 32 << 10
	}
	if o.HistoryBytes <= 0 {
		o.HistoryBytes = 16 << 20
	}
	return &Store{
		tree:    iradix.New[*lease.KV](),
		leases:  map[lease.LeaseID]*grant{},
		history: history{maxEvents: o.HistoryEvents, maxBytes: o.HistoryBytes},
		changed: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Get returns the key, or nil, and the store's revision.
func (s *Store) Get(key string) (*lease.KV, int64) {
	s.mu.RLock()
	tree, rev := s.tree, s.rev
	s.mu.RUnlock()
	kv, ok := tree.Get([]byte(key))
	if !ok {
		return nil, rev
	}
	c := *kv
	return &c, rev
}

// List returns the keys with the prefix in byte order, and the store's revision.
func (s *Store) List(prefix string) ([]lease.KV, int64) {
	s.mu.RLock()
	tree, rev := s.tree, s.rev
	s.mu.RUnlock()
	var kvs []lease.KV
	tree.Root().WalkPrefix([]byte(prefix), func(_ []byte, kv *lease.KV) bool {
		kvs = append(kvs, *kv)
		return false
	})
	return kvs, rev
}

// Check refuses a transaction that no engine may accept. Engines call it before
// they propose one.
func Check(compares []lease.Compare, ops []lease.Op) error {
	size := 0
	for i := range compares {
		size += len(compares[i].Key) + len(compares[i].Value)
		if compares[i].Field > lease.FieldValue {
			return fmt.Errorf("kv: unknown compare field %d", compares[i].Field)
		}
	}
	written := make(map[string]struct{}, len(ops))
	var prefixes []string
	for i := range ops {
		op := &ops[i]
		size += len(op.Key) + len(op.Value)
		switch {
		case op.Kind > lease.OpDeletePrefix:
			return fmt.Errorf("kv: unknown operation %d", op.Kind)
		case op.Key == "":
			return errors.New("kv: empty key")
		case op.Kind == lease.OpDeletePrefix:
			prefixes = append(prefixes, op.Key)
		default:
			if _, dup := written[op.Key]; dup {
				return fmt.Errorf("%w: %s", ErrDuplicateKey, op.Key)
			}
			written[op.Key] = struct{}{}
		}
	}
	for i, p := range prefixes {
		for k := range written {
			if strings.HasPrefix(k, p) {
				return fmt.Errorf("%w: %s", ErrDuplicateKey, k)
			}
		}
		for _, q := range prefixes[:i] {
			if strings.HasPrefix(p, q) || strings.HasPrefix(q, p) {
				return fmt.Errorf("%w: %s", ErrDuplicateKey, p)
			}
		}
	}
	if size > MaxTxnBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, size, MaxTxnBytes)
	}
	return nil
}

// Txn applies ops if every compare holds. A transaction that changes nothing
// (only deletes of absent keys) takes no revision.
func (s *Store) Txn(compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	if err := Check(compares, ops); err != nil {
		return lease.Result{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range compares {
		if !s.holds(&compares[i]) {
			return lease.Result{Revision: s.rev}, nil
		}
	}
	for i := range ops {
		if ops[i].Kind == lease.OpPut && ops[i].Lease != 0 && s.leases[ops[i].Lease] == nil {
			return lease.Result{}, lease.ErrLeaseNotFound
		}
	}
	w := s.begin()
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case lease.OpPut:
			w.put(op)
		case lease.OpDelete:
			w.delete(op.Key)
		case lease.OpDeletePrefix:
			w.deletePrefix(op.Key)
		}
	}
	w.commit()
	return lease.Result{Succeeded: true, Revision: s.rev}, nil
}

func (s *Store) holds(c *lease.Compare) bool {
	var kv lease.KV // the zero value is an absent key: all numbers 0
	found, ok := s.tree.Get([]byte(c.Key))
	if ok {
		kv = *found
	}
	switch c.Field {
	case lease.FieldVersion:
		return kv.Version == c.Number
	case lease.FieldModRevision:
		return kv.ModRevision == c.Number
	case lease.FieldCreateRevision:
		return kv.CreateRevision == c.Number
	default:
		return ok && string(kv.Value) == string(c.Value)
	}
}

// Grant makes a lease. Ids rise from 1 and are never used again.
func (s *Store) Grant(ttl time.Duration) lease.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextLease++
	s.leases[s.nextLease] = &grant{ttl: ttl, keys: map[string]struct{}{}}
	return s.nextLease
}

// Revoke ends a lease and deletes its keys in one revision. It reports whether
// the lease existed.
func (s *Store) Revoke(id lease.LeaseID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.leases[id]
	if g == nil {
		return false
	}
	keys := make([]string, 0, len(g.keys))
	for k := range g.keys {
		keys = append(keys, k)
	}
	sort.Strings(keys) // the order of events must not depend on a map
	w := s.begin()
	for _, k := range keys {
		w.delete(k)
	}
	delete(s.leases, id)
	w.commit()
	return true
}

// TTL returns the lease's time to live, and false when there is no such lease.
func (s *Store) TTL(id lease.LeaseID) (time.Duration, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	g := s.leases[id]
	if g == nil {
		return 0, false
	}
	return g.ttl, true
}

// Leases returns every lease with its time to live.
func (s *Store) Leases() map[lease.LeaseID]time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	m := make(map[lease.LeaseID]time.Duration, len(s.leases))
	for id, g := range s.leases {
		m[id] = g.ttl
	}
	return m
}

// Revision is that of the last change.
func (s *Store) Revision() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rev
}

// Close ends all watches, read or not. The store stays readable.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
}

// write is one change of the tree under s.mu.
type write struct {
	s      *Store
	txn    *iradix.Txn[*lease.KV]
	rev    int64
	events []lease.Event
}

func (s *Store) begin() *write {
	return &write{s: s, txn: s.tree.Txn(), rev: s.rev + 1}
}

func (w *write) put(op *lease.Op) {
	kv := &lease.KV{Key: op.Key, Value: op.Value, Version: 1, CreateRevision: w.rev, ModRevision: w.rev, Lease: op.Lease}
	key := []byte(op.Key)
	if old, ok := w.txn.Get(key); ok {
		kv.Version, kv.CreateRevision = old.Version+1, old.CreateRevision
		if g := w.s.leases[old.Lease]; g != nil {
			delete(g.keys, op.Key)
		}
	}
	if g := w.s.leases[op.Lease]; g != nil {
		g.keys[op.Key] = struct{}{}
	}
	w.txn.Insert(key, kv)
	w.events = append(w.events, lease.Event{Type: lease.EventPut, KV: *kv})
}

func (w *write) delete(key string) {
	old, ok := w.txn.Delete([]byte(key))
	if !ok {
		return
	}
	if g := w.s.leases[old.Lease]; g != nil {
		delete(g.keys, key)
	}
	w.events = append(w.events, lease.Event{Type: lease.EventDelete, KV: lease.KV{Key: key, ModRevision: w.rev}})
}

func (w *write) deletePrefix(prefix string) {
	var keys []string
	w.txn.Root().WalkPrefix([]byte(prefix), func(k []byte, _ *lease.KV) bool {
		keys = append(keys, string(k))
		return false
	})
	for _, k := range keys {
		w.delete(k)
	}
}

func (w *write) commit() {
	if len(w.events) == 0 {
		return
	}
	w.s.tree = w.txn.Commit()
	w.s.rev = w.rev
	w.s.history.add(w.rev, w.events)
	w.s.notify()
}

// notify wakes the watches. Called under s.mu.
func (s *Store) notify() {
	if s.closed {
		return
	}
	close(s.changed)
	s.changed = make(chan struct{})
}
