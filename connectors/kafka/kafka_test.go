package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

type option func(*Config, *route.Spec)

func group(id string) option { return func(c *Config, _ *route.Spec) { c.GroupID = id } }

func drain(_ *Config, s *route.Spec) { s.ExitOnEmpty = true }

func newTestSource(t testing.TB, b *harness.KafkaBroker, topic string, opts ...option) *source {
	t.Helper()
	c := &Config{URL: b.Addr, Topic: topic, ConnectTimeout: 5 * time.Second}
	spec := &route.Spec{Name: "orders", BatchSize: 1024, MaxRecordBytes: 16 << 20}
	for _, o := range opts {
		o(c, spec)
	}
	s, err := Type().NewSource(c, spec, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*source)
}

func (s *source) testClaim(t testing.TB, number int, from message.Position) connectors.Claim {
	t.Helper()
	return connectors.Claim{
		Partition: connectors.Partition{ID: fmt.Sprintf("%s-%d", s.config.Topic, number), Attributes: map[string]string{attrPartition: fmt.Sprint(number)}},
		Record:    checkpoint.Record{Position: from},
		Resumed:   !from.IsZero(),
		// Most tests write before they open.
		Late:   true,
		Spec:   s.spec,
		Budget: message.NewBudget(message.DefaultBudget),
		Reject: func(_ context.Context, bad connectors.BadRecord) error {
			return fmt.Errorf("%s: %w", bad.Place, bad.Err)
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func openAt(t testing.TB, s *source, number int, from message.Position) *reader {
	t.Helper()
	return openClaim(t, s, s.testClaim(t, number, from))
}

func openClaim(t testing.TB, s *source, claim connectors.Claim) *reader {
	t.Helper()
	r, err := s.Open(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r.(*reader)
}

// got is what was read: values with their offsets, and where that ended.
type got struct {
	values  []string
	offsets []int64
	end     message.Position
}

func (g *got) add(t testing.TB, b *message.Batch) {
	t.Helper()
	if !g.end.IsZero() && b.From.Compare(g.end) != 0 {
		t.Fatalf("batch begins at %s, the last one ended at %s", b.From.Sort, g.end.Sort)
	}
	if b.Read != b.Len()+b.Dropped {
		t.Fatalf("read %d, messages %d, dropped %d", b.Read, b.Len(), b.Dropped)
	}
	for i := range b.Len() {
		g.values = append(g.values, string(b.Payload(i)))
		g.offsets = append(g.offsets, b.Msg(i).Ordinal)
	}
	g.end = b.End
	b.Release()
}

func read(t testing.TB, r *reader) *message.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readN(t testing.TB, r *reader, n int) (g got) {
	t.Helper()
	for len(g.values) < n {
		g.add(t, read(t, r))
	}
	return g
}

func readToEnd(t testing.TB, r *reader) (g got) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		b, err := r.Read(ctx)
		if errors.Is(err, connectors.ErrEndOfInput) {
			return g
		}
		if err != nil {
			t.Fatal(err)
		}
		g.add(t, b)
	}
}

func readError(t testing.TB, r *reader) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		b, err := r.Read(ctx)
		if err != nil {
			return err
		}
		b.Release()
	}
}

func wantOrder(t testing.TB, g got, first, n int) {
	t.Helper()
	if len(g.values) != n {
		t.Fatalf("%d records, want %d", len(g.values), n)
	}
	for i, v := range g.values {
		if v != fmt.Sprint(first+i) {
			t.Fatalf("record %d is %q, want %d", i, v, first+i)
		}
	}
}

func offset(t testing.TB, p message.Position) int64 {
	t.Helper()
	n, ok := p.Number()
	if !ok {
		t.Fatalf("position %q is no number", p.Sort)
	}
	return n
}

func TestResumesAtTheExactOffsetInOrder(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	b.ProduceN(t, topic, 1, 0, 5000)
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 1, message.Position{})
	batch := read(t, r)
	if batch.Len() != 1024 {
		t.Fatalf("batch of %d, want batch_size", batch.Len())
	}
	if p := batch.PositionAfter(9); offset(t, p) != 10 {
		t.Fatalf("position after record 9 is %s", p.Sort)
	}
	inside := batch.PositionAfter(699)
	batch.Release()
	_ = r.Close()

	g := readN(t, openAt(t, s, 1, inside), 4300)
	wantOrder(t, g, 700, 4300)
	if g.offsets[0] != 700 || offset(t, g.end) != 5000 {
		t.Fatalf("read [%d, %s)", g.offsets[0], g.end.Sort)
	}
}

func TestLatestStartIsDurableBeforeTheFirstRecord(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 10)
	s := newTestSource(t, b, topic)
	claim := s.testClaim(t, 0, message.Position{})
	claim.Late = false
	r := openClaim(t, s, claim)
	start := read(t, r)
	if offset(t, start.End) != 10 {
		t.Fatalf("latest is %s, want 10", start.End.Sort)
	}
	p := start.End
	start.Release()
	_ = r.Close()
	b.ProduceN(t, topic, 0, 10, 5)
	wantOrder(t, readN(t, openAt(t, s, 0, p), 5), 10, 5)
}

func TestNewPartitionsAreFound(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	s := newTestSource(t, b, topic)
	for _, want := range []int{2, 5} {
		if want > 2 {
			b.AddPartitions(t, topic, want)
		}
		ps, err := s.Partitions(t.Context())
		if err != nil || len(ps) != want {
			t.Fatalf("%d partitions, %v, want %d", len(ps), err, want)
		}
		last := ps[want-1]
		if last.ID != fmt.Sprintf("%s-%d", topic, want-1) || last.PartSource != topic || last.PartNumber != want-1 {
			t.Fatalf("%+v", last)
		}
	}
	b.ProduceN(t, topic, 4, 0, 3)
	wantOrder(t, readN(t, openAt(t, s, 4, message.Position{}), 3), 0, 3)
}

func TestATombstoneIsAMessageLikeOthersAndHeadersAndKeysSurvive(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.Produce(t,
		&kgo.Record{Topic: topic, Key: []byte("k0"), Value: []byte("plain"), Headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte("1")}, {Key: "mqb.src.offset", Value: []byte("forged")}, {Key: metaTombstone, Value: []byte("forged")}}},
		&kgo.Record{Topic: topic, Key: []byte("k1")},
		&kgo.Record{Topic: topic, Value: []byte{}},
	)
	s := newTestSource(t, b, topic, func(c *Config, _ *route.Spec) { c.SourceMetadata = true })
	r := openAt(t, s, 0, message.Position{})
	batch := read(t, r)
	if batch.Len() != 3 {
		t.Fatalf("%d messages", batch.Len())
	}
	if k := batch.Key(0); string(k) != "k0" || batch.Key(2) != nil {
		t.Fatalf("keys %q %q", k, batch.Key(2))
	}
	if v, _ := batch.Meta(0, "a"); string(v) != "1" {
		t.Fatalf("header a is %q", v)
	}
	if v, _ := batch.Meta(0, metaOffset); string(v) != "0" {
		t.Fatalf("offset metadata is %q", v)
	}
	for i, want := range []bool{false, true, false} {
		if _, ok := batch.Meta(i, metaTombstone); ok != want || (i > 0 && len(batch.Payload(i)) > 0) {
			t.Fatalf("record %d: tombstone %v, payload %q", i, ok, batch.Payload(i))
		}
	}
	if got := string(batch.Lines(0, 3)); got != "plain\n\n\n" {
		t.Fatalf("lines %q", got)
	}
	batch.Release()
	b.Produce(t, &kgo.Record{Topic: topic, Value: []byte("two\nlines")}, &kgo.Record{Topic: topic, Value: []byte("x")})
	batch = read(t, r)
	if batch.Lines(0, batch.Len()) != nil {
		t.Fatal("a payload with a newline inside was marked as one line")
	}
	if string(batch.Payload(0)) != "two\nlines" {
		t.Fatalf("payload %q", batch.Payload(0))
	}
	batch.Release()
}

func TestRecordBeyondTheLimitIsRejectedAlone(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.Produce(t, &kgo.Record{Topic: topic, Value: []byte("0")}, &kgo.Record{Topic: topic, Value: make([]byte, 100)}, &kgo.Record{Topic: topic, Value: []byte("1")})
	s := newTestSource(t, b, topic, func(_ *Config, s *route.Spec) { s.MaxRecordBytes = 50 })
	claim := s.testClaim(t, 0, message.Position{})
	var places []string
	claim.Reject = func(_ context.Context, bad connectors.BadRecord) error {
		places = append(places, bad.Place)
		return nil
	}
	wantOrder(t, readN(t, openClaim(t, s, claim), 2), 0, 2)
	if len(places) != 1 || places[0] != topic+"[0]@1" {
		t.Fatalf("rejected %v", places)
	}
	r := openAt(t, s, 0, message.Position{})
	g := readN(t, r, 1)
	if offset(t, g.end) != 1 {
		t.Fatalf("stopped at %s, want 1", g.end.Sort)
	}
	if err := readError(t, r); !strings.Contains(err.Error(), "max_record_bytes") {
		t.Fatalf("%v", err)
	}
	if offset(t, g.end) != r.read.Load() {
		t.Fatalf("went over the record to %d", r.read.Load())
	}
}

// Headers count: a thousand records with a megabyte of them each are no batch.
func TestLongHeadersDoNotOutgrowABatch(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	c := b.Client(t, kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ManualFlushing())
	long := []kgo.RecordHeader{{Key: "h", Value: make([]byte, 100_000)}}
	for i := range 30 {
		c.Produce(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i), Headers: long}, nil)
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := openAt(t, newTestSource(t, b, topic), 0, message.Position{})
	var g got
	for len(g.values) < 30 {
		batch := read(t, r)
		if n := len(batch.Arena); n > batchBytes+200_000 {
			t.Errorf("a batch of %d bytes", n)
		}
		g.add(t, batch)
	}
	wantOrder(t, g, 0, 30)
	r = openAt(t, newTestSource(t, b, topic, func(_ *Config, s *route.Spec) { s.MaxRecordBytes = 50_000 }), 0, message.Position{})
	if err := readError(t, r); !strings.Contains(err.Error(), "max_record_bytes") {
		t.Fatal(err)
	}
}

// A few hundred bytes must not become gigabytes here, and nobody must take that for a
// network that is down.
func TestABatchThatUnpacksToTooMuchIsNamedAndNotTriedForEver(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.Produce(t, &kgo.Record{Topic: topic, Value: []byte("0")})
	c := b.Client(t, kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(100<<20), kgo.BrokerMaxWriteBytes(100<<20), kgo.ManualFlushing())
	value := make([]byte, 8<<20)
	for range 9 {
		c.Produce(t.Context(), &kgo.Record{Topic: topic, Value: value}, nil)
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 0, message.Position{})
	g := readN(t, r, 1)
	err := readError(t, r)
	if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), "offsets 1 to 9") || !strings.Contains(err.Error(), "max_record_bytes") {
		t.Fatalf("%s: %v", connectors.Classify(err), err)
	}
	// What it says helps.
	s = newTestSource(t, b, topic, func(_ *Config, spec *route.Spec) { spec.MaxRecordBytes = 64 << 20 })
	if n := len(readN(t, openAt(t, s, 0, g.end), 9).values); n != 9 {
		t.Fatalf("%d records", n)
	}
}

// A slow pipeline finds the next fetch there already, and nothing beyond it.
func TestASlowPipelineFindsTheNextFetchThereAndNoMore(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	var records []*kgo.Record
	for range 400 {
		records = append(records, &kgo.Record{Topic: topic, Value: make([]byte, 50_000)})
	}
	b.Produce(t, records...) // 20 MB
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 0, message.Position{})
	read(t, r).Release()
	first := read(t, r)
	// The next fetch has arrived when the client holds records; nothing may follow it.
	harness.Eventually(t, 20*time.Second, func() error {
		if r.client.BufferedFetchRecords() == 0 {
			return errors.New("nothing prefetched")
		}
		return nil
	})
	// The producer made record batches of up to 1 MB, and a fetch brings at least one.
	if n := r.client.BufferedFetchBytes(); n > fetchBytes+1_000_000 {
		t.Fatalf("%d bytes are buffered", n)
	}
	first.Release()
}

func TestFetchesThatUnpackToMuchAskForLess(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	c := b.Client(t, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	for range 4 {
		records := make([]*kgo.Record, 300)
		for i := range records {
			records[i] = &kgo.Record{Topic: topic, Value: make([]byte, 10_000)}
		}
		if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	s := newTestSource(t, b, topic, drain)
	r := openAt(t, s, 0, message.Position{})
	if g := readToEnd(t, r); len(g.values) != 1200 {
		t.Fatalf("%d records", len(g.values))
	}
	if r.asked != minFetchBytes {
		t.Fatalf("asks for %d bytes that unpack to a thousand times as much", r.asked)
	}
}
