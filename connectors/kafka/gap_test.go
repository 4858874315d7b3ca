package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

func TestRetentionPassingThePositionIsAGapAndNoJump(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 100)
	s := newTestSource(t, b, topic)
	p := readN(t, openAt(t, s, 0, message.Position{}), 100).end
	b.ProduceN(t, topic, 0, 100, 100)
	b.DeleteRecords(t, topic, 0, 150)
	_, err := s.Open(t.Context(), s.testClaim(t, 0, p))
	if connectors.Classify(err) != connectors.ClassGap || !strings.Contains(err.Error(), "100 to 149") {
		t.Fatalf("%v", err)
	}
}

func TestRetentionPassingARunningReaderIsAGap(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	value := make([]byte, 100_000)
	var records []*kgo.Record
	for range 100 {
		records = append(records, &kgo.Record{Topic: topic, Value: value})
	}
	b.Produce(t, records...)
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 0, message.Position{})
	read(t, r).Release()
	read(t, r).Release()
	b.DeleteRecords(t, topic, 0, 95)
	if err := readError(t, r); connectors.Classify(err) != connectors.ClassGap {
		t.Fatalf("%v", err)
	}
	if at := r.read.Load(); at > 60 {
		t.Fatalf("reader went on to offset %d", at)
	}
}

func TestTopicCreatedAnewIsRefused(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 10)
	s := newTestSource(t, b, topic)
	part := connectors.Partition{ID: topic + "-0"}
	identity, err := s.Identify(t.Context(), part, "")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Identify(t.Context(), part, identity); err != nil || again != identity {
		t.Fatalf("%q %v", again, err)
	}
	running := openAt(t, s, 0, message.Position{})
	p := readN(t, running, 10).end
	b.DeleteTopic(t, topic)
	// To create it is no way out for who was reading it.
	if _, err := s.Identify(t.Context(), part, identity); connectors.Classify(err) != connectors.ClassRetryable || !strings.Contains(err.Error(), "any more") || !strings.Contains(err.Error(), "checkpoint reset") {
		t.Fatalf("identify: %v", err)
	}
	b.CreateTopic(t, topic, 1)
	b.ProduceN(t, topic, 0, 1000, 20)
	if _, err := s.Identify(t.Context(), part, identity); connectors.Classify(err) != connectors.ClassGap {
		t.Fatalf("identify: %v", err)
	}
	if _, err := s.Open(t.Context(), s.testClaim(t, 0, p)); connectors.Classify(err) != connectors.ClassGap {
		t.Fatalf("open: %v", err)
	}
	if err := readError(t, running); connectors.Classify(err) != connectors.ClassGap {
		t.Fatalf("running reader: %v", err)
	}
	_, err = s.Identify(t.Context(), part, "kafka:another/"+strings.SplitN(identity, "/", 2)[1])
	if connectors.Classify(err) != connectors.ClassForeign {
		t.Fatalf("another cluster: %v", err)
	}
}

func TestPositionBeyondTheEndIsAGap(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 10)
	s := newTestSource(t, b, topic)
	p, err := decode(readN(t, openAt(t, s, 0, message.Position{}), 10).end)
	if err != nil {
		t.Fatal(err)
	}
	p.offset = 11
	if _, err := s.Open(t.Context(), s.testClaim(t, 0, p.encode())); connectors.Classify(err) != connectors.ClassGap {
		t.Fatalf("%v", err)
	}
}

func TestPositionsCoverTheGapsOfCompaction(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{Properties: map[string]string{"log.cleaner.backoff.ms": "100"}})
	topic := b.Topic(t, 1, "cleanup.policy", "compact", "segment.ms", "100", "min.cleanable.dirty.ratio", "0.001", "delete.retention.ms", "0", "min.compaction.lag.ms", "0", "max.compaction.lag.ms", "100")
	put := func(key, value string) {
		t.Helper()
		b.Produce(t, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
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
	// Offsets 0 to 3 are gone, and more inside.
	r := openAt(t, s, 0, message.Position{})
	first := read(t, r)
	defer first.Release()
	if first.Msg(0).Ordinal != 4 || offset(t, first.From) != 0 || offset(t, first.PositionAfter(0)) != 5 {
		t.Fatalf("batch from %s begins with offset %d", first.From.Sort, first.Msg(0).Ordinal)
	}
	if g := readToEnd(t, openAt(t, s, 0, first.PositionAfter(0))); g.offsets[0] != 5 || g.values[0] != "kept" {
		t.Fatalf("behind the gap: %q at %d", g.values[0], g.offsets[0])
	}
}
