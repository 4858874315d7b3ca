package kafka

import (
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

func TestSeekNamesOffsetsThatThePartitionHas(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	b.ProduceN(t, topic, 1, 0, 50)
	s := newTestSource(t, b, topic)
	p := s.testClaim(t, 1, message.Position{}).Partition
	for value, want := range map[string]int64{"earliest": 0, "0": 0, "40": 40, "50": 50, "latest": 50} {
		at, err := s.Seek(t.Context(), p, value)
		if err != nil || offset(t, at) != want {
			t.Errorf("%s: %+v %v", value, at, err)
		}
	}
	for _, value := range []string{"51", "-1", "", "x"} {
		if at, err := s.Seek(t.Context(), p, value); connectors.Classify(err) != connectors.ClassPermanent {
			t.Errorf("%q: %+v %v", value, at, err)
		}
	}
	at, err := s.Seek(t.Context(), p, "40")
	if err != nil {
		t.Fatal(err)
	}
	g := readN(t, openAt(t, s, 1, at), 10)
	wantOrder(t, g, 40, 10)
}
