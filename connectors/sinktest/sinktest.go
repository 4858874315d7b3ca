// Package sinktest is the conformance suite of connectors.Sink. It finds out by
// itself which kind of writer the sink makes (TxWriter, PartWriter, PlainWriter or
// StatefulWriter)
// and runs the behaviours of that kind; the func fields of a Subject opt into
// the others.
//
//	func TestSink(t *testing.T) {
//		sinktest.Run(t, sinktest.Harness{
//			New: func(t *testing.T) *sinktest.Subject {
//				table := newTable(t)
//				return &sinktest.Subject{
//					Open: func(t *testing.T) connectors.Sink { return newSink(t, table) },
//					Rows: func(t *testing.T) [][]byte { return selectPayloads(t, table) },
//				}
//			},
//		})
//	}
package sinktest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Harness is what a connector hands to Run.
type Harness struct {
	// New makes a fresh, empty place to write to. It is called once per behaviour
	// and registers its own clean-up. Behaviours run one after another.
	New func(t *testing.T) *Subject
	// Blocked is how long a call that must wait is watched (default 50 ms).
	Blocked time.Duration
	// Timeout is how long one call may take (default 20 s).
	Timeout time.Duration
}

// Subject is one sink over its own place. The fields that may be nil are the
// capabilities by which a connector opts into behaviours.
type Subject struct {
	// Open returns a sink over the place; the suite closes it. Called several
	// times, it behaves like several processes.
	Open func(t *testing.T) connectors.Sink
	// Rows returns the payloads that a reader of the place sees now, in the order
	// in which it sees them. nil for a sink that discards.
	Rows func(t *testing.T) [][]byte

	// Payload is the payload of message i; nil is a small JSON object {"id":i,…}.
	Payload func(i int) []byte
	// Want is what Rows shows of message i; nil is Payload.
	Want func(i int) []byte
	// Spec is the route as far as the sink reads it; nil is a plain one.
	Spec *route.Spec
	// Partition is the partition that writes; nil is number 0 of "orders".
	Partition *connectors.Partition

	// Unencodable is a payload that is refused before it is sent (Txn.Add).
	Unencodable func(i int) []byte
	// Refused is a payload that the system behind the sink refuses.
	Refused func(i int) []byte
	// Absorbs: a message written again is there once (plain writers).
	Absorbs bool
	// Block makes writes that begin after it wait until unblock is called.
	Block func(t *testing.T) (unblock func())
	// Freeze makes a writer session of its own for a record to name; lock makes
	// it hold what a frozen writer holds: the record's row, inside a transaction.
	Freeze func(t *testing.T) (session string, lock func(key string))
	// Objects is the bytes of each visible part by name, manifest left out.
	Objects func(t *testing.T) map[string]string
	// Spools counts the spool files (or unfinished uploads) that exist now.
	Spools func(t *testing.T) int
}

// Run runs every behaviour of the sink's kind that the subject opts into.
func Run(t *testing.T, h Harness) {
	if h.Blocked == 0 {
		h.Blocked = 50 * time.Millisecond
	}
	if h.Timeout == 0 {
		h.Timeout = 20 * time.Second
	}
	capable := h.New(t)
	for _, b := range behavioursOf(newRig(t, h, capable)) {
		if b.applies(capable) {
			t.Run(b.name, func(t *testing.T) { b.run(newRig(t, h, h.New(t))) })
		}
	}
}

type behaviour struct {
	name    string
	applies func(*Subject) bool
	run     func(*rig)
}

func always(*Subject) bool { return true }

func keeps(s *Subject) bool { return s.Rows != nil }

func behavioursOf(r *rig) []behaviour {
	r.Helper()
	w := r.open(0)
	defer w.close()
	switch w.writer.(type) {
	case connectors.TxWriter:
		return txBehaviours
	case connectors.PartWriter:
		return partBehaviours
	case connectors.StatefulWriter:
		return slices.Concat(plainBehaviours, statefulBehaviours)
	case connectors.PlainWriter:
		return plainBehaviours
	}
	r.Fatalf("%T is none of the three kinds of writers", w.writer)
	return nil
}

type rig struct {
	*testing.T
	h Harness
	s *Subject
}

func newRig(t *testing.T, h Harness, s *Subject) *rig {
	if s.Payload == nil {
		s.Payload = func(i int) []byte { return fmt.Appendf(nil, `{"id":%d,"text":"row %d"}`, i, i) }
	}
	if s.Want == nil {
		s.Want = s.Payload
	}
	return &rig{T: t, h: h, s: s}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), r.h.Timeout)
	r.Cleanup(cancel)
	return ctx
}

const (
	clusterUID = "uid-cluster"
	routeUID   = "uid-route"
	series     = "s1"
)

// owner is one run of the partition: a sink, its writer and the claim.
type owner struct {
	r      *rig
	sink   connectors.Sink
	writer connectors.Writer
	claim  connectors.Claim
	store  checkpoint.Store  // of a TxSink
	held   checkpoint.Record // the record as this owner knows it
	shut   atomic.Bool       // the gate
}

type option func(*connectors.Claim)

func record(rec checkpoint.Record) option {
	return func(c *connectors.Claim) {
		c.Record.Position, c.Record.Intents = rec.Position, rec.Intents
		c.Resumed = !rec.Position.IsZero()
	}
}

// goesOn opens with the record that o committed last.
func goesOn(o *owner) option {
	return func(c *connectors.Claim) {
		c.Record.SinkState = o.held.SinkState
		c.Resumed = len(o.held.SinkState) > 0
	}
}

func lineage(uid, series string) option {
	return func(c *connectors.Claim) { c.RouteUID, c.Series = uid, series }
}

func existingParts(rule string) option {
	return func(c *connectors.Claim) { c.Spec.ExistingParts = rule }
}

// open starts a run with an epoch; a T1 sink is claimed for in its own store.
func (r *rig) open(epoch uint64, opts ...option) *owner {
	r.Helper()
	o, err := r.tryOpen(epoch, opts...)
	if err != nil {
		r.Fatalf("open with epoch %d: %v", epoch, err)
	}
	return o
}

func (r *rig) tryOpen(epoch uint64, opts ...option) (*owner, error) {
	r.Helper()
	o := &owner{r: r, sink: r.s.Open(r.T)}
	spec := route.Spec{
		Name: "sinktest", Enabled: true, BatchSize: 1000, MaxRecordBytes: 16 << 20, OnError: route.OnErrorStop,
		ExistingParts: "fail", Roll: route.Roll{Bytes: 64 << 20, Records: 1_000_000, Age: time.Minute},
	}
	if r.s.Spec != nil {
		spec = *r.s.Spec
	}
	part := connectors.Partition{ID: "orders-0", PartSource: "orders"}
	if r.s.Partition != nil {
		part = *r.s.Partition
	}
	run := fmt.Sprintf("run-%d", epoch)
	o.claim = connectors.Claim{
		Route: "sinktest", RouteUID: routeUID, Series: series, Generation: 1, Leg: "out", Node: "n1",
		Partition: part, Epoch: epoch, Run: run, Key: "c/" + routeUID + "/1/" + part.ID + "/out",
		Record: checkpoint.Record{
			V: 1, ClusterUID: clusterUID, RouteUID: routeUID, Series: series, Generation: 1, Epoch: epoch, Run: run, Version: 1,
		},
		Spec: &spec, Budget: message.NewBudget(message.DefaultBudget), Log: slog.New(slog.DiscardHandler),
		Gate: func() error {
			if o.shut.Load() {
				return connectors.ErrGateClosed
			}
			return nil
		},
		Reject: func(_ context.Context, bad connectors.BadRecord) error { return bad.Err },
	}
	for _, opt := range opts {
		opt(&o.claim)
	}
	fail := func(err error) (*owner, error) {
		_ = o.sink.Close()
		return nil, err
	}
	prepared, err := o.sink.Prepare(r.ctx(), part)
	if err != nil {
		return fail(err)
	}
	if tx, ok := o.sink.(connectors.TxSink); ok {
		if o.store, err = tx.Store(r.ctx()); err == nil {
			o.claim.Record, err = r.claim(o.store, o.claim, prepared.Session())
		}
		if err != nil {
			_ = prepared.Close()
			return fail(err)
		}
	}
	o.held = o.claim.Record
	if o.writer, err = prepared.Open(r.ctx(), o.claim); err != nil {
		_ = prepared.Close()
		return fail(err)
	}
	return o, nil
}

func (r *rig) claim(store checkpoint.Store, c connectors.Claim, session string) (checkpoint.Record, error) {
	got, err := checkpoint.Claim(r.ctx(), store, checkpoint.ClaimRequest{
		Key: c.Key, ClusterUID: clusterUID, RouteUID: c.RouteUID, Series: c.Series, Generation: c.Generation,
		Epoch: c.Epoch, Run: c.Run, Session: session,
	})
	return got.Record, err
}

func (o *owner) close() {
	o.r.Helper()
	if err := o.writer.Close(); err != nil {
		o.r.Errorf("close writer: %v", err)
	}
	if err := o.sink.Close(); err != nil {
		o.r.Errorf("close sink: %v", err)
	}
}

// positions numbers records as a file or a Kafka partition does.
type positions struct{}

func (positions) After(m *message.Message) message.Position { return at(int(m.Next)) }

func at(n int) message.Position { return message.Position{Sort: message.SortKey(int64(n))} }

// batch makes messages [from, from+n); change gives some of them another payload.
func (r *rig) batch(from, n int, change map[int]func(int) []byte) *message.Batch {
	b := message.NewBatch()
	b.From, b.End, b.Positions, b.Read = at(from), at(from+n), positions{}, n
	for i := from; i < from+n; i++ {
		payload := r.s.Payload
		if f := change[i]; f != nil {
			payload = f
		}
		b.Append(payload(i), int64(i), int64(i+1))
	}
	return b
}

// sees fails unless a reader of the sink sees exactly these messages, in order.
func (r *rig) sees(why string, want ...int) {
	r.Helper()
	got := r.s.Rows(r.T)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			r.Fatalf("%s: a reader sees %d rows, want %d: message %d is missing", why, len(got), len(want), want[i])
		case i >= len(want):
			r.Fatalf("%s: a reader sees %d rows, want %d: %.100q is too much", why, len(got), len(want), got[i])
		case string(got[i]) != string(r.s.Want(want[i])):
			r.Fatalf("%s: row %d is %.100q, want %.100q", why, i, got[i], r.s.Want(want[i]))
		}
	}
}

// span is the numbers [from, to) without those left out.
func span(from, to int, without ...int) []int {
	var out []int
next:
	for i := from; i < to; i++ {
		for _, w := range without {
			if w == i {
				continue next
			}
		}
		out = append(out, i)
	}
	return out
}

// refused returns the indexes a *RowsError names.
func (r *rig) refused(err error) []int {
	r.Helper()
	var rows *connectors.RowsError
	if !errors.As(err, &rows) {
		r.Fatalf("got %v, want a *RowsError", err)
	}
	var out []int
	for i, row := range rows.Rows {
		if row.Err == nil {
			r.Errorf("row %d is refused without a reason", row.Index)
		}
		if i > 0 && row.Index <= rows.Rows[i-1].Index {
			r.Errorf("row %d is named after row %d", row.Index, rows.Rows[i-1].Index)
		}
		out = append(out, row.Index)
	}
	return out
}

// closeWhileBlocked starts write while the system behind the sink does not
// answer, closes the writer and expects write to fail soon.
func (o *owner) closeWhileBlocked(write func() error) {
	r := o.r
	r.Helper()
	unblock := r.s.Block(r.T)
	done := make(chan error, 1)
	go func() { done <- write() }()
	select {
	case err := <-done:
		unblock()
		r.Fatalf("the write returned %v while the system was blocked", err)
	case <-time.After(r.h.Blocked):
	}
	closed := make(chan error, 1)
	go func() { closed <- o.writer.Close() }()
	limit := time.After(r.h.Timeout)
	for range 2 {
		select {
		case err := <-closed:
			if err != nil {
				r.Errorf("close: %v", err)
			}
		case err := <-done:
			if err == nil {
				r.Error("a write that was cut off reported success")
			}
		case <-limit:
			unblock()
			r.Fatal("Close did not make the blocked write return")
		}
	}
	unblock()
	if err := o.sink.Close(); err != nil {
		r.Errorf("close sink: %v", err)
	}
}
