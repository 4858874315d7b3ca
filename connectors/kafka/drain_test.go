package kafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

func TestTransactionMarkersAndAbortedRecordsMoveThePosition(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	c := b.Client(t, kgo.TransactionalID(topic))
	transact := func(commit kgo.TransactionEndTry, values ...string) {
		t.Helper()
		if err := c.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	transact(kgo.TryCommit, "0", "1") // offsets 0 1, marker 2
	transact(kgo.TryAbort, "x", "y")  // offsets 3 4, marker 5
	transact(kgo.TryCommit, "2")      // offset 6, marker 7
	transact(kgo.TryAbort, "z")       // offset 8, marker 9
	s := newTestSource(t, b, topic, drain)
	g := readToEnd(t, openAt(t, s, 0, message.Position{}))
	wantOrder(t, g, 0, 3)
	if fmt.Sprint(g.offsets) != "[0 1 6]" || offset(t, g.end) != 10 {
		t.Fatalf("offsets %v, end %s", g.offsets, g.end.Sort)
	}
}

func TestDrainWaitsForAnOpenTransactionThatBeganBefore(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	c := b.Client(t, kgo.TransactionalID(topic))
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("0")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	s := newTestSource(t, b, topic, drain)
	r := openAt(t, s, 0, message.Position{})
	short, cancel := context.WithTimeout(t.Context(), 3*idleWait)
	defer cancel()
	if batch, err := r.Read(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("drain did not wait: %v %v", batch, err)
	}
	if err := c.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	wantOrder(t, readToEnd(t, r), 0, 1)
}

func TestDrainEndsBehindATailThatCompactionEmptied(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the log cleaner")
	}
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{Properties: map[string]string{"log.cleaner.backoff.ms": "100"}})
	topic := b.Topic(t, 1, "cleanup.policy", "compact", "segment.ms", "100", "min.cleanable.dirty.ratio", "0.001", "delete.retention.ms", "0", "min.compaction.lag.ms", "0", "max.compaction.lag.ms", "100")
	put := func(key, value string) {
		rec := &kgo.Record{Topic: topic, Key: []byte(key)}
		if value != "" {
			rec.Value = []byte(value)
		}
		b.Produce(t, rec)
	}
	for i := range 5 {
		put("same", fmt.Sprint(i))
	}
	put("keep", "kept")
	s := newTestSource(t, b, topic, drain)
	// A new segment is rolled by an append; the cleaner leaves the active one alone.
	harness.Eventually(t, 60*time.Second, func() error {
		put("other", "o")
		r, err := s.Open(t.Context(), s.testClaim(t, 0, message.Position{}))
		if err != nil {
			return err
		}
		defer r.Close()
		g := readToEnd(t, r.(*reader))
		if len(g.values) == 0 || g.values[0] != "4" {
			return fmt.Errorf("not compacted yet: %v", g.values)
		}
		return nil
	})
	g := readToEnd(t, openAt(t, s, 0, message.Position{}))
	if g.offsets[0] != 4 || g.values[0] != "4" {
		t.Fatalf("first record %q at %d", g.values[0], g.offsets[0])
	}
}

func TestDrainReadsEveryRecordThatWasThere(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	b.ProduceN(t, topic, 0, 0, 3000)
	s := newTestSource(t, b, topic, drain)
	wantOrder(t, readToEnd(t, openAt(t, s, 0, message.Position{})), 0, 3000)
	if g := readToEnd(t, openAt(t, s, 1, message.Position{})); len(g.values) != 0 {
		t.Fatalf("%d records in an empty partition", len(g.values))
	}
}
