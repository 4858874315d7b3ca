package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func newTestSink(t testing.TB, addr, topic string, opts ...option) *sink {
	t.Helper()
	c := &Config{URL: addr, Topic: topic, ConnectTimeout: 5 * time.Second}
	spec := &route.Spec{Name: "orders", BatchSize: 1024, MaxRecordBytes: 16 << 20}
	for _, o := range opts {
		o(c, spec)
	}
	s, err := Type().NewSink(c, spec, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.(*sink)
}

func produce(options ...string) option {
	return func(c *Config, _ *route.Spec) {
		for i := 0; i < len(options); i += 2 {
			c.ProducerOptions = append(c.ProducerOptions, [2]string{options[i], options[i+1]})
		}
	}
}

func sinkClaim() connectors.Claim {
	return connectors.Claim{
		RouteUID: "uid", Partition: connectors.Partition{ID: "in-0"}, Record: checkpoint.Record{Source: "file:1"},
		Gate: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	}
}

func openSink(t testing.TB, s *sink) (*writer, error) {
	t.Helper()
	p, err := s.Prepare(t.Context(), connectors.Partition{})
	if err != nil {
		return nil, err
	}
	w, err := p.Open(t.Context(), sinkClaim())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = w.Close() })
	return w.(*writer), nil
}

func mustOpenSink(t testing.TB, s *sink) *writer {
	t.Helper()
	w, err := openSink(t, s)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// payloads makes a batch of messages without key or metadata.
func payloads(values ...string) *message.Batch {
	b := message.NewBatch()
	for i, v := range values {
		b.Append([]byte(v), int64(i), int64(i+1))
	}
	return b
}

// consume returns everything in the topic, partition by partition.
func consume(t testing.TB, b *harness.KafkaBroker, topic string) []*kgo.Record {
	t.Helper()
	adm := b.Admin(t)
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	want, from := int64(0), map[int32]kgo.Offset{}
	for n, o := range ends[topic] {
		want += o.Offset
		from[n] = kgo.NewOffset().AtStart()
	}
	c := b.Client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []*kgo.Record
	for int64(len(out)) < want {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", len(out), want, err)
		}
		out = append(out, f.Records()...)
	}
	slices.SortStableFunc(out, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	return out
}

func values(records []*kgo.Record) (out []string) {
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

func header(r *kgo.Record, name string) []byte {
	for _, h := range r.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}

func TestSinkConformance(t *testing.T) {
	b := harness.Kafka(t)
	private := harness.StartKafka(t, harness.KafkaOptions{})
	sinktest.Run(t, sinktest.Harness{Blocked: 300 * time.Millisecond, New: func(t *testing.T) *sinktest.Subject {
		// Where a broker may be frozen it is not the one of other tests.
		at := b
		if strings.Contains(t.Name(), "blocked") {
			at = private
		}
		topic := at.Topic(t, 1, "max.message.bytes", "5000")
		return &sinktest.Subject{
			Open: func(t *testing.T) connectors.Sink { return newTestSink(t, at.Addr, topic) },
			Rows: func(t *testing.T) (out [][]byte) {
				for _, r := range consume(t, at, topic) {
					out = append(out, r.Value)
				}
				return out
			},
			Refused: func(int) []byte { return make([]byte, 10_000) },
			Block: func(*testing.T) func() {
				private.Process().Freeze()
				return private.Process().Thaw
			},
		}
	}})
}

func TestKeysHeadersAndIdsOfWhatIsWritten(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic, func(c *Config, _ *route.Spec) { c.PartitionKey = "customer" }))
	in := payloads("keyed by metadata", "keyed by itself", "keyed by its business id", "keyed by its id", "with an id of its own")
	in.PutMeta(0, "customer", []byte("c1"))
	in.PutMeta(0, "mqb.src.offset", []byte("17"))
	in.PutMeta(2, route.IDKey, []byte("order-7"))
	in.PutMeta(4, headerID, []byte("0123456789abcdef"))
	next := message.NewBatch()
	next.Append([]byte("keyed by itself"), 1, 2)
	next.SetKey([]byte("k1"))
	for _, step := range []struct {
		b    *message.Batch
		i, j int
	}{{in, 0, 1}, {next, 0, 1}, {in, 2, 5}} {
		if err := w.Write(t.Context(), step.b, step.i, step.j); err != nil {
			t.Fatal(err)
		}
	}
	got := consume(t, b, topic)
	if len(got) != 5 {
		t.Fatalf("%q", values(got))
	}
	own := header(got[3], headerID)
	for i, want := range []string{"c1", "k1", "order-7", string(own), "0123456789abcdef"} {
		if string(got[i].Key) != want {
			t.Errorf("%s: key %q, want %q", got[i].Value, got[i].Key, want)
		}
		if id := header(got[i], headerID); len(id) != 16 {
			t.Errorf("%s: id %x", got[i].Value, id)
		}
	}
	if header(got[0], "mqb.src.offset") != nil || string(header(got[0], "customer")) != "c1" || string(header(got[2], route.IDKey)) != "order-7" {
		t.Errorf("headers %v, %v", got[0].Headers, got[2].Headers)
	}
	// The same message again: readers can tell.
	if err := w.Write(t.Context(), in, 3, 4); err != nil {
		t.Fatal(err)
	}
	if again := consume(t, b, topic)[5]; !bytes.Equal(header(again, headerID), own) || bytes.Equal(own, header(got[2], headerID)) {
		t.Errorf("ids %x, %x, of another message %x", own, header(again, headerID), header(got[2], headerID))
	}
}

// An empty id would be the key of all that came with one, in one partition, and a
// repeat of each other to who reads them.
func TestWhatIsNoIdIsNotPassedOnAsOne(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	from, to := b.Topic(t, 1), b.Topic(t, 1)
	for _, id := range []string{"", "short"} {
		b.Produce(t, &kgo.Record{Topic: from, Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: headerID, Value: []byte(id)}, {Key: "", Value: nil}}})
	}
	r := openAt(t, newTestSource(t, b, from), 0, message.Position{})
	w := mustOpenSink(t, newTestSink(t, b.Addr, to))
	for n := 0; n < 2; {
		batch := read(t, r)
		n += batch.Len()
		if err := w.Write(t.Context(), batch, 0, batch.Len()); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	got := consume(t, b, to)
	if len(got) != 2 {
		t.Fatalf("%d records", len(got))
	}
	for _, r := range got {
		if len(r.Headers) != 2 || r.Headers[0].Key != "" || len(header(r, headerID)) != 16 || !bytes.Equal(r.Key, header(r, headerID)) {
			t.Errorf("key %x, headers %v", r.Key, r.Headers)
		}
	}
	if bytes.Equal(got[0].Key, got[1].Key) {
		t.Errorf("two records, one id %x", got[0].Key)
	}
}

// Source → sink → source: nothing of a record is lost on the way.
func TestTombstonesAndRepeatedHeadersSurviveFromTopicToTopic(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	from, to := b.Topic(t, 1), b.Topic(t, 1, "cleanup.policy", "compact")
	many := []kgo.RecordHeader{{Key: "cookie", Value: []byte("a")}, {Key: "other", Value: nil}, {Key: "cookie", Value: []byte("b")}}
	b.Produce(t,
		&kgo.Record{Topic: from, Key: []byte("k"), Value: []byte("v"), Headers: many},
		&kgo.Record{Topic: from, Key: []byte("k"), Value: nil},
		&kgo.Record{Topic: from, Key: []byte("k"), Value: []byte{}})
	batch := read(t, openAt(t, newTestSource(t, b, from, func(c *Config, _ *route.Spec) { c.SourceMetadata = true }), 0, message.Position{}))
	defer batch.Release()
	w := mustOpenSink(t, newTestSink(t, b.Addr, to))
	if err := w.Write(t.Context(), batch, 0, batch.Len()); err != nil {
		t.Fatal(err)
	}
	got := consume(t, b, to)
	if len(got) != 3 {
		t.Fatalf("%q", values(got))
	}
	if h := got[0].Headers; len(h) != 4 || h[0].Key != "cookie" || string(h[0].Value) != "a" || h[1].Key != "other" || string(h[2].Value) != "b" || h[3].Key != headerID {
		t.Errorf("headers %v", h)
	}
	for i, null := range []bool{false, true, false} {
		if (got[i].Value == nil) != null || string(got[i].Key) != "k" || (i > 0 && len(got[i].Headers) != 1) {
			t.Errorf("record %d: key %q, value %v, headers %v", i, got[i].Key, got[i].Value, got[i].Headers)
		}
	}
}

func TestHealthyMessagesAreNotLostBehindOneThatIsRefused(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	for _, c := range []struct {
		name, limit string
		opts        []option
	}{
		// Found out before it is sent, by the topic's own limit.
		{"before", "5000", nil},
		// Refused by the broker together with what is in its batch and behind it.
		{"by the broker", "5000", []option{produce("message.max.bytes", "1000000")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := b.Topic(t, 3, "max.message.bytes", c.limit)
			w := mustOpenSink(t, newTestSink(t, b.Addr, topic, c.opts...))
			in := message.NewBatch()
			var want []string
			for i := range 100 {
				v := fmt.Sprint(i)
				if i == 40 || i == 41 {
					v = strings.Repeat("x", 10_000)
				} else {
					want = append(want, v)
				}
				in.Append([]byte(v), int64(i), int64(i+1))
				in.SetKey(fmt.Append(nil, i%7))
			}
			err := w.Write(t.Context(), in, 0, in.Len())
			var rows *connectors.RowsError
			if !errors.As(err, &rows) || len(rows.Rows) != 2 || rows.Rows[0].Index != 40 || rows.Rows[1].Index != 41 {
				t.Fatalf("%v", err)
			}
			for _, r := range rows.Rows {
				if connectors.Classify(r.Err) != connectors.ClassData || !strings.Contains(r.Err.Error(), "max.message.bytes") {
					t.Errorf("%v", r.Err)
				}
			}
			records := consume(t, b, topic)
			got := values(records)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("written: %q", got)
			}
			last := map[string]int{}
			for _, r := range records {
				var n int
				_, _ = fmt.Sscan(string(r.Value), &n)
				if before, ok := last[string(r.Key)]; ok && before > n {
					t.Errorf("key %s: %d stands behind %d", r.Key, n, before)
				}
				last[string(r.Key)] = n
			}
		})
	}
}

func TestTopicIsCreatedOnceByManyAtATime(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	for _, c := range []struct {
		name string
		want int
		opts []option
	}{
		{"default", 6, nil},
		{"three", 3, []option{func(c *Config, _ *route.Spec) { n := int32(3); c.Partitions = &n }}},
	} {
		topic := fmt.Sprintf("created-%s-%d", c.name, time.Now().UnixNano())
		errs := make(chan error)
		for i := range 5 {
			s := newTestSink(t, b.Addr, topic, c.opts...)
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("check of a topic that is not there yet: %v", err)
			}
			go func() {
				w, err := openSink(t, s)
				if err == nil {
					err = w.Write(t.Context(), payloads(fmt.Sprint(i)), 0, 1)
				}
				errs <- err
			}()
		}
		for range 5 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		d, err := b.Admin(t).ListTopics(t.Context(), topic)
		if err != nil || len(d[topic].Partitions) != c.want {
			t.Errorf("%s: %d partitions, want %d, %v", c.name, len(d[topic].Partitions), c.want, err)
		}
		if got := values(consume(t, b, topic)); len(got) != 5 {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestAKeyStaysInThePartitionWhereLibrdkafkaPutIt(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	for _, c := range []struct {
		opts []option
		want map[string]int32 // of 6 partitions
	}{
		// Of Java's own tests: murmur2("21") = -973932308, murmur2("abc") = 479470107.
		{nil, map[string]int32{"order-1": crcOf6("order-1"), "order-2": crcOf6("order-2")}},
		{[]option{produce("partitioner", "murmur2_random")}, map[string]int32{"21": (-973932308 & 0x7fffffff) % 6, "abc": 479470107 % 6}},
	} {
		topic := b.Topic(t, 6)
		w := mustOpenSink(t, newTestSink(t, b.Addr, topic, c.opts...))
		in := message.NewBatch()
		for k := range c.want {
			in.Append([]byte(k), 0, 1)
			in.SetKey([]byte(k))
		}
		if err := w.Write(t.Context(), in, 0, in.Len()); err != nil {
			t.Fatal(err)
		}
		for _, r := range consume(t, b, topic) {
			if r.Partition != c.want[string(r.Key)] {
				t.Errorf("%s is in partition %d, want %d", r.Key, r.Partition, c.want[string(r.Key)])
			}
		}
	}
}

func TestAWriteThatIsGivenUpLeavesTheWriterUsable(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{})
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	in := payloads("a", "b", "c")
	if err := w.Write(t.Context(), in, 0, 1); err != nil {
		t.Fatal(err)
	}
	b.Process().Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := w.Write(ctx, in, 1, 2); !errors.Is(err, context.DeadlineExceeded) || connectors.Classify(err) == connectors.ClassData {
		t.Fatalf("%v", err)
	}
	// Nobody may hold the batch's memory now.
	for i := range in.Arena {
		in.Arena[i] = 'x'
	}
	b.Process().Thaw()
	if err := w.Write(t.Context(), payloads("d"), 0, 1); err != nil {
		t.Fatal(err)
	}
	got := values(consume(t, b, topic))
	if got[0] != "a" || !slices.Contains(got, "d") || slices.Contains(got, "x") {
		t.Fatalf("%q", got)
	}
}

func TestBrokerThatIsGoneIsAConnectionErrorAndNotTheMessagesFault(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{})
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	in := payloads("a", "b", "c")
	if err := w.Write(t.Context(), in, 0, 1); err != nil {
		t.Fatal(err)
	}
	b.Process().Kill()
	began := time.Now()
	err := w.Write(t.Context(), in, 1, 3)
	var rows *connectors.RowsError
	if connectors.Classify(err) != connectors.ClassConnection || errors.As(err, &rows) {
		t.Fatalf("%v", err)
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("noticed after %v", d)
	}
	b.Restart(t)
	if err := w.Write(t.Context(), in, 1, 3); err != nil {
		t.Fatal(err)
	}
	if got := values(consume(t, b, topic)); fmt.Sprint(got) != "[a b c]" {
		t.Fatalf("%q", got)
	}
}

// The brokers answer and do not take it: that is for the route to decide, soon, and
// no message is to blame.
func TestATopicDeletedUnderTheWriterBlamesNoMessageAndTheNextRunMakesItAnew(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	s := newTestSink(t, b.Addr, topic, produce("delivery.timeout.ms", "2000"))
	w := mustOpenSink(t, s)
	in := payloads("a", "b", "c", "d", "e", "f")
	if err := w.Write(t.Context(), in, 0, in.Len()); err != nil {
		t.Fatal(err)
	}
	b.DeleteTopic(t, topic)
	began := time.Now()
	err := w.Write(t.Context(), in, 0, in.Len())
	var rows *connectors.RowsError
	if c := connectors.Classify(err); c != connectors.ClassConnection || errors.As(err, &rows) {
		t.Fatalf("%s: %v", c, err)
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("took %v", d)
	}
	if err := mustOpenSink(t, s).Write(t.Context(), in, 0, in.Len()); err != nil {
		t.Fatal(err)
	}
	if got := values(consume(t, b, topic)); len(got) != 6 {
		t.Fatalf("%q", got)
	}
}

func TestATopicCreatedAnewIsWrittenToByTheNextTry(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	in := payloads("a", "b", "c")
	if err := w.Write(t.Context(), in, 0, 1); err != nil {
		t.Fatal(err)
	}
	b.DeleteTopic(t, topic)
	b.CreateTopic(t, topic, 1)
	// As the middleware retry does, which keeps the writer.
	err := w.Write(t.Context(), in, 1, 3)
	if c := connectors.Classify(err); err != nil && c != connectors.ClassConnection {
		t.Fatalf("%s: %v", c, err)
	}
	if err != nil {
		err = w.Write(t.Context(), in, 1, 3)
	}
	if got := values(consume(t, b, topic)); err != nil || fmt.Sprint(got) != "[b c]" {
		t.Fatalf("%q, %v", got, err)
	}
}

// What of a failed try is still on its way to a broker is refused there as long as the
// producer is the same one; from another one it would be taken, behind newer records.
func TestAFailedTryThatIsNotAboutTheTopicKeepsTheProducer(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	w := mustOpenSink(t, newTestSink(t, b.Addr, b.Topic(t, 1)))
	for err, kept := range map[error]bool{
		kgo.ErrRecordTimeout: true, kerr.NotEnoughReplicas: true, kerr.LeaderNotAvailable: true,
		kerr.UnknownTopicID: false, kerr.UnknownTopicOrPartition: false,
	} {
		if _, err := w.connect(); err != nil {
			t.Fatal(err)
		}
		w.fill(payloads("a", "b"), 0, 2)
		w.failed[&w.records[1]] = err
		if judged := w.judge(0); connectors.Classify(judged) != connectors.ClassData && connectors.Classify(judged) != connectors.ClassConnection {
			t.Errorf("%v: %v", err, judged)
		}
		w.forget()
		if (w.client != nil) != kept {
			t.Errorf("%v: the producer was kept: %v", err, !kept)
		}
	}
}

// More partitions move keys. What was written stays, and nothing is lost or refused.
func TestPartitionsThatAreAddedWhileItWritesAreUsed(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	w := mustOpenSink(t, newTestSink(t, b.Addr, topic))
	written := 0
	write := func() {
		t.Helper()
		in := message.NewBatch()
		for i := range 50 {
			in.Append([]byte("x"), int64(i), int64(i+1))
			in.SetKey(fmt.Append(nil, i))
		}
		if err := w.Write(t.Context(), in, 0, in.Len()); err != nil {
			t.Fatal(err)
		}
		written += in.Len()
	}
	write()
	b.AddPartitions(t, topic, 3)
	// The client asks again what partitions there are when it is told to, or some
	// minutes later; here it is told.
	w.client.ForceMetadataRefresh()
	used := map[int32]bool{}
	harness.Eventually(t, 30*time.Second, func() error {
		write()
		records := consume(t, b, topic)
		if len(records) != written {
			t.Fatalf("%d records, %d were written", len(records), written)
		}
		for _, r := range records {
			used[r.Partition] = true
		}
		if len(used) != 3 {
			return fmt.Errorf("partitions %v", used)
		}
		return nil
	})
}

func TestWithAcksOtherThanAllAnOutputIsNotDurable(t *testing.T) {
	for acks, durable := range map[string]bool{"": true, "all": true, "-1": true, "1": false, "0": false} {
		c := &Config{URL: "a", Topic: "t"}
		if acks != "" {
			produce("acks", acks)(c, nil)
		}
		if errs := c.Validate(route.Output); len(errs) > 0 {
			t.Fatal(errs)
		}
		got := sinkCapabilities(c)
		if got.Durable != durable || got.Tier != route.TierNone || (!durable && !strings.Contains(got.Why, "acks")) {
			t.Errorf("acks %q: %+v", acks, got)
		}
	}
	b := harness.Kafka(t)
	for _, acks := range []string{"1", "0"} {
		topic := b.Topic(t, 1)
		w := mustOpenSink(t, newTestSink(t, b.Addr, topic, produce("acks", acks, "compression.type", "lz4", "max.in.flight", "2")))
		if err := w.Write(t.Context(), payloads("a"), 0, 1); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 20*time.Second, func() error {
			if got := values(consume(t, b, topic)); fmt.Sprint(got) != "[a]" {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
}

func crcOf6(key string) int32 {
	h := ^uint32(0)
	for _, b := range []byte(key) {
		h ^= uint32(b)
		for range 8 {
			h = h>>1 ^ 0xedb88320&-(h&1)
		}
	}
	return int32(^h % 6)
}
