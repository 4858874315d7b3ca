package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sourcetest"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func payload(i int) []byte { return fmt.Appendf(nil, `{"n":%d,"pad":"%0400d"}`, i, i) }

// produce appends records [from, from+n) to the first partition of the topic.
func produce(t *testing.T, tp *topic, from, n int) {
	t.Helper()
	b := message.NewBatch()
	rows := make([]int, n)
	for i := range n {
		b.Append(payload(from+i), 0, 0)
		rows[i] = i
	}
	if err := tp.logs[0].append(t.Context(), b, rows, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, name string, capacity int) *topic {
	t.Helper()
	tp, err := topics.open(name, capacity, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A topic that holds records would be there for a second run of the test.
		tp.logs[0].free(tp.logs[0].next)
		topics.close(tp)
	})
	return tp
}

func TestSource(t *testing.T) {
	for _, c := range []struct {
		name        string
		keep, drain bool
	}{{"plain", false, false}, {"drained", false, true}, {"kept until settled", true, false}, {"kept and drained", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Harness{New: func(t *testing.T) *sourcetest.Subject {
				spec := &route.Spec{Name: "r", ExitOnEmpty: c.drain}
				config := &Config{Topic: t.Name(), Capacity: 1 << 20, EnableNack: c.keep, Partitions: 1}
				tp := mustOpen(t, config.Topic, config.Capacity)
				s := &sourcetest.Subject{
					Open: func(t *testing.T) connectors.Source {
						src, err := Type().NewSource(config, spec, connectors.Env{Node: "n1"})
						if err != nil {
							t.Fatal(err)
						}
						return src
					},
					Append:  func(t *testing.T, from, n int) { produce(t, tp, from, n) },
					Payload: payload,
					Spec:    spec,
					Ends:    c.drain,
					Resumes: c.keep,
					Dense:   true,
				}
				if c.keep {
					s.Held = func(*testing.T) int { return int(tp.logs[0].first) }
					s.LoseHead = func(_ *testing.T, n int) { tp.logs[0].free(int64(n)) }
				}
				return s
			}})
		})
	}
}

func claim(t *testing.T, src connectors.Source, at message.Position) connectors.Claim {
	t.Helper()
	parts, err := src.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return connectors.Claim{
		Partition: parts[0], Record: checkpoint.Record{Position: at}, Spec: &route.Spec{BatchSize: 10},
		Budget: message.NewBudget(1 << 20), Gate: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	}
}

// A process that restarts has an empty topic, while the record still holds the
// position of the old one.
func TestPositionOfAnEarlierLifeOfTheTopicNeverHidesNewRecords(t *testing.T) {
	config := &Config{Topic: t.Name(), Capacity: 100, Partitions: 1, EnableNack: true}
	read := func(at message.Position, from, n int) message.Position {
		src, err := Type().NewSource(config, &route.Spec{}, connectors.Env{Node: "n1"})
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		produce(t, src.(*source).topic, from, n)
		r, err := src.Open(t.Context(), claim(t, src, at))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		if string(b.Payload(0)) != string(payload(from)) || b.Len() != n {
			t.Fatalf("%d records from %.40s, want %d from %d", b.Len(), b.Payload(0), n, from)
		}
		if b.End.Compare(at) <= 0 {
			t.Fatalf("position went from %q to %q (invariant 3)", at.Sort, b.End.Sort)
		}
		if err := r.Settle(t.Context(), b.End); err != nil {
			t.Fatal(err)
		}
		return b.End
	}
	first := read(message.Position{}, 0, 5)
	if topics.m[t.Name()] != nil {
		t.Fatal("an empty topic without references stayed")
	}
	read(first, 5, 3)
}

func TestFullTopicStopsTheWriterUntilSomethingIsRead(t *testing.T) {
	tp := mustOpen(t, t.Name(), 3)
	b := message.NewBatch()
	for i := range 5 {
		b.Append(payload(i), 0, 0)
	}
	s := &sink{topic: tp}
	p, _ := s.Prepare(t.Context(), connectors.Partition{})
	w, err := p.Open(t.Context(), connectors.Claim{Gate: func() error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	done := make(chan error, 1)
	go func() { done <- w.(connectors.PlainWriter).Write(t.Context(), b, 0, 5) }()
	src := &source{topic: tp, node: "n1"}
	r, err := src.Open(t.Context(), claim(t, src, message.Position{}))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for got := 0; got < 5; {
		c, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.Len() > 3 {
			t.Fatalf("%d records were waiting in a topic of capacity 3", c.Len())
		}
		for i := range c.Len() {
			if string(c.Payload(i)) != string(payload(got)) {
				t.Fatalf("record %d is %.40s", got, c.Payload(i))
			}
			got++
		}
		c.Release()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestKeysStayOnOnePartition(t *testing.T) {
	tp, err := topics.open(t.Name(), 1000, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer topics.close(tp)
	b := message.NewBatch()
	for i := range 400 {
		b.Append(payload(i), 0, 0)
		b.SetKey(fmt.Appendf(nil, "k%d", i%8))
		b.AddMeta("n", fmt.Appendf(nil, "%d", i))
	}
	p, _ := (&sink{topic: tp}).Prepare(t.Context(), connectors.Partition{})
	w, _ := p.Open(t.Context(), connectors.Claim{Gate: func() error { return nil }})
	defer w.Close()
	if err := w.(connectors.PlainWriter).Write(t.Context(), b, 0, 400); err != nil {
		t.Fatal(err)
	}
	home, total := map[string]int{}, 0
	for i, l := range tp.logs {
		out := message.NewBatch()
		l.fill(out, 0, 1000, 1<<20)
		for j := range out.Len() {
			k := string(out.Key(j))
			if at, ok := home[k]; ok && at != i {
				t.Fatalf("key %s is on partitions %d and %d", k, at, i)
			}
			home[k] = i
			if n, _ := out.Meta(j, "n"); !strings.HasPrefix(string(out.Payload(j)), `{"n":`+string(n)+`,`) {
				t.Fatalf("metadata %s beside payload %.20s", n, out.Payload(j))
			}
			total++
		}
		l.free(1000)
	}
	if total != 400 {
		t.Fatalf("%d records, want 400", total)
	}
	if _, err := topics.open(t.Name(), 1, 2); err == nil {
		t.Fatal("the other end may change the number of partitions")
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		name   string
		faults int
	}{
		{Config{Topic: "a", Capacity: 1, Partitions: 1}, "a", 0},
		{Config{URL: "memory://a", Capacity: 1, Partitions: 1}, "a", 0},
		{Config{URL: "a", Topic: "a", Capacity: 1, Partitions: 1}, "a", 0},
		{Config{URL: "b", Topic: "a", Capacity: 1, Partitions: 1}, "", 1},
		{Config{URL: "ipc://a", Capacity: 1, Partitions: 1}, "", 1},
		{Config{URL: "ftp://a", Capacity: 0, Partitions: 0}, "", 3},
		{Config{Capacity: 1, Partitions: 1}, "", 1},
	} {
		name, _ := c.config.name()
		if errs := c.config.Validate(route.Input); len(errs) != c.faults || name != c.name {
			t.Errorf("%+v: name %q, faults %v", c.config, name, errs)
		}
	}
}

func TestGateClosedInTheMiddleOfAWriteStopsIt(t *testing.T) {
	tp := mustOpen(t, t.Name(), 2)
	b := message.NewBatch()
	for i := range 4 {
		b.Append(payload(i), 0, 0)
	}
	asked := 0
	gate := func() error {
		asked++
		if asked > 1 {
			return connectors.ErrGateClosed
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := tp.logs[0].append(ctx, b, []int{0, 1, 2, 3}, gate)
	if !errors.Is(err, connectors.ErrGateClosed) || tp.logs[0].next != 2 {
		t.Fatalf("%v with %d records", err, tp.logs[0].next)
	}
}
