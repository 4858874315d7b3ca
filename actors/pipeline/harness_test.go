package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "test/uid/1/p/out"

// world is what outlives a run: the records' store and the sink's content. The
// sinks below are models of the three kinds of writers, so that a test can make
// any step fail.
type world struct {
	t     testing.TB
	store *memory.Store
	spec  *route.Spec
	epoch uint64

	mu      sync.Mutex          // of what is in the sink
	rows    []string            // of the T1 and of the T3 sink, in order
	parts   map[string][]string // of the T2 sink, by name
	covered []connectors.Range
	gate    func() error
	// Called before the step, where set; an error is the step's.
	onPublish, onCommit, onWrite, onSeal func() error
	slow                                 func(context.Context) error // a commit or a publish
	refuse                               map[string]bool             // payloads that the sink refuses
	enclosed                             *[]string                   // the dlq of the T1 sink's own system, if it has one
}

func newWorld(t testing.TB) *world {
	return &world{t: t, store: memory.New(), parts: map[string][]string{}, gate: func() error { return nil }, refuse: map[string]bool{},
		spec: &route.Spec{Name: "r", BatchSize: 100, ExitOnEmpty: true, CheckpointInterval: time.Second, OnError: route.OnErrorStop,
			Roll: route.Roll{Bytes: 1 << 20, Records: 1_000_000, Age: 10 * time.Second}}}
}

func pos(n int64) message.Position {
	return message.Position{Token: fmt.Appendf(nil, "t%d", n), Sort: message.SortKey(n)}
}

type positioner struct{}

func (positioner) After(m *message.Message) message.Position { return pos(m.Next) }

// batch holds the records [from, to), but for those left out, as a reader makes it.
func batch(from, to int64, gaps ...int64) *message.Batch {
	b := message.NewBatch()
	for n := from; n < to; n++ {
		if !slices.Contains(gaps, n) {
			b.Append([]byte(strconv.FormatInt(n, 10)), n, n+1)
		}
	}
	b.From, b.End, b.Positions, b.Read = pos(from), pos(to), positioner{}, b.Len()
	return b
}

// script is a reader that does one step after the other, then comes to its end.
type script struct {
	steps   []func(ctx context.Context) (*message.Batch, error)
	settled []message.Position
	settle  func(ctx context.Context, p message.Position) error
}

func (s *script) Read(ctx context.Context) (*message.Batch, error) {
	if len(s.steps) == 0 {
		return nil, connectors.ErrEndOfInput
	}
	step := s.steps[0]
	s.steps = s.steps[1:]
	return step(ctx)
}

func (s *script) Settle(ctx context.Context, p message.Position) error {
	if s.settle != nil {
		if err := s.settle(ctx, p); err != nil {
			return err
		}
	}
	s.settled = append(s.settled, p)
	return nil
}

func (s *script) Lag() int64   { return 0 }
func (s *script) Close() error { return nil }

func gives(b *message.Batch) func(context.Context) (*message.Batch, error) {
	return func(context.Context) (*message.Batch, error) { return b, nil }
}

func fails(err error) func(context.Context) (*message.Batch, error) {
	return func(context.Context) (*message.Batch, error) { return nil, err }
}

func waits(d time.Duration) func(context.Context) (*message.Batch, error) {
	return func(ctx context.Context) (*message.Batch, error) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil, connectors.ErrEndOfInput
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reads gives [from, to) in batches of size, from is the record's position.
func reads(from, to, size int64, gaps ...int64) *script {
	s := &script{}
	for ; from < to; from += size {
		s.steps = append(s.steps, gives(batch(from, min(from+size, to), gaps...)))
	}
	return s
}

// txWriter is a T1 sink: rows and record change together or not at all.
type txWriter struct{ w *world }

func (x txWriter) Begin() connectors.Txn { return &txn{w: x.w} }
func (x txWriter) Close() error          { return nil }

type txn struct {
	w       *world
	rows    []string
	letters []string
}

// TakesLetters and AddLetters: a dlq in the same system.
func (x *txn) TakesLetters() bool { return x.w.enclosed != nil }

func (x *txn) AddLetters(b *message.Batch, i, j int) error {
	for ; i < j; i++ {
		x.letters = append(x.letters, string(b.Payload(i)))
	}
	return nil
}

func (x *txn) Add(b *message.Batch, i, j int) error {
	var bad connectors.RowsError
	for ; i < j; i++ {
		p := string(b.Payload(i))
		if strings.HasPrefix(p, "unencodable") {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: errors.New("cannot be encoded")})
			continue
		}
		x.rows = append(x.rows, p)
	}
	if bad.Rows != nil {
		return &bad
	}
	return nil
}

func (x *txn) Rows() int  { return len(x.rows) }
func (x *txn) Bytes() int { return 10 * len(x.rows) }

func (x *txn) Commit(ctx context.Context, s connectors.Swap) error {
	if f := x.w.slow; f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	if f := x.w.onCommit; f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	var bad connectors.RowsError
	for i, r := range x.rows {
		if x.w.refuse[r] {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: errors.New("refused")})
		}
	}
	if bad.Rows != nil {
		return &bad
	}
	err := x.w.store.Swap(ctx, s.Key, s.Expected, s.Record)
	if now := x.w.record(); err == nil || now.Run == s.Record.Run && now.Version == s.Record.Version {
		x.w.mu.Lock()
		x.w.rows = append(x.w.rows, x.rows...) // also when the reply was lost
		if x.w.enclosed != nil {
			*x.w.enclosed = append(*x.w.enclosed, x.letters...)
		}
		x.w.mu.Unlock()
		return err
	}
	held := s.Record
	held.Version = s.Expected
	if verdict := checkpoint.Resolve(ctx, x.w.store, s.Key, held); errors.Is(verdict, checkpoint.ErrFenced) {
		return verdict
	}
	return err
}

func (x *txn) Drop(i int)     { x.rows = slices.Delete(x.rows, i, i+1) }
func (x *txn) Truncate(n int) { x.rows = x.rows[:n] }
func (x *txn) Discard()       { x.rows = nil }

// plainWriter is a T3 sink.
type plainWriter struct{ w *world }

func (x plainWriter) Close() error { return nil }

func (x plainWriter) Write(_ context.Context, b *message.Batch, i, j int) error {
	if f := x.w.onWrite; f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	var bad connectors.RowsError
	for ; i < j; i++ {
		if p := string(b.Payload(i)); x.w.refuse[p] {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: errors.New("refused")})
		} else {
			x.w.rows = append(x.w.rows, p)
		}
	}
	if bad.Rows != nil {
		return &bad
	}
	return nil
}

// appendWriter is a T2 sink with state: the number of its rows.
type appendWriter struct{ plainWriter }

func (x appendWriter) Write(ctx context.Context, b *message.Batch, i, j int) error {
	var bad connectors.RowsError
	for k := i; k < j; k++ {
		if x.w.refuse[string(b.Payload(k))] {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: k, Err: errors.New("refused")})
		}
	}
	if bad.Rows != nil {
		return &bad
	}
	return x.plainWriter.Write(ctx, b, i, j)
}

func (x appendWriter) State(context.Context) ([]byte, error) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	return strconv.AppendInt(nil, int64(len(x.w.rows)), 10), nil
}

// openAppend cuts to what the record says.
func (w *world) openAppend(rec checkpoint.Record) appendWriter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(rec.SinkState) > 0 {
		n, err := strconv.Atoi(string(rec.SinkState))
		if err != nil || n > len(w.rows) {
			w.t.Fatalf("state %q, %d rows", rec.SinkState, len(w.rows))
		}
		w.rows = w.rows[:n]
	}
	return appendWriter{plainWriter{w}}
}

// partWriter is a T2 sink.
type partWriter struct {
	w      *world
	open   []string
	sealed map[string][]string
}

func (x *partWriter) Close() error { return nil }
func (x *partWriter) Abort() error { x.open = nil; return nil }

func (x *partWriter) Stage(_ context.Context, b *message.Batch, i, j int) error {
	var bad connectors.RowsError
	for k := i; k < j; k++ {
		if x.w.refuse[string(b.Payload(k))] {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: k, Err: errors.New("refused")})
		}
	}
	if bad.Rows != nil {
		return &bad
	}
	for ; i < j; i++ {
		x.open = append(x.open, string(b.Payload(i)))
	}
	return nil
}

func (x *partWriter) OpenPart() (records, bytes int64) {
	for _, r := range x.open {
		bytes += int64(len(r)) + 1
	}
	return int64(len(x.open)), bytes
}

func (x *partWriter) Seal(_ context.Context, from, end message.Position, name string) (checkpoint.Intent, error) {
	if f := x.w.onSeal; f != nil {
		if err := f(); err != nil {
			return checkpoint.Intent{}, err
		}
	}
	first, _ := from.Number()
	last, _ := end.Number()
	last--
	if name == "" {
		name = fmt.Sprintf("part-%03d-%03d", first, last)
	}
	records, size := x.OpenPart()
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	x.sealed[name], x.open = x.open, nil
	return checkpoint.Intent{From: from, End: end, First: first, Last: last, Name: name, Records: records, Bytes: size,
		Digest: fmt.Sprintf("crc32:%08x", crc32.ChecksumIEEE([]byte(strings.Join(x.sealed[name], "\n"))))}, nil
}

func (x *partWriter) Publish(ctx context.Context, in checkpoint.Intent) error {
	if f := x.w.slow; f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	if f := x.w.onPublish; f != nil {
		if err := f(); err != nil {
			return err
		}
	}
	if err := x.w.gate(); err != nil {
		return err
	}
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if _, there := x.w.parts[in.Name]; !there {
		x.w.parts[in.Name] = x.sealed[in.Name]
	}
	return nil
}

func (x *partWriter) Exists(_ context.Context, in checkpoint.Intent) (bool, error) {
	_, there := x.w.parts[in.Name]
	return there, nil
}

func (x *partWriter) Covered() []connectors.Range { return x.w.covered }

// kinds of writers.
const (
	tx    = "InTxn"
	part  = "Intent"
	plain = "After"
	state = "Append"
)

func (w *world) writer(kind string, rec checkpoint.Record) connectors.Writer {
	switch kind {
	case state:
		return w.openAppend(rec)
	case tx:
		return txWriter{w}
	case part:
		return &partWriter{w: w, sealed: map[string][]string{}}
	}
	return plainWriter{w}
}

// life is one run of the partition, with a new epoch.
type life struct {
	*world
	kind  string
	cfg   Config
	stats *Stats
}

// claim makes the next run of the partition ready.
func (w *world) claim(kind string) *life {
	w.t.Helper()
	w.epoch++
	claimed, err := checkpoint.Claim(context.Background(), w.store, checkpoint.ClaimRequest{
		Key: key, ClusterUID: "c", RouteUID: "uid", Series: "s", Generation: 1, Epoch: w.epoch, Run: fmt.Sprint("run-", w.epoch)})
	if err != nil {
		w.t.Fatal(err)
	}
	l := &life{world: w, kind: kind, stats: &Stats{}}
	l.stats.Stored(claimed.Record)
	l.cfg = Config{Writer: w.writer(kind, claimed.Record), Store: w.store, Stats: l.stats, Claim: connectors.Claim{
		Route: "r", RouteUID: "uid", Series: "s", Generation: 1, Leg: "out", Partition: connectors.Partition{ID: "p"},
		Epoch: w.epoch, Run: claimed.Record.Run, Key: key, Record: claimed.Record, Resumed: claimed.Resumed, Spec: w.spec,
		Budget: message.NewBudget(1 << 20), Gate: func() error { return w.gate() }, Log: slog.New(slog.DiscardHandler),
		Reject: func(_ context.Context, bad connectors.BadRecord) error {
			if w.spec.OnError == route.OnErrorDrop {
				return nil
			}
			return &connectors.Error{Class: connectors.ClassData, Err: fmt.Errorf("%s: %w", bad.Place, bad.Err)}
		},
	}}
	if l.cfg.Claim.Record, err = Recover(context.Background(), l.cfg.Claim, l.cfg.Writer, w.store); err != nil {
		w.t.Fatal(err)
	}
	l.stats.Stored(l.cfg.Claim.Record)
	return l
}

// from is where a source would begin to read.
func (l *life) from() int64 {
	n, _ := l.cfg.Claim.Record.Position.Number()
	return n
}

// run moves what s gives and returns the counters, which must add up.
func (l *life) run(ctx context.Context, s connectors.Reader) (lease.Counters, error) {
	l.t.Helper()
	l.cfg.Reader = s
	err := Run(ctx, l.cfg)
	return l.count(), err
}

func (l *life) count() lease.Counters {
	l.t.Helper()
	c := l.stats.Counters()
	if c.Read != c.Written+c.Covered+c.Filtered+c.DeadLettered+c.Dropped+c.Returned {
		l.t.Errorf("counters do not add up (invariant 4): %+v", c)
	}
	return c
}

// record is what the store holds.
func (w *world) record() checkpoint.Record {
	w.t.Helper()
	rec, err := w.store.Load(context.Background(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

func (w *world) at(want int64) {
	w.t.Helper()
	if n, _ := w.record().Position.Number(); n != want {
		w.t.Errorf("position %d, want %d", n, want)
	}
}

// content is everything in the sink, parts in the order of their names.
func (w *world) content() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.rows)
	for _, name := range w.names() {
		out = append(out, w.parts[name]...)
	}
	return out
}

func (w *world) names() []string {
	names := make([]string, 0, len(w.parts))
	for name := range w.parts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// once fails unless the sink holds [0, n) in order, but for those left out.
func (w *world) once(n int64, without ...int64) {
	w.t.Helper()
	var want []string
	for i := range n {
		if !slices.Contains(without, i) {
			want = append(want, strconv.FormatInt(i, 10))
		}
	}
	if got := w.content(); !slices.Equal(got, want) {
		w.t.Errorf("in the sink: %v\nwant %v", got, want)
	}
}

// filter is a middleware that keeps what f says.
type filter struct{ f func(ordinal int64) bool }

func (m filter) Process(_ context.Context, b *message.Batch) error {
	b.Keep(func(i int) bool { return m.f(b.Msg(i).Ordinal) })
	return nil
}
func (filter) Close() error { return nil }

func (l *life) keep(f func(ordinal int64) bool) {
	l.cfg.Middlewares = [][]connectors.Middleware{{filter{f}}}
}

// each is a middleware that calls f.
type each struct {
	f func(ctx context.Context, b *message.Batch) error
}

func (m each) Process(ctx context.Context, b *message.Batch) error { return m.f(ctx, b) }
func (each) Close() error                                          { return nil }
