package pipeline

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// stepFails makes each kind's irrevocable step fail.
func (w *world) stepFails(err error) {
	f := func() error { return err }
	w.onCommit, w.onWrite, w.onPublish = f, f, f
}

// A batch that a filter emptied has nothing to write, and stands behind one that
// was not written: its position must wait.
func TestAnEmptiedBatchDoesNotMoveThePositionOverUnwrittenOnes(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		gone := connectors.Connection(errors.New("gone"))
		w.stepFails(gone)
		l := w.claim(kind)
		l.keep(func(n int64) bool { return n < 10 })
		if _, err := l.run(t.Context(), reads(0, 40, 10)); !errors.Is(err, gone) {
			t.Fatal(err)
		}
		if n, _ := w.record().Position.Number(); n > 0 {
			t.Errorf("position %d, and nothing is written", n)
		}
		w.stepFails(nil)
		l = w.claim(kind)
		l.keep(func(n int64) bool { return n < 10 })
		c, err := l.run(t.Context(), reads(l.from(), 40, 10))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 40, Written: 10, Filtered: 30})
		w.once(10)
	})
}

// A filter that drops everything must not leave the position where it was until a
// message is kept: a restart would read it all again.
func TestAStretchThatIsFilteredAwayDoesNotHoldThePositionBack(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		l.keep(func(int64) bool { return false })
		s := reads(0, 500, 10)
		s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
			time.Sleep(3 * time.Second) // in the bubble's time; checkpoint_interval is one
			w.at(500)
			return nil, connectors.ErrEndOfInput
		})
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	})
}

// The input comes to its end while the batch before is failing.
func TestTheEndOfTheInputDoesNotMoveThePositionPastAFailedBatch(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		if _, err := w.claim(kind).run(t.Context(), reads(0, 20, 10)); err != nil {
			t.Fatal(err)
		}
		gone := connectors.Connection(errors.New("gone"))
		w.stepFails(gone)
		ended := false
		l := w.claim(kind)
		l.cfg.OnEnd = func(e bool) { ended = ended || e }
		if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); !errors.Is(err, gone) {
			t.Fatal(err)
		}
		if w.at(20); ended {
			t.Error("the input was said to be done")
		}
		w.stepFails(nil)
		l = w.claim(kind)
		if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); err != nil {
			t.Fatal(err)
		}
		w.once(30)
	})
}
