package kafka

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
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

// A broker that says nothing for a while has not said that there is nothing more.
func TestADrainNeverTakesASilentBrokerForTheEnd(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{})
	topic := b.Topic(t, 1)
	filler := make([]byte, 1000)
	var records []*kgo.Record
	for range 5000 { // more than two fetches bring
		records = append(records, &kgo.Record{Topic: topic, Value: filler})
	}
	b.Produce(t, records...)
	s := newTestSource(t, b, topic, drain)
	r := openAt(t, s, 0, message.Position{})
	n := read(t, r).Len()
	b.Process().Freeze()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 3*idleWait)
		batch, err := r.Read(ctx)
		cancel()
		if err != nil {
			if errors.Is(err, connectors.ErrEndOfInput) || n >= 5000 {
				t.Fatalf("%d records, then %v", n, err)
			}
			break
		}
		n += batch.Len()
		batch.Release()
	}
	b.Process().Thaw()
	if n += len(readToEnd(t, r).values); n != 5000 {
		t.Fatalf("%d records", n)
	}
}
