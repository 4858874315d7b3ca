package harness

import (
	"testing"
)

func TestKafkaKeepsItsDataOverAKill(t *testing.T) {
	b := StartKafka(t, KafkaOptions{})
	topic := b.Topic(t, 2)
	b.ProduceN(t, topic, 1, 0, 10)
	b.Process().Kill()
	b.Restart(t)
	ends, err := b.Admin(t).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := ends.Lookup(topic, 1); !ok || o.Offset != 10 {
		t.Fatalf("end offset %v after the restart, want 10", o.Offset)
	}
}
