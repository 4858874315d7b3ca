// Package sourcetest is the conformance suite of connectors.Source. A connector
// says how its data is made and which behaviours it promises; what it does not
// promise is not run, and nothing is skipped.
//
//	func TestSource(t *testing.T) {
//		sourcetest.Run(t, sourcetest.Harness{
//			New: func(t *testing.T) *sourcetest.Subject {
//				path := filepath.Join(t.TempDir(), "a.jsonl")
//				return &sourcetest.Subject{
//					Open:    func(t *testing.T) connectors.Source { return newSource(t, path) },
//					Append:  func(t *testing.T, from, n int) { appendLines(t, path, from, n) },
//					Payload: func(i int) []byte { return fmt.Appendf(nil, `{"n":%d}`, i) },
//					Ends:    true,
//					Resumes: true,
//					LoseTail: func(t *testing.T, keep int) { truncate(t, path, keep) },
//				}
//			},
//		})
//	}
package sourcetest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Harness is what a connector hands to Run.
type Harness struct {
	// New makes fresh, empty data with one partition. It is called once per
	// behaviour and registers its own clean-up. Behaviours run one after another.
	New func(t *testing.T) *Subject
	// Records is how many records most behaviours write (default 300). A slow
	// system may take fewer, at least 20.
	Records int
	// Blocked is how long a Read that has nothing to return is watched before it
	// counts as blocked (default 50 ms).
	Blocked time.Duration
	// Timeout is how long one call may take (default 20 s).
	Timeout time.Duration
}

// Subject is one source over its own data. The func fields that may be nil are
// the capabilities by which a connector opts into behaviours.
type Subject struct {
	// Open returns a source over the data; the suite closes it. Called several
	// times, it behaves like several processes, one after another.
	Open func(t *testing.T) connectors.Source
	// Append adds records [from, from+n) and returns when a reader can see them.
	// Calls continue each other: from is the number of records so far.
	Append func(t *testing.T, from, n int)
	// Payload is what a reader hands on for record i. All differ, unless the
	// subject is Dense, where ordinals tell records apart.
	Payload func(i int) []byte

	// Preloaded sources have no Append and hold this many records from the start,
	// or more if they do not end.
	Preloaded int
	// Spec is the route as far as the source reads it; nil is a plain one. The
	// suite sets BatchSize itself.
	Spec *route.Spec
	// Partition picks the partition under test by ID; "" is the only one.
	Partition string

	// Ends: at the end of the data Read returns ErrEndOfInput; otherwise it waits.
	Ends bool
	// Resumes: a reader goes on at any stored position.
	Resumes bool
	// Dense: ordinals are record numbers without gaps and positions are numbered
	// (file record index).
	Dense bool
	// LoseHead makes the source lose its first n records (retention).
	LoseHead func(t *testing.T, n int)
	// LoseTail makes the source lose all records from number keep on (truncation).
	LoseTail func(t *testing.T, keep int)
	// Replace puts other data in the place of the data that was read.
	Replace func(t *testing.T)
	// AppendBad adds one record that cannot be read. It takes no record number.
	AppendBad func(t *testing.T)
	// Held is the number of the first record that the source still holds, for
	// sources that delete what is settled.
	Held func(t *testing.T) int
}

// Run runs every behaviour that the subject opts into, as named subtests.
func Run(t *testing.T, h Harness) {
	if h.Records == 0 {
		h.Records = 300
	}
	if h.Blocked == 0 {
		h.Blocked = 50 * time.Millisecond
	}
	if h.Timeout == 0 {
		h.Timeout = 20 * time.Second
	}
	// One subject only answers for the capabilities; each behaviour has its own.
	capable := h.New(t)
	for _, b := range behaviours {
		if b.applies(capable) {
			t.Run(b.name, func(t *testing.T) { b.run(newRig(t, h)) })
		}
	}
}

type behaviour struct {
	name    string
	applies func(*Subject) bool
	run     func(*rig)
}

func always(*Subject) bool { return true }

func appends(s *Subject) bool { return s.Append != nil }

func resumes(s *Subject) bool { return s.Resumes }

// rig is one behaviour at work: the subject, a seed, and what was appended.
type rig struct {
	*testing.T
	h        Harness
	s        *Subject
	rng      *rand.Rand
	appended int
	runs     int
}

func newRig(t *testing.T, h Harness) *rig {
	t.Helper()
	s := h.New(t)
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("MQB_TEST_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("MQB_TEST_SEED: %v", err)
		}
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with MQB_TEST_SEED=%d", seed)
		}
	})
	return &rig{T: t, h: h, s: s, rng: rand.New(rand.NewPCG(seed, 0)), appended: s.Preloaded}
}

// append adds n records; a preloaded source has its own.
func (r *rig) append(n int) {
	r.Helper()
	if r.s.Append == nil {
		return
	}
	r.s.Append(r.T, r.appended, n)
	r.appended += n
}

// run is one run of the partition under test: a source, its reader and the claim.
type run struct {
	r      *rig
	src    connectors.Source
	part   connectors.Partition
	claim  connectors.Claim
	reader connectors.Reader
	next   int              // number of the next record expected
	end    message.Position // where the last batch ended
}

type option func(*connectors.Claim)

func budget(n int64) option {
	return func(c *connectors.Claim) { c.Budget = message.NewBudget(n) }
}

func batchSize(n int) option { return func(c *connectors.Claim) { c.Spec.BatchSize = n } }

func reject(f func(context.Context, connectors.BadRecord) error) option {
	return func(c *connectors.Claim) { c.Reject = f }
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), r.h.Timeout)
	r.Cleanup(cancel)
	return ctx
}

// start begins a run at pos, whose next record is number next.
func (r *rig) start(pos message.Position, identity string, next int, opts ...option) *run {
	r.Helper()
	n, err := r.tryStart(pos, identity, next, opts...)
	if err != nil {
		r.Fatalf("open at position %q: %v", pos.Sort, err)
	}
	return n
}

func (r *rig) tryStart(pos message.Position, identity string, next int, opts ...option) (*run, error) {
	r.Helper()
	src := r.s.Open(r.T)
	n := &run{r: r, src: src, next: next}
	n.part = r.partition(src)
	id, err := src.Identify(r.ctx(), n.part, identity)
	if err != nil {
		_ = src.Close()
		return nil, err
	}
	r.runs++
	spec := route.Spec{Name: "sourcetest", Enabled: true, MaxRecordBytes: 16 << 20, OnError: route.OnErrorStop}
	if r.s.Spec != nil {
		spec = *r.s.Spec
	}
	spec.BatchSize = 64
	n.claim = connectors.Claim{
		Route: "sourcetest", RouteUID: "uid-sourcetest", Series: "s1", Generation: 1, Leg: "out", Node: "n1",
		Partition: n.part, Epoch: uint64(r.runs), Run: fmt.Sprintf("run-%d", r.runs), Key: "sourcetest/" + n.part.ID,
		Record:  checkpoint.Record{Epoch: uint64(r.runs), Position: stored(r.T, pos), Source: id},
		Resumed: !pos.IsZero(), Spec: &spec, Budget: message.NewBudget(message.DefaultBudget),
		Gate:   func() error { return nil },
		Reject: func(_ context.Context, bad connectors.BadRecord) error { return bad.Err },
		Log:    slog.New(slog.DiscardHandler),
	}
	for _, o := range opts {
		o(&n.claim)
	}
	n.reader, err = src.Open(r.ctx(), n.claim)
	if err != nil {
		_ = src.Close()
		return nil, err
	}
	n.end = n.claim.Record.Position
	return n, nil
}

// stored passes a position through the record's encoding, as every resume does.
func stored(t *testing.T, p message.Position) message.Position {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var out message.Position
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *rig) partition(src connectors.Source) connectors.Partition {
	r.Helper()
	parts, err := src.Partitions(r.ctx())
	if err != nil {
		r.Fatalf("partitions: %v", err)
	}
	for _, p := range parts {
		if p.ID == r.s.Partition || r.s.Partition == "" && len(parts) == 1 {
			return p
		}
	}
	r.Fatalf("partition %q is not among %v", r.s.Partition, parts)
	return connectors.Partition{}
}

func (n *run) close() {
	n.r.Helper()
	if err := n.reader.Close(); err != nil {
		n.r.Errorf("close reader: %v", err)
	}
	if err := n.src.Close(); err != nil {
		n.r.Errorf("close source: %v", err)
	}
}

// read returns the next batch, checked; it fails on any error.
func (n *run) read() *message.Batch {
	n.r.Helper()
	b, err := n.reader.Read(n.r.ctx())
	if err != nil {
		n.r.Fatalf("read after %d records: %v", n.next, err)
	}
	n.check(b)
	return b
}

// check holds b against everything that is true of every batch, and counts it.
func (n *run) check(b *message.Batch) {
	n.r.Helper()
	if b == nil {
		n.r.Fatal("neither a batch nor an error")
	}
	if got := b.Read - b.Dropped - b.Filtered; got != b.Len() {
		n.r.Errorf("read %d - dropped %d - filtered %d = %d, but the batch has %d messages (invariant 4)", b.Read, b.Dropped, b.Filtered, got, b.Len())
	}
	if b.Read == 0 && b.End.Compare(b.From) == 0 {
		n.r.Error("a batch that neither read anything nor moved")
	}
	if b.End.Compare(b.From) < 0 {
		n.r.Errorf("a batch ends at %q, before its start %q (invariant 3)", b.End.Sort, b.From.Sort)
	}
	if !n.end.IsZero() && b.From.Compare(n.end) != 0 {
		n.r.Errorf("a batch begins at %q, the one before ended at %q", b.From.Sort, n.end.Sort)
	}
	n.end = b.End
	if b.Len() > n.claim.Spec.BatchSize {
		n.r.Errorf("%d messages in a batch of at most %d", b.Len(), n.claim.Spec.BatchSize)
	}
	last, pos := int64(-1), b.From
	for i := range b.Len() {
		if want := n.r.s.Payload(n.next); string(b.Payload(i)) != string(want) {
			n.r.Fatalf("record %d is %.100q, want %.100q: lost, doubled or out of order", n.next, b.Payload(i), want)
		}
		if b.Msg(i).Ordinal <= last {
			n.r.Errorf("ordinal %d comes after %d", b.Msg(i).Ordinal, last)
		}
		last = b.Msg(i).Ordinal
		if n.r.s.Dense && last != int64(n.next) {
			n.r.Errorf("record %d has the ordinal %d", n.next, last)
		}
		p := b.PositionAfter(i)
		if p.Compare(pos) <= 0 {
			n.r.Errorf("position %q after record %d does not rise from %q (invariant 3)", p.Sort, n.next, pos.Sort)
		}
		pos = p
		n.next++
	}
	if b.Len() > 0 && b.PositionAfter(b.Len()-1).Compare(b.End) != 0 {
		n.r.Error("the position after the last message is not the batch's end")
	}
}

// readTo reads until record number to is the next one, handing each batch to
// use, and returns the position there. Batches are released.
func (n *run) readTo(to int, use func(*message.Batch)) message.Position {
	n.r.Helper()
	for n.next < to {
		b := n.read()
		if use != nil {
			use(b)
		}
		b.Release()
	}
	return n.end
}

type readResult struct {
	b   *message.Batch
	err error
}

// background calls Read in a goroutine of its own.
func (n *run) background(ctx context.Context) <-chan readResult {
	out := make(chan readResult, 1)
	go func() {
		b, err := n.reader.Read(ctx)
		out <- readResult{b, err}
	}()
	return out
}

// await waits for a Read that must return now.
func (n *run) await(c <-chan readResult, why string) readResult {
	n.r.Helper()
	select {
	case res := <-c:
		return res
	case <-time.After(n.r.h.Timeout):
		n.r.Fatalf("Read did not return: %s", why)
		return readResult{}
	}
}

// blocked fails unless Read is still waiting after a while.
func (n *run) blocked(c <-chan readResult, why string) {
	n.r.Helper()
	select {
	case res := <-c:
		n.r.Fatalf("Read returned (batch %v, error %v): %s", res.b != nil, res.err, why)
	case <-time.After(n.r.h.Blocked):
	}
}
