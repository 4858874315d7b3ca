package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Each kind of writer is measured, failures and refused rows as well (a peer's
// metrics count successes only); and nothing is while nobody asks.
func TestCallsAreMeasuredWithTheirFailures(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.OnError = route.OnErrorDrop
		if kind != part { // a part takes any bytes
			w.refuse = map[string]bool{"7": true}
		}
		l := w.claim(kind)
		l.cfg.Sending.MeasureInput, l.cfg.Sending.MeasureOutput = true, true
		s := reads(0, 10, 5)
		s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
			time.Sleep(2 * time.Second)
			return batch(10, 20), nil
		})
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		in, out := l.stats.Input.Counts(), l.stats.Output.Counts()
		if in.Messages != 20 || in.Calls != 3 || in.Failed != 0 || in.Errors != 0 || in.Took < 2*time.Second || in.Within[1] != 2 || in.Within[5] != 3 {
			t.Errorf("input %+v", in)
		}
		if out.Messages+out.Failed != 20 || out.Failed != int64(len(w.refuse)) || out.Errors != 0 || out.Calls == 0 {
			t.Errorf("output %+v", out)
		}

		l = w.claim(kind)
		if _, err := l.run(t.Context(), reads(20, 30, 5)); err != nil {
			t.Fatal(err)
		}
		if l.stats.Input.Counts() != nil || l.stats.Output.Counts() != nil {
			t.Error("measured without being asked")
		}
	})
	for _, kind := range kinds {
		t.Run("failed "+kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				lost := connectors.Connection(errors.New("lost"))
				fail := func() error { return lost }
				w.onWrite, w.onCommit, w.onPublish = fail, fail, fail
				l := w.claim(kind)
				l.cfg.Sending.MeasureOutput = true
				if _, err := l.run(t.Context(), reads(0, 10, 10)); !errors.Is(err, lost) {
					t.Fatal(err)
				}
				out := l.stats.Output.Counts()
				if out.Errors != 1 || out.Failed == 0 || out.Messages != 0 {
					t.Errorf("%+v", out)
				}
			})
		})
	}
}
