package pipeline

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/message"
)

type pacedWriter struct {
	appendWriter
	every time.Duration
}

func (x pacedWriter) CommitEvery() time.Duration { return x.every }

// A sink that waits for a disk at each commit (fsync: periodic) has them as far apart
// as it asks for, and never closer than the route does.
func TestAPacedWriterIsCommittedNoMoreOftenThanItAsks(t *testing.T) {
	t.Parallel()
	commits := func(interval, every time.Duration) (n uint64) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.spec.CheckpointInterval = interval
			l := w.claim(state)
			l.cfg.Writer = pacedWriter{l.cfg.Writer.(appendWriter), every}
			s := reads(0, 10, 10)
			for i := int64(1); i < 60; i++ {
				s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
					time.Sleep(100 * time.Millisecond) // of the bubble's clock
					return batch(10*i, 10*i+10), nil
				})
			}
			before := w.record().Version
			if _, err := l.run(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			w.once(600)
			n = w.record().Version - before
		})
		return n
	}
	// Six seconds, the state before the first write and the end of the input.
	for _, x := range []struct {
		interval, every time.Duration
		least, most     uint64
	}{
		{100 * time.Millisecond, 0, 25, 70}, {100 * time.Millisecond, 2 * time.Second, 4, 6}, {3 * time.Second, time.Millisecond, 3, 5},
	} {
		if n := commits(x.interval, x.every); n < x.least || n > x.most {
			t.Errorf("checkpoint_interval %v, asked for %v: %d commits, want %d to %d", x.interval, x.every, n, x.least, x.most)
		}
	}
}

// movedWriter is the sink of a route whose output was changed: its state is another
// kind of state than the one that the record holds.
type movedWriter struct {
	appendWriter
	recorded func() []byte
}

func (x movedWriter) State(ctx context.Context) ([]byte, error) {
	state, err := x.appendWriter.State(ctx)
	return append([]byte("moved "), state...), err
}

func (x movedWriter) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if got := string(x.recorded()); !strings.HasPrefix(got, "moved ") {
		return fmt.Errorf("written while the record holds the state %q", got)
	}
	return x.appendWriter.Write(ctx, b, i, j)
}

func TestTheStateOfANewOutputIsCommittedBeforeItIsWrittenTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.claim(state).run(t.Context(), reads(0, 10, 10)); err != nil {
			t.Fatal(err)
		}
		l := w.claim(state)
		l.cfg.Writer = movedWriter{l.cfg.Writer.(appendWriter), func() []byte { return w.record().SinkState }}
		if _, err := l.run(t.Context(), reads(10, 20, 10)); err != nil {
			t.Fatal(err)
		}
		w.once(20)
	})
}

// A state that the record holds already is not committed again.
func TestAKnownStateCostsNoCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.claim(state).run(t.Context(), reads(0, 10, 10)); err != nil {
			t.Fatal(err)
		}
		l := w.claim(state)
		before := w.record().Version
		if _, err := l.run(t.Context(), reads(10, 20, 10)); err != nil {
			t.Fatal(err)
		}
		if n := w.record().Version - before; n != 1 {
			t.Errorf("%d commits, want one", n)
		}
	})
}
