package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

const (
	// batchBytes is the arena of a batch; it may outgrow that by one record.
	batchBytes = 256 << 10
	// idleWait is how often a reader without records looks whether the brokers
	// are still there.
	idleWait = 2 * fetchWait
	// unreachableAfter is how long every request and connection may fail until a
	// reader gives up and lets its partition decide. A leader that moves takes less.
	unreachableAfter = 5 * time.Second
)

// Names of metadata that we add. Headers of these names are not taken over, so
// that they cannot be forged.
const (
	metaTombstone = "mqb.kafka.tombstone"
	metaSource    = "mqb.src."
	metaTopic     = metaSource + "topic"
	metaPartition = metaSource + "partition"
	metaOffset    = metaSource + "offset"
	metaTimestamp = metaSource + "timestamp"
)

// reader reads one partition for one run. All fields but the gauge and the client
// belong to the goroutine that calls Read.
type reader struct {
	source    *source
	claim     connectors.Claim
	partition int32
	client    *kgo.Client
	health    health
	pool      *message.Pool
	closing   context.Context // ends with Close, so that a waiting Read does too
	close     context.CancelFunc

	topic [16]byte
	next  int64 // offset to read next
	epoch int32 // leader epoch of the record before it
	place *positions
	// chosen: the start is to be handed on by an empty batch.
	chosen bool
	// drain is the end to stop at, -1 to go on for ever.
	drain int64

	asked   int64         // bytes that a fetch asks for
	fetched []*kgo.Record // of the last fetch
	at      int           // those before it were handed on
	failed  error         // returned when fetched is used up
	scratch []byte

	gauge
}

// Read implements connectors.Reader.
func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.closing, cancel)()
	if r.chosen {
		b, err := r.pool.Get(ctx)
		if err != nil {
			return nil, err
		}
		r.chosen = false
		r.bound(b, r.next)
		b.From = message.Position{}
		return b, nil
	}
	for {
		if r.at < len(r.fetched) {
			b, err := r.cut(ctx)
			if b != nil || err != nil {
				return b, err
			}
			continue
		}
		if r.failed != nil {
			return nil, r.failed
		}
		if r.drain >= 0 && r.next >= r.drain {
			return nil, connectors.ErrEndOfInput
		}
		if err := r.poll(ctx); err != nil {
			return nil, err
		}
	}
}

// poll waits for a fetch, or for idleWait.
func (r *reader) poll(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, idleWait)
	defer cancel()
	if len(r.fetched) > 0 {
		// Nobody asked for more until now.
		r.health.expect()
	}
	fetches := r.client.PollFetches(wait)
	r.recycle()
	r.resize()
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				r.take(t, &t.Partitions[k])
			}
		}
	}
	if r.failed == nil || wait.Err() == nil || !errors.Is(r.failed, wait.Err()) {
		return nil
	}
	// That was no failure of a fetch but the end of the wait.
	r.failed = nil
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.health.unreachable(unreachableAfter); err != nil {
		return r.fail("fetch", err)
	}
	return nil
}

// resize keeps what a fetch unpacks to near unpackedBytes. Small changes are not
// worth it.
func (r *reader) resize() {
	if n, ok := r.health.ask(); ok && (n < r.asked*3/4 || n > r.asked*3/2) {
		r.client.UpdateFetchMaxBytes(int32(n), int32(n))
		r.asked = n
	}
}

// take adds what a fetch brought of our partition. Its errors come after its records.
func (r *reader) take(t *kgo.FetchTopic, p *kgo.FetchPartition) {
	if len(p.Records) > 0 && r.failed == nil {
		if t.TopicID != r.topic && t.TopicID != [16]byte{} {
			r.failed = r.fail("fetch", fmt.Errorf("the topic was created anew: %w", connectors.ErrGap))
			return
		}
		r.fetched = append(r.fetched, p.Records...)
		r.end.Store(p.HighWatermark)
	}
	if p.Err != nil && r.failed == nil {
		r.failed = r.judge(p.Err)
	}
}

// judge says what an error of a fetch means.
func (r *reader) judge(err error) error {
	var loss *kgo.ErrDataLoss
	var large *kgo.ErrDecompressTooLarge
	switch {
	case errors.As(err, &large):
		return r.fail("fetch", &connectors.Error{
			Class: connectors.ClassData,
			Err:   fmt.Errorf("the records at offsets %d to %d were compressed together and unpack to more than %d bytes", large.Offset, large.NextOffset-1, unpackLimit(r.claim.Spec.MaxRecordBytes)),
			Hint:  "up to twice max_record_bytes is unpacked, if that is more",
		})
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, kgo.ErrClientClosed):
		return r.fail("fetch", errReaderClosed)
	case errors.Is(err, kerr.OffsetOutOfRange):
		return r.fail("fetch", fmt.Errorf("offset %d is not in the log any more: %w", r.next, connectors.ErrGap))
	case errors.As(err, &loss):
		return r.fail("fetch", fmt.Errorf("the log was cut back to offset %d, we had read up to %d: %w", loss.ResetTo, loss.ConsumedTo, connectors.ErrGap))
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		return r.fail("fetch", fmt.Errorf("the topic was deleted or created anew: %w", connectors.ErrGap))
	}
	at := r.next
	if n := len(r.fetched); n > 0 {
		at = r.fetched[n-1].Offset + 1
	}
	return r.fail(fmt.Sprintf("fetch from offset %d of", at), err)
}

var errReaderClosed = fmt.Errorf("reader is closed: %w", context.Canceled)

// cut makes a batch of the records that fit into one. Payloads go first, each
// followed by a newline, so that a line sink can copy them as one block; keys and
// metadata stand behind them. nil, nil: all that was left was of no interest.
func (r *reader) cut(ctx context.Context) (*message.Batch, error) {
	b, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	from, to := r.at, r.at
	framed, end, room := true, r.next, batchBytes
	epoch := r.epoch
	most := max(1, r.claim.Spec.BatchSize)
	for ; to < len(r.fetched) && b.Read < most; to++ {
		rec := r.fetched[to]
		if rec.Attrs.IsControl() || rec.Offset < end {
			end = max(end, rec.Offset+1)
			continue
		}
		n := int(size(rec)) + 1
		if to > from && (n > room || rec.LeaderEpoch != epoch) {
			break
		}
		epoch = rec.LeaderEpoch
		if r.tooLarge(rec) {
			if err := r.reject(ctx, rec); err != nil {
				r.failed = err
				break
			}
			b.Dropped++
		} else {
			framed = framed && bytes.IndexByte(rec.Value, '\n') < 0
			b.Arena = append(append(b.Arena, rec.Value...), '\n')
			room -= n
		}
		b.Read++
		end = rec.Offset + 1
	}
	if r.failed != nil && to < len(r.fetched) {
		// Nothing behind a record that stopped us may be read.
		r.drop(to)
	}
	if epoch != r.epoch {
		r.epoch = epoch
		r.place = &positions{topic: r.topic, epoch: epoch}
	}
	r.fill(b, r.fetched[from:to])
	if framed {
		b.MarkFramed()
	}
	r.at = to
	if end == r.next {
		b.Release()
		return nil, nil
	}
	r.bound(b, end)
	return b, nil
}

// fill adds the messages whose payloads stand in the arena already.
func (r *reader) fill(b *message.Batch, records []*kgo.Record) {
	off, seen := 0, r.next
	for _, rec := range records {
		if rec.Attrs.IsControl() || rec.Offset < seen || r.tooLarge(rec) {
			continue
		}
		seen = rec.Offset + 1
		b.Add(off, len(rec.Value), rec.Offset, rec.Offset+1)
		off += len(rec.Value) + 1
		if rec.Key != nil {
			b.SetKey(rec.Key)
		}
		if rec.Value == nil {
			b.AddMeta(metaTombstone, yes)
		}
		for i := range rec.Headers {
			h := &rec.Headers[i]
			if h.Key != metaTombstone && !strings.HasPrefix(h.Key, metaSource) {
				b.AddMeta(h.Key, h.Value)
			}
		}
		if r.source.config.SourceMetadata {
			r.describe(b, rec)
		}
	}
}

var yes = []byte("true")

func (r *reader) describe(b *message.Batch, rec *kgo.Record) {
	b.AddMeta(metaTopic, append(r.scratch[:0], rec.Topic...))
	r.scratch = strconv.AppendInt(r.scratch[:0], int64(rec.Partition), 10)
	b.AddMeta(metaPartition, r.scratch)
	r.scratch = strconv.AppendInt(r.scratch[:0], rec.Offset, 10)
	b.AddMeta(metaOffset, r.scratch)
	r.scratch = strconv.AppendInt(r.scratch[:0], rec.Timestamp.UnixMilli(), 10)
	b.AddMeta(metaTimestamp, r.scratch)
}

// bound sets the range of a batch to [next, end) and goes on to end.
func (r *reader) bound(b *message.Batch, end int64) {
	b.From = position{topic: r.topic, offset: r.next, epoch: r.place.epoch}.encode()
	b.End = position{topic: r.topic, offset: end, epoch: r.place.epoch}.encode()
	b.Positions = r.place
	r.next = end
	r.read.Store(end)
}

func (r *reader) tooLarge(rec *kgo.Record) bool {
	limit := r.claim.Spec.MaxRecordBytes
	return limit > 0 && size(rec) > limit
}

// size is what a record takes in a batch, headers and all: a short value may come
// with long ones.
func size(rec *kgo.Record) int64 {
	n := len(rec.Value) + len(rec.Key)
	for i := range rec.Headers {
		n += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return int64(n)
}

func (r *reader) reject(ctx context.Context, rec *kgo.Record) error {
	return r.claim.Reject(ctx, connectors.BadRecord{
		Ordinal: rec.Offset,
		Place:   fmt.Sprintf("%s[%d]@%d", rec.Topic, rec.Partition, rec.Offset),
		Err:     fmt.Errorf("record of %d bytes is larger than max_record_bytes %d", size(rec), r.claim.Spec.MaxRecordBytes),
		Payload: rec.Value,
	})
}

// recycle gives the records of the last fetch back to their slabs.
func (r *reader) recycle() {
	r.drop(0)
	r.at = 0
}

// drop gives the records from i on back.
func (r *reader) drop(i int) {
	for _, rec := range r.fetched[i:] {
		rec.Recycle()
	}
	clear(r.fetched[i:])
	r.fetched = r.fetched[:i]
}

// Settle copies the position to the consumer group, if there is one. It is a copy
// for the tools that watch lag: nothing is ever resumed from it after the first
// start, and the position is durable already (invariant 2).
func (r *reader) Settle(ctx context.Context, p message.Position) error {
	if r.source.config.GroupID == "" || p.IsZero() {
		return nil
	}
	at, err := decode(p)
	if err != nil {
		return r.fail("settle", err)
	}
	return r.source.mirror(ctx, r.partition, at)
}

// Lag implements connectors.Reader: offsets up to the high watermark of the last
// fetch, which counts markers of transactions and compacted records too.
func (r *reader) Lag() int64 { return max(0, r.end.Load()-r.read.Load()) }

// Close ends the fetches and makes a blocked Read return.
func (r *reader) Close() error {
	r.close()
	r.client.Close()
	return nil
}

func (r *reader) fail(op string, err error) error {
	return r.source.fail(op+" "+r.claim.Partition.ID, err)
}
