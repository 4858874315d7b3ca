package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

func TestGroupOffsetsStartAndMirror(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 2)
	b.ProduceN(t, topic, 0, 0, 20)
	b.ProduceN(t, topic, 1, 0, 20)
	id := "g-" + topic
	adm := b.Admin(t)
	var before kadm.Offsets
	before.Add(kadm.Offset{Topic: topic, Partition: 0, At: 7, LeaderEpoch: -1})
	harness.Eventually(t, 60*time.Second, func() error { return adm.CommitAllOffsets(t.Context(), id, before) })
	s := newTestSource(t, b, topic, group(id))
	r := openAt(t, s, 0, message.Position{})
	g := readN(t, r, 13)
	wantOrder(t, g, 7, 13)
	claim := s.testClaim(t, 1, message.Position{})
	claim.Late = false
	wantOrder(t, readN(t, openClaim(t, s, claim), 20), 0, 20)

	if err := r.Settle(t.Context(), g.end); err != nil {
		t.Fatal(err)
	}
	after, err := adm.FetchOffsets(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := after.Lookup(topic, 0); o.At != 20 {
		t.Fatalf("mirrored offset %d, want 20", o.At)
	}
}

func TestAGroupThatIsBehindRetentionOrBeyondTheEndIsNamed(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 20)
	b.DeleteRecords(t, topic, 0, 10)
	adm := b.Admin(t)
	for _, at := range []int64{5, 21} {
		id := fmt.Sprintf("g%d-%s", at, topic)
		var before kadm.Offsets
		before.Add(kadm.Offset{Topic: topic, Partition: 0, At: at, LeaderEpoch: -1})
		harness.Eventually(t, 60*time.Second, func() error { return adm.CommitAllOffsets(t.Context(), id, before) })
		s := newTestSource(t, b, topic, group(id))
		_, err := s.Open(t.Context(), s.testClaim(t, 0, message.Position{}))
		if connectors.Classify(err) != connectors.ClassGap || !strings.Contains(err.Error(), id) || !strings.Contains(err.Error(), "10 to 20") {
			t.Errorf("%s: %v", connectors.Classify(err), err)
		}
	}
}

// What came after a record that was not committed must not be committed for it: the
// group's offset is the durable position, however far the reader is.
func TestWhatFailedIsReadAgainAlthoughLaterRecordsWereRead(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 3000)
	id := "g-" + topic
	s := newTestSource(t, b, topic, group(id))
	harness.Eventually(t, 60*time.Second, func() error { return s.Check(t.Context()) })
	r := openAt(t, s, 0, message.Position{})
	first := read(t, r)
	durable := first.PositionAfter(499) // record 500 was refused
	first.Release()
	for n := 0; n < 1000; {
		later := read(t, r)
		n += later.Len()
		later.Release()
	}
	if err := r.Settle(t.Context(), durable); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	all, err := b.Admin(t).FetchOffsets(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := all.Lookup(topic, 0); o.At != 500 {
		t.Fatalf("group is at %d, want 500", o.At)
	}
	wantOrder(t, readN(t, openAt(t, s, 0, durable), 2500), 500, 2500)
	// Whoever comes without our record goes on there, too.
	wantOrder(t, readN(t, openAt(t, s, 0, message.Position{}), 2500), 500, 2500)
}

func TestGroupWithLiveMembersIsRefused(t *testing.T) {
	t.Parallel()
	b := harness.Kafka(t)
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 1)
	id := "g-" + topic
	s := newTestSource(t, b, topic, group(id))
	// The first question about a group makes a new broker create a topic.
	harness.Eventually(t, 60*time.Second, func() error { return s.Check(t.Context()) })
	running := openAt(t, s, 0, message.Position{})
	end := readN(t, running, 1).end
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	member := b.Client(t, kgo.ConsumerGroup(id), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit())
	if f := member.PollFetches(t.Context()); f.Err() != nil {
		t.Fatal(f.Err())
	}
	if err := s.Check(t.Context()); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "group_id") {
		t.Fatalf("check: %v", err)
	}
	if _, err := s.Open(t.Context(), s.testClaim(t, 0, end)); connectors.Classify(err) != connectors.ClassPermanent {
		t.Fatalf("open: %v", err)
	}
	if err := running.Settle(t.Context(), end); err == nil {
		t.Fatal("offsets of a group in use were overwritten")
	}
}
