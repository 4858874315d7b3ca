package sinktest_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// place is what sinks of all kinds write to in memory, with each fault on
// demand. It exists to see the suite pass and turn red.
type place struct {
	fault string
	kind  string // plain, stateful, tx, parts

	mu       sync.Mutex
	open     chan struct{} // closed unless the system is blocked
	rows     [][]byte
	keys     map[string]bool
	store    *store
	parts    map[string]part
	order    []string
	manifest string
	spools   int
}

func newPlace(fault, kind string) *place {
	p := &place{fault: fault, kind: kind, open: make(chan struct{}), keys: map[string]bool{}, parts: map[string]part{}}
	close(p.open)
	p.store = &store{Store: memory.New(), frozen: map[string]string{}, ended: map[string]bool{}}
	return p
}

func (p *place) block() (unblock func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
	return func() { close(p.open) }
}

// wait is what every write does first.
func (p *place) wait(ctx context.Context, closed <-chan struct{}) error {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	if p.fault == "close does not wake a write" {
		closed = nil
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return context.Canceled
	}
}

func (p *place) visible() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Clone(p.rows)
	for _, name := range p.order {
		out = append(out, p.parts[name].rows...)
	}
	return out
}

func bad(payload []byte) bool         { return strings.HasPrefix(string(payload), "refused") }
func unencodable(payload []byte) bool { return strings.HasPrefix(string(payload), "unencodable") }

// store is a checkpoint store whose records a frozen session can lock.
type store struct {
	*memory.Store
	mu     sync.Mutex
	frozen map[string]string // key → session
	ended  map[string]bool
	deaf   bool
}

func (s *store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	s.mu.Lock()
	session := s.frozen[key]
	locked := session != "" && !s.ended[session]
	s.mu.Unlock()
	if locked {
		return checkpoint.ErrLocked
	}
	return s.Store.Swap(ctx, key, expected, rec)
}

func (s *store) EndSession(_ context.Context, session string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[session] = !s.deaf
	return nil
}

type sink struct{ p *place }

// txSink is a sink with a store.
type txSink struct{ sink }

func (s txSink) Store(context.Context) (checkpoint.Store, error) { return s.p.store, nil }

func (s sink) Prepare(context.Context, connectors.Partition) (connectors.Prepared, error) {
	return prepared(s), nil
}

func (s sink) Check(context.Context) error {
	if s.p.fault == "check writes" {
		s.p.rows = append(s.p.rows, []byte("probe"))
	}
	return nil
}

func (s sink) Close() error { return nil }

type prepared struct{ p *place }

func (pr prepared) Session() string { return "" }
func (pr prepared) Close() error    { return nil }

func (pr prepared) Open(_ context.Context, claim connectors.Claim) (connectors.Writer, error) {
	w := &writer{p: pr.p, claim: claim, closed: make(chan struct{})}
	switch w.p.kind {
	case "tx":
		return &txWriter{w}, nil
	case "parts":
		pw := &partWriter{writer: w}
		return pw, pw.adopt()
	case "stateful":
		if state := claim.Record.SinkState; len(state) > 0 && w.p.fault != "nothing taken back" {
			n, err := strconv.Atoi(string(state))
			if err != nil {
				return nil, err
			}
			w.p.rows = w.p.rows[:n]
		}
		return &statefulWriter{w}, nil
	}
	return &plainWriter{w}, nil
}

type writer struct {
	p      *place
	claim  connectors.Claim
	closed chan struct{}
}

func (w *writer) Close() error {
	close(w.closed)
	return nil
}

func (w *writer) gate() error {
	if w.p.fault == "gate ignored" {
		return nil
	}
	return w.claim.Gate()
}

type plainWriter struct{ *writer }

func (w *plainWriter) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if err := w.p.wait(ctx, w.closed); err != nil {
		return err
	}
	if err := w.gate(); err != nil {
		return err
	}
	if w.p.fault == "range ignored" {
		i, j = 0, b.Len()
	}
	if w.p.fault == "reversed" {
		w.p.rows = append(w.p.rows, slices.Clone(b.Payload(j-1)))
		j--
	}
	var refused connectors.RowsError
	for ; i < j; i++ {
		row := slices.Clone(b.Payload(i))
		switch {
		case bad(row):
			if w.p.fault == "wrong row named" {
				refused.Rows = append(refused.Rows, connectors.RowError{Index: i + 1, Err: errors.New("no")})
				continue
			}
			refused.Rows = append(refused.Rows, connectors.RowError{Index: i, Err: errors.New("no")})
			if w.p.fault == "stops at a refused row" {
				return &refused
			}
		case !w.p.keys[string(row)] || w.p.fault == "repeats land twice":
			w.p.keys[string(row)] = true
			w.p.rows = append(w.p.rows, row)
		}
	}
	if len(refused.Rows) > 0 {
		return &refused
	}
	return nil
}

// statefulWriter's state is the number of its rows.
type statefulWriter struct{ *writer }

func (w *statefulWriter) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if err := w.p.wait(ctx, w.closed); err != nil {
		return err
	}
	if err := w.gate(); err != nil {
		return err
	}
	var refused connectors.RowsError
	var rows [][]byte
	for ; i < j; i++ {
		if row := slices.Clone(b.Payload(i)); bad(row) {
			refused.Rows = append(refused.Rows, connectors.RowError{Index: i, Err: errors.New("no")})
		} else {
			rows = append(rows, row)
		}
	}
	if len(refused.Rows) == 0 || w.p.fault == "others written beside a refused row" {
		w.p.rows = append(w.p.rows, rows...)
	}
	if len(refused.Rows) > 0 {
		return &refused
	}
	return nil
}

func (w *statefulWriter) State(context.Context) ([]byte, error) {
	n := len(w.p.rows)
	if w.p.fault == "the state falls short" {
		n = max(n-1, 0)
	}
	return strconv.AppendInt(nil, int64(n), 10), nil
}

type txWriter struct{ *writer }

func (w *txWriter) Begin() connectors.Txn { return &txn{w: w} }

type txn struct {
	w    *txWriter
	rows [][]byte
}

func (t *txn) Add(b *message.Batch, i, j int) error {
	var refused connectors.RowsError
	for ; i < j; i++ {
		row := slices.Clone(b.Payload(i))
		if unencodable(row) {
			refused.Rows = append(refused.Rows, connectors.RowError{Index: i, Err: errors.New("no")})
			continue
		}
		if t.w.p.fault == "visible before the commit" {
			t.w.p.rows = append(t.w.p.rows, row)
		}
		t.rows = append(t.rows, row)
	}
	if len(refused.Rows) > 0 && t.w.p.fault != "unencodable dropped silently" {
		return &refused
	}
	return nil
}

func (t *txn) Rows() int { return len(t.rows) }

func (t *txn) Bytes() int {
	n := 1
	for _, r := range t.rows {
		n += len(r)
	}
	return n
}

func (t *txn) Commit(ctx context.Context, swap connectors.Swap) error {
	p := t.w.p
	if err := p.wait(ctx, t.w.closed); err != nil {
		return err
	}
	if err := t.w.gate(); err != nil {
		return err
	}
	var refused connectors.RowsError
	for i, row := range t.rows {
		if bad(row) {
			refused.Rows = append(refused.Rows, connectors.RowError{Index: i, Err: errors.New("no")})
		}
	}
	if len(refused.Rows) > 0 {
		switch p.fault {
		case "others written beside a refused row":
			p.rows = append(p.rows, t.rows[:refused.Rows[0].Index]...)
		case "wrong row named":
			refused.Rows[0].Index++
		}
		return &refused
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.fault {
	case "rows without the record":
		p.rows = append(p.rows, t.rows...)
		return nil
	case "rows before the fence":
		p.rows = append(p.rows, t.rows...)
		t.rows = nil
	case "creates the record":
		if _, err := p.store.Load(ctx, swap.Key); errors.Is(err, checkpoint.ErrNotFound) {
			rec := swap.Record
			rec.Version = 1
			return p.store.Swap(ctx, swap.Key, 0, rec)
		}
	case "epoch instead of version compared":
		now, err := p.store.Load(ctx, swap.Key)
		if err == nil && now.Epoch == swap.Record.Epoch {
			swap.Expected, swap.Record.Version = now.Version, now.Version+1
		}
	}
	if err := p.store.Swap(ctx, swap.Key, swap.Expected, swap.Record); err != nil {
		now, loadErr := p.store.Load(ctx, swap.Key)
		if loadErr == nil && now.Epoch > swap.Record.Epoch {
			return &checkpoint.FencedError{Key: swap.Key, Epoch: swap.Record.Epoch, Stored: now.Epoch}
		}
		return err
	}
	p.rows = append(p.rows, t.rows...)
	return nil
}

func (t *txn) Drop(row int) {
	if t.w.p.fault == "drops the wrong row" {
		row = len(t.rows) - 1
	}
	t.rows = slices.Delete(t.rows, row, row+1)
}

func (t *txn) Truncate(n int) {
	if t.w.p.fault == "truncates one too many" {
		n--
	}
	t.rows = t.rows[:n]
}

func (t *txn) Discard() {
	if t.w.p.fault == "discard commits" {
		t.w.p.rows = append(t.w.p.rows, t.rows...)
	}
	t.rows = nil
}
