package raft

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// fsm applies the log to the store. It runs on every member; what depends on a
// clock (when a lease is over) is decided by the leader and comes as an entry.
type fsm struct {
	store *kv.Store
	// granted and revoked tell the leader's clock of leases, after they applied.
	granted func(kv.Outcome)
	revoked func(lease.LeaseID)

	// pending is how many bytes were applied since the last snapshot.
	pending atomic.Int64

	mu      sync.Mutex
	applied uint64        // index of the last command in the store
	moved   chan struct{} // closed and replaced when applied rises
}

func newFSM(store *kv.Store) *fsm { return &fsm{store: store, moved: make(chan struct{})} }

// Apply is called for one entry at a time, in log order.
func (f *fsm) Apply(l *hraft.Log) any {
	c, err := kv.DecodeCommand(l.Data)
	var o kv.Outcome
	if err != nil {
		o.Err = err // the same on every member
	} else {
		o = f.store.Apply(c)
		switch c.Kind {
		case kv.KindGrant:
			f.granted(o)
		case kv.KindRevoke:
			f.revoked(c.Lease)
		}
	}
	f.pending.Add(int64(len(l.Data)))
	f.advance(l.Index)
	return o
}

func (f *fsm) advance(index uint64) {
	f.mu.Lock()
	f.applied = index
	close(f.moved)
	f.moved = make(chan struct{})
	f.mu.Unlock()
}

// position returns the index of the last command in the store, and a channel
// that is closed when it rises.
func (f *fsm) position() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied, f.moved
}

// Snapshot is never called beside Apply.
func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	f.pending.Store(0)
	applied, _ := f.position()
	return &fsmSnapshot{applied: applied, Snapshot: f.store.Snapshot()}, nil
}

// Restore replaces the store; it is called at start and when the leader sends a
// snapshot because this member fell behind its log.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("raft: snapshot: %w", err)
	}
	if err := f.store.Restore(r); err != nil {
		return fmt.Errorf("raft: snapshot: %w", err)
	}
	f.pending.Store(0)
	f.advance(binary.BigEndian.Uint64(head[:]))
	return nil
}

// fsmSnapshot is the index of the last command and the store's snapshot.
type fsmSnapshot struct {
	applied uint64
	*kv.Snapshot
}

func (s *fsmSnapshot) Persist(sink hraft.SnapshotSink) error {
	_, err := sink.Write(binary.BigEndian.AppendUint64(nil, s.applied))
	if err == nil {
		_, err = s.WriteTo(sink)
	}
	if err != nil {
		_ = sink.Cancel()
		return fmt.Errorf("raft: snapshot: %w", err)
	}
	return sink.Close()
}

func (s *fsmSnapshot) Release() {}
