package kafka

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func TestUnreachableBrokerIsAConnectionErrorSoon(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
	s, err := newSource(&Config{URL: addr, Topic: "t", ConnectTimeout: time.Second}, &route.Spec{Name: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	began := time.Now()
	_, err = s.Partitions(t.Context())
	if connectors.Classify(err) != connectors.ClassConnection || !strings.Contains(err.Error(), addr) {
		t.Fatalf("%v", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Fatalf("took %v", d)
	}
}

// A name that is wrong looks different from a network that is down, and is said at
// once; the topic may still be created.
func TestAnUnknownTopicIsNotTakenForANetworkThatIsDown(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	s := newTestSource(t, b, "nobody-made-this")
	began := time.Now()
	_, err := s.Partitions(t.Context())
	for _, err := range []error{err, s.Check(t.Context())} {
		if connectors.Classify(err) != connectors.ClassRetryable || !strings.Contains(err.Error(), "create the topic") || !strings.Contains(err.Error(), b.Addr) || !strings.Contains(err.Error(), "nobody-made-this") {
			t.Errorf("%v", err)
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestBrokerKilledAndStartedAgainWhileReading(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{})
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 100)
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 0, message.Position{})
	g := readN(t, r, 100)
	b.Process().Kill()
	if err := readError(t, r); connectors.Classify(err) != connectors.ClassConnection || !strings.Contains(err.Error(), b.Addr) {
		t.Fatalf("broker gone: %v", err)
	}
	b.Restart(t)
	b.ProduceN(t, topic, 0, 100, 100)
	// As the partition does: the run is over, another one goes on.
	_ = r.Close()
	wantOrder(t, readN(t, openAt(t, s, 0, g.end), 100), 100, 100)
}

func TestFrozenBrokerIsNoticed(t *testing.T) {
	t.Parallel()
	b := harness.StartKafka(t, harness.KafkaOptions{})
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 10)
	s := newTestSource(t, b, topic)
	r := openAt(t, s, 0, message.Position{})
	g := readN(t, r, 10)
	b.Process().Freeze()
	if err := readError(t, r); connectors.Classify(err) != connectors.ClassConnection {
		t.Fatalf("%v", err)
	}
	b.Process().Thaw()
	b.ProduceN(t, topic, 0, 10, 10)
	_ = r.Close()
	// The broker lost its session while it slept: for a while after it woke it leads
	// the topic, then nobody does. As the partition does: another run, until one goes on.
	var next got
	harness.Eventually(t, time.Minute, func() error {
		rd, err := s.Open(t.Context(), s.testClaim(t, 0, g.end))
		if err != nil {
			return err
		}
		defer func() { _ = rd.Close() }()
		next = got{}
		for len(next.values) < 10 {
			batch, err := rd.Read(t.Context())
			if err != nil {
				return err
			}
			next.add(t, batch)
		}
		return nil
	})
	wantOrder(t, next, 10, 10)
}

func TestCloseAndCancelEndABlockedRead(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	s := newTestSource(t, b, topic)
	for _, how := range []string{"close", "cancel"} {
		r := openAt(t, s, 0, message.Position{})
		read(t, r).Release()
		ctx, cancel := context.WithCancel(t.Context())
		out := make(chan error, 1)
		go func() {
			_, err := r.Read(ctx)
			out <- err
		}()
		if how == "close" {
			_ = r.Close()
		} else {
			cancel()
		}
		select {
		case err := <-out:
			if connectors.Classify(err) != connectors.ClassStopped {
				t.Errorf("%s: %v", how, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: Read still blocks", how)
		}
		cancel()
	}
}
