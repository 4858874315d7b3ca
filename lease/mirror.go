package lease

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Mirror follows everything under a prefix: it lists, watches, and lists again
// when it fell behind. What it shows may be old; whoever acts on it compares
// revisions in its transaction. Safe for concurrent use.
type Mirror struct {
	c      Coordinator
	prefix string
	log    *slog.Logger

	mu      sync.Mutex
	now     Snapshot
	changed chan struct{}
}

// NewMirror returns a mirror that is empty until Run has listed. log may be nil.
func NewMirror(c Coordinator, prefix string, log *slog.Logger) *Mirror {
	if log == nil {
		log = slog.Default()
	}
	return &Mirror{c: c, prefix: prefix, log: log, now: Snapshot{tree: iradix.New[KV]()}, changed: make(chan struct{})}
}

// Snapshot is the mirrored keys at one revision. It never changes and costs
// nothing to take.
type Snapshot struct {
	// Revision of the last change seen; Synced is false before the first list.
	Revision int64
	Synced   bool
	tree     *iradix.Tree[KV]
}

// Get returns one key.
func (s Snapshot) Get(key string) (KV, bool) { return s.tree.Get([]byte(key)) }

// Len is the number of keys.
func (s Snapshot) Len() int { return s.tree.Len() }

// All yields the keys with the prefix in byte order.
func (s Snapshot) All(prefix string) iter.Seq[KV] {
	return func(yield func(KV) bool) {
		s.tree.Root().WalkPrefix([]byte(prefix), func(_ []byte, kv KV) bool { return !yield(kv) })
	}
}

// Snapshot returns the current state.
func (m *Mirror) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Changed returns a channel that is closed at the next change. Take the channel
// first, then the snapshot.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Wait returns the first snapshot at or after revision rev, or ctx's error. A
// revision that changed nothing under the prefix is not seen by a mirror, so
// wait only for one that did.
func (m *Mirror) Wait(ctx context.Context, rev int64) (Snapshot, error) {
	for {
		changed := m.Changed()
		if s := m.Snapshot(); s.Synced && s.Revision >= rev {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		}
	}
}

// Run follows until ctx ends or the coordinator is closed, and returns why.
func (m *Mirror) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 20*time.Millisecond, time.Second
	for {
		began := time.Now()
		err := m.follow(ctx)
		// A list that succeeds says nothing of the watch behind it.
		if time.Since(began) > pause.MaxInterval {
			pause.Reset()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrClosed) {
			return err
		}
		if !errors.Is(err, ErrCompacted) {
			m.log.Debug("mirror interrupted", "prefix", m.prefix, "error", err)
		}
		wait(ctx, pause.NextBackOff())
	}
}

// follow lists once and applies the watch until it ends.
func (m *Mirror) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	try, stop := context.WithTimeout(ctx, 5*time.Second)
	kvs, rev, err := m.c.List(try, m.prefix)
	stop()
	if err != nil {
		return err
	}
	txn := iradix.New[KV]().Txn()
	for _, kv := range kvs {
		txn.Insert([]byte(kv.Key), kv)
	}
	m.publish(txn.Commit(), rev)
	for r := range m.c.Watch(ctx, m.prefix, rev+1) {
		if r.Err != nil {
			return r.Err
		}
		txn := m.Snapshot().tree.Txn()
		for _, e := range r.Events {
			if e.Type == EventDelete {
				txn.Delete([]byte(e.KV.Key))
			} else {
				txn.Insert([]byte(e.KV.Key), e.KV)
			}
		}
		m.publish(txn.Commit(), r.Revision)
	}
	// The channel ends without an error when the coordinator closes; if that is
	// so the next list says it.
	return ErrUnavailable
}

func (m *Mirror) publish(tree *iradix.Tree[KV], rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = Snapshot{Revision: rev, Synced: true, tree: tree}
	close(m.changed)
	m.changed = make(chan struct{})
}
