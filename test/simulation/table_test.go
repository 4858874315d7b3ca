package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// lockTimeout is how long a session waits for a row that another one has.
const lockTimeout = time.Second

// table is a T1 sink with its own store of records: a transaction locks the row of
// its record when its rows are sent, and commits both in one step. A session that
// froze in between holds the lock until somebody ends it.
type table struct {
	w     *world
	store *memory.Store

	mu       sync.Mutex
	rows     map[string][]int64  // by checkpoint key, in the order of commits
	locks    map[string]string   // by checkpoint key: the session
	sessions map[string]*process // those that are open
	freed    chan struct{}
	opened   int
}

func newTable(w *world) *table {
	return &table{w: w, store: memory.New(), rows: map[string][]int64{}, locks: map[string]string{},
		sessions: map[string]*process{}, freed: make(chan struct{})}
}

func (t *table) connect(p *process) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened++
	s := fmt.Sprintf("%s-%d/%d", p.name, p.life, t.opened)
	t.sessions[s] = p
	return s
}

// end ends a session: what it had not committed is rolled back.
func (t *table) end(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, session)
	for key, s := range t.locks {
		if s == session {
			delete(t.locks, key)
		}
	}
	close(t.freed)
	t.freed = make(chan struct{})
}

// hangUp ends the sessions of a process whose connections are closed.
func (t *table) hangUp(p *process) {
	t.mu.Lock()
	var of []string
	for s, q := range t.sessions {
		if p == q {
			of = append(of, s)
		}
	}
	t.mu.Unlock()
	for _, s := range of {
		t.end(s)
	}
}

var errKilled = errors.New("the session was ended")

// lock takes the lock of a record for a session, waiting as long as a database does.
func (t *table) lock(key, session string) error {
	deadline := time.NewTimer(lockTimeout)
	defer deadline.Stop()
	for {
		t.mu.Lock()
		holder, held := t.locks[key]
		freed := t.freed
		_, open := t.sessions[session]
		if open && (!held || holder == session) {
			t.locks[key] = session
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		if !open {
			return errKilled
		}
		select {
		case <-freed:
		case <-deadline.C:
			return checkpoint.ErrLocked
		}
	}
}

func (t *table) unlock(key, session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.locks[key] == session {
		delete(t.locks, key)
		close(t.freed)
		t.freed = make(chan struct{})
	}
}

// commit writes rows and record if the session still has its lock.
func (t *table) commit(key, session string, swap connectors.Swap, rows []int64) error {
	t.mu.Lock()
	holder := t.locks[key]
	t.mu.Unlock()
	if holder != session {
		return errKilled
	}
	defer t.unlock(key, session)
	return t.w.ledger.swap(key, swap.Record, func() error {
		if err := t.store.Swap(context.Background(), key, swap.Expected, swap.Record); err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, n := range rows {
			if have := t.rows[key]; len(have) > 0 && n <= have[len(have)-1] {
				t.w.failf("record %d of %s is written behind record %d", n, key, have[len(have)-1])
			}
			t.rows[key] = append(t.rows[key], n)
		}
		return nil
	})
}

// has: the rows of a record are in their order, or the test has failed already.
func (t *table) has(key string, n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := slices.BinarySearch(t.rows[key], n)
	return ok
}

func (t *table) count(key string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows[key])
}

// tableSink is the sink of a process, and its store.
type tableSink struct {
	p *process
	t *table
}

var _ connectors.TxSink = (*tableSink)(nil)
var _ checkpoint.SessionEnder = (*tableStore)(nil)

func (s *tableSink) Check(context.Context) error { return nil }
func (s *tableSink) Close() error                { return nil }

func (s *tableSink) Store(ctx context.Context) (checkpoint.Store, error) {
	if s.p == nil { // the operator's
		return &tableStore{s: s, session: "operator"}, nil
	}
	err := s.p.call(ctx, "table open", func() error { return nil })
	return &tableStore{s: s, session: s.t.connect(s.p)}, err
}

func (s *tableSink) Prepare(ctx context.Context, _ connectors.Partition) (connectors.Prepared, error) {
	if err := s.p.call(ctx, "table prepare", func() error { return nil }); err != nil {
		return nil, err
	}
	return &txWriter{s: s, session: s.t.connect(s.p)}, nil
}

// tableStore swaps records outside transactions of rows: claims.
type tableStore struct {
	s       *tableSink
	session string
}

func (x *tableStore) call(ctx context.Context, what string, effect func() error) error {
	if x.s.p == nil {
		return effect()
	}
	return x.s.p.call(ctx, "table "+what, effect)
}

func (x *tableStore) caller(ctx context.Context, what string) func(func() error) error {
	return func(effect func() error) error { return x.call(ctx, what, effect) }
}

func (x *tableStore) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	return answer(x.caller(ctx, "load"), func() (checkpoint.Record, error) {
		t := x.s.t
		rec, err := t.store.Load(context.Background(), key)
		if err != nil {
			return rec, err
		}
		t.mu.Lock()
		_, held := t.locks[key]
		t.mu.Unlock()
		if !held {
			return rec, nil
		}
		// A commit may be pending: wait for it, or say who holds it.
		own := fmt.Sprintf("%s load %p", x.session, &rec)
		t.mu.Lock()
		t.sessions[own] = x.s.p
		t.mu.Unlock()
		defer t.end(own)
		if err := t.lock(key, own); err != nil {
			return rec, &checkpoint.LockedError{Key: key, Committed: rec}
		}
		return t.store.Load(context.Background(), key)
	})
}

func (x *tableStore) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	return x.call(ctx, "swap", func() error {
		t := x.s.t
		own := fmt.Sprintf("%s swap %p", x.session, &rec)
		t.mu.Lock()
		t.sessions[own] = x.s.p
		t.mu.Unlock()
		defer t.end(own)
		if err := t.lock(key, own); err != nil {
			return err
		}
		return t.commit(key, own, connectors.Swap{Key: key, Expected: expected, Record: rec}, nil)
	})
}

func (x *tableStore) EndSession(ctx context.Context, session string) error {
	return x.call(ctx, "end session", func() error {
		x.s.t.end(session)
		return nil
	})
}

func (x *tableStore) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	return answer(x.caller(ctx, "list"), func() ([]checkpoint.Entry, error) { return x.s.t.store.List(context.Background(), prefix) })
}

func (x *tableStore) Identity() string { return "table" }
func (x *tableStore) Close() error     { return nil }

// txWriter is a session of the table, prepared and then opened.
type txWriter struct {
	s       *tableSink
	session string
	claim   connectors.Claim
}

func (x *txWriter) Session() string { return x.session }

func (x *txWriter) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	x.claim = claim
	return x, x.s.p.call(ctx, "table begin", func() error { return nil })
}

// Close hangs up, which a frozen process does when it goes on: until then the
// server keeps the session.
func (x *txWriter) Close() error {
	x.s.p.w.wg.Go(func() {
		_ = x.s.p.pass()
		x.s.t.end(x.session)
	})
	return nil
}

func (x *txWriter) Begin() connectors.Txn { return &txn{x: x} }

type txn struct {
	x    *txWriter
	rows []int64
}

func (g *txn) Add(b *message.Batch, i, j int) error {
	for ; i < j; i++ {
		g.rows = append(g.rows, b.Msg(i).Ordinal)
	}
	return nil
}

func (g *txn) Rows() int  { return len(g.rows) }
func (g *txn) Bytes() int { return len(g.rows) }

// Commit is two flights: the rows, which the table may refuse and which take the
// lock, then the record and the commit.
func (g *txn) Commit(ctx context.Context, swap connectors.Swap) error {
	x := g.x
	rows := slices.Clone(g.rows)
	var bad connectors.RowsError
	for i, n := range rows {
		if kindOf(n) == kindRefused {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: errors.New("refused")})
		}
	}
	err := x.s.p.call(ctx, "table rows", func() error {
		if bad.Rows != nil {
			return &bad
		}
		return x.s.t.lock(swap.Key, x.session)
	})
	if err != nil {
		return x.verdict(err)
	}
	if err := x.claim.Gate(); err != nil {
		x.s.t.unlock(swap.Key, x.session)
		return err
	}
	x.s.p.w.ledger.open(x.s.p)
	err = x.s.p.call(ctx, "table commit", func() error { return x.s.t.commit(swap.Key, x.session, swap, rows) })
	if errors.Is(err, checkpoint.ErrConflict) {
		held := swap.Record
		held.Version = swap.Expected
		store := &tableStore{s: x.s, session: x.session}
		if verdict := checkpoint.Resolve(ctx, store, swap.Key, held); errors.Is(verdict, checkpoint.ErrFenced) {
			return verdict
		}
	}
	return x.verdict(err)
}

// verdict says what an error of the server means.
func (x *txWriter) verdict(err error) error {
	switch {
	case errors.Is(err, errKilled):
		return fmt.Errorf("%w: %w", connectors.ErrSuspect, err)
	case errors.Is(err, errLost):
		return connectors.Connection(err)
	}
	return err
}

func (g *txn) Drop(i int)     { g.rows = slices.Delete(g.rows, i, i+1) }
func (g *txn) Truncate(n int) { g.rows = g.rows[:n] }
func (g *txn) Discard()       { g.rows = nil }
