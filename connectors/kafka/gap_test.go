package kafka

import (
	"strings"
	"testing"

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
