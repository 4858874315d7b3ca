package kafka

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// headerID holds the id of a message, 16 bytes, the same whenever the message is
// written: readers tell a repeat by it.
const headerID = "mq_bridge.message_id"

const idBytes = 16

// writer is a connectors.PlainWriter. All fields but client and closing belong to
// the goroutine that calls Write.
type writer struct {
	sink     *sink
	gate     func() error
	log      *slog.Logger
	warned   bool   // of batches that are refused
	identity string // goes into ids
	opts     []kgo.Opt

	mu      sync.Mutex
	client  *kgo.Client // nil after it was given up, until the next Write
	health  *health     // of client
	closing context.Context
	close   context.CancelFunc

	// What a Write needs for each message is kept for the next one. It points into
	// the batch, which is not touched after Write has returned.
	records []kgo.Record
	headers []kgo.RecordHeader
	ids     []byte
	names   map[string]string // names of headers
	pending sync.WaitGroup    // records that kgo holds
	failed  map[*kgo.Record]error
	promise func(*kgo.Record, error)
}

func newWriter(s *sink, claim connectors.Claim, topicMax int32) *writer {
	w := &writer{
		sink: s, gate: claim.Gate, log: claim.Log,
		identity: cmp.Or(claim.Record.Source, claim.RouteUID) + "/" + claim.Partition.ID,
		opts:     s.settings.producer(topicMax),
		names:    map[string]string{}, failed: map[*kgo.Record]error{},
	}
	w.closing, w.close = context.WithCancel(context.Background())
	// kgo calls promises one after the other.
	w.promise = func(r *kgo.Record, err error) {
		if err != nil {
			w.failed[r] = err
		}
		w.pending.Done()
	}
	return w
}

// Write sends messages [i, j) of b and waits for the brokers' answers to all of
// them. Messages with the same key stay in order. What a broker refuses for its
// content is named in a *RowsError and everything else is written; so is a message
// whose partition could not be written in time, with an error that says that it may
// be tried again. When ctx ends, the client is given up: nothing of b is looked at
// after Write has returned.
func (w *writer) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if i >= j {
		return nil
	}
	if err := w.gate(); err != nil {
		return err
	}
	w.fill(b, i, j)
	defer w.forget()
	if err := w.send(ctx, w.records); err != nil {
		return err
	}
	if len(w.failed) == 0 {
		return nil
	}
	if len(w.records) > 1 {
		if err := w.alone(ctx); err != nil {
			return err
		}
	}
	return w.judge(i)
}

// send hands records to the client and waits until it holds none of them. The
// error is about all of them; what became of each is in failed.
func (w *writer) send(ctx context.Context, records []kgo.Record) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	w.health.expect()
	w.pending.Add(len(records))
	for k := range records {
		c.Produce(context.Background(), &records[k], w.promise)
	}
	hook.At("kafka.buffered")
	err = w.flush(ctx, c)
	if err != nil {
		w.give()
	}
	// Without this the records' memory would go back while kgo may still read it.
	w.pending.Wait()
	hook.At("kafka.answered")
	return err
}

// flush waits for the answers, as long as there is somebody who may give them.
func (w *writer) flush(ctx context.Context, c *kgo.Client) error {
	for {
		wait, cancel := context.WithTimeout(ctx, idleWait)
		stop := context.AfterFunc(w.closing, cancel)
		err := c.Flush(wait)
		stop()
		cancel()
		switch {
		case w.closing.Err() != nil:
			return w.sink.fail("produce", fmt.Errorf("%w: %w", errClosed, context.Canceled))
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return w.sink.fail("produce", ctx.Err())
		}
		if err := w.health.unreachable(unreachableAfter); err != nil {
			return w.sink.fail("produce", err)
		}
	}
}

// alone sends what a broker refused once more, one by one: its refusal is of a
// whole batch, and takes along all that waits behind it in the partition.
func (w *writer) alone(ctx context.Context) error {
	for k := range w.records {
		r := &w.records[k]
		err := w.failed[r]
		if err == nil || connectors.Classify(w.sink.fail("produce", err)) != connectors.ClassData {
			continue
		}
		if !w.warned {
			w.warned = true
			w.log.Warn("kafka: a broker refused a batch; its records are sent one by one, which is slow: is message.max.bytes right for the topic?",
				"topic", w.sink.config.Topic, "error", err)
		}
		delete(w.failed, r)
		if err := w.send(ctx, w.records[k:k+1]); err != nil {
			return err
		}
	}
	return nil
}

// judge says what the failures of a Write of messages from i on mean.
func (w *writer) judge(i int) error {
	var rows connectors.RowsError
	transient, stale := 0, false
	for k := range w.records {
		err := w.failed[&w.records[k]]
		if err == nil {
			continue
		}
		stale = stale || errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition)
		err = w.sink.fail("produce", err)
		switch connectors.Classify(err) {
		case connectors.ClassPermanent:
			return err // nothing that another message could cure
		case connectors.ClassData:
		default:
			// Leaders, replicas, time: the state of the cluster, which no dead letter cures.
			err = connectors.Connection(err)
			transient++
		}
		rows.Rows = append(rows.Rows, connectors.RowError{Index: i + k, Err: err})
	}
	if stale {
		// The client never writes to a topic that was created anew under the name. Who
		// tries again in this run does so with a new one. After any other failure it
		// stays: it goes on under a later epoch of its producer id, so that the brokers
		// refuse what of the failed try may still be on its way to them, and would take
		// from a producer that nothing connects with the new one, out of order.
		w.give()
	}
	switch {
	case len(rows.Rows) == 0:
		return nil
	case transient == len(w.records):
		return rows.Rows[0].Err // it is not about messages
	}
	return &rows
}

// fill makes the records. Their bytes stay where they are, in the batch.
func (w *writer) fill(b *message.Batch, i, j int) {
	n, pairs := j-i, 0
	for m := i; m < j; m++ {
		pairs += b.MetaLen(m) + 1
	}
	w.records = slices.Grow(w.records[:0], n)[:n]
	w.headers = slices.Grow(w.headers[:0], pairs)
	w.ids = slices.Grow(w.ids[:0], n*idBytes)
	now := time.Now()
	for k := range w.records {
		w.records[k] = kgo.Record{Topic: w.sink.config.Topic, Timestamp: now}
		w.record(&w.records[k], b, i+k)
	}
}

func (w *writer) record(r *kgo.Record, b *message.Batch, m int) {
	from := len(w.headers)
	var id []byte
	tombstone := false
	for p := range b.MetaLen(m) {
		name, value := b.MetaAt(m, p)
		switch {
		case string(name) == metaTombstone:
			tombstone = true
			continue
		case bytes.HasPrefix(name, []byte(metaSource)):
			continue // a position of this hop, which another one must not take for its own
		case string(name) == headerID:
			if len(value) != idBytes {
				continue // no reader could tell a repeat by it
			}
			id = value
		}
		w.headers = append(w.headers, kgo.RecordHeader{Key: w.name(name), Value: value})
	}
	if id == nil {
		id = w.id(b.Msg(m).Ordinal)
		w.headers = append(w.headers, kgo.RecordHeader{Key: headerID, Value: id})
	}
	r.Headers = w.headers[from:len(w.headers):len(w.headers)]
	r.Key = w.key(b, m, id)
	r.Value = b.Payload(m)
	switch {
	case len(r.Value) > 0:
	case tombstone:
		r.Value = nil
	default:
		r.Value = empty
	}
}

var empty = []byte{}

// key is the metadata that partition_key names, else the message's own key, else
// its id.
func (w *writer) key(b *message.Batch, m int, id []byte) []byte {
	if name := w.sink.config.PartitionKey; name != "" {
		if v, ok := b.Meta(m, name); ok {
			return v
		}
	}
	if k := b.Key(m); k != nil {
		return k
	}
	if v, ok := b.Meta(m, route.IDKey); ok {
		return v
	}
	return id
}

func (w *writer) id(ordinal int64) []byte {
	text := route.MessageID(w.identity, ordinal)
	from := len(w.ids)
	w.ids = w.ids[:from+idBytes]
	_, _ = hex.Decode(w.ids[from:], text[:]) // it is 32 hex digits
	return w.ids[from : from+idBytes : from+idBytes]
}

// maxNames bounds the names that are kept.
const maxNames = 1000

// name returns a header's name as a string of its own, the same one for all
// records.
func (w *writer) name(b []byte) string {
	if s, ok := w.names[string(b)]; ok {
		return s
	}
	if len(w.names) >= maxNames {
		clear(w.names)
	}
	s := string(b)
	w.names[s] = s
	return s
}

// forget lets go of the batch.
func (w *writer) forget() {
	clear(w.records)
	clear(w.headers)
	clear(w.failed)
}

// connect returns the client, a new one where the last one was given up.
func (w *writer) connect() (*kgo.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing.Err() != nil {
		return nil, w.sink.fail("produce", fmt.Errorf("%w: %w", errClosed, context.Canceled))
	}
	if w.client == nil {
		h := &health{}
		c, err := dial.Client(w.sink.settings.dial, append(slices.Clone(w.opts), kgo.WithHooks(h))...)
		if err != nil {
			return nil, w.sink.fail("produce", connectors.Permanent(err, ""))
		}
		w.client, w.health = c, h
	}
	return w.client, nil
}

// give ends the client, and with it everything it holds.
func (w *writer) give() {
	w.mu.Lock()
	c := w.client
	w.client = nil
	w.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Close ends the client and makes a blocked Write return. What no broker has
// answered may be written or not.
func (w *writer) Close() error {
	w.close()
	w.give()
	return nil
}

var _ connectors.PlainWriter = (*writer)(nil)
