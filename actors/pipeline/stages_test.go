package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// workers gives a life n workers, each with a chain that calls f.
func (l *life) workers(n int, f func(ctx context.Context, b *message.Batch) error) {
	l.cfg.Middlewares = nil
	for range n {
		l.cfg.Middlewares = append(l.cfg.Middlewares, []connectors.Middleware{each{f}})
	}
}

// Later batches are ready first, and wait for their turn.
func TestWorkersThatOvertakeEachOtherKeepTheOrder(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		var busy, most atomic.Int32
		l.workers(4, func(ctx context.Context, b *message.Batch) error {
			most.Store(max(most.Load(), busy.Add(1)))
			time.Sleep(time.Duration(10-b.Msg(0).Ordinal/10%10) * time.Second) // in the bubble's time
			busy.Add(-1)
			return nil
		})
		c, err := l.run(t.Context(), reads(0, 200, 10))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 200, Written: 200})
		w.once(200)
		w.at(200)
		if most.Load() < 3 {
			t.Errorf("at most %d workers at the same time", most.Load())
		}
	})
}

func TestARouteWhoseWorkersAllFailEndsAndDoesNotHang(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		gone := connectors.Connection(errors.New("gone"))
		l.workers(4, func(context.Context, *message.Batch) error { return gone })
		c, err := l.run(t.Context(), reads(0, 500, 10))
		if !errors.Is(err, gone) {
			t.Fatal(err)
		}
		if c.Written != 0 || c.Read != c.Returned {
			t.Errorf("%+v", c)
		}
	})
}

// What was finished in front of the failed batch is committed, what was finished
// behind it is not.
func TestABatchThatFailsInOneWorkerHoldsBackWhatOthersFinishedBehindIt(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		gone := connectors.Connection(errors.New("gone"))
		l.workers(4, func(_ context.Context, b *message.Batch) error {
			if b.Msg(0).Ordinal == 50 {
				time.Sleep(time.Minute)
				return gone
			}
			return nil
		})
		if _, err := l.run(t.Context(), reads(0, 200, 10)); !errors.Is(err, gone) {
			t.Fatal(err)
		}
		w.at(50)
		w.once(50)
	})
}

func TestAPanicOfOneWorkerEndsTheRun(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		l.workers(3, func(_ context.Context, b *message.Batch) error {
			if b.Msg(0).Ordinal == 50 {
				panic("boom")
			}
			return nil
		})
		_, err := l.run(t.Context(), reads(0, 200, 10))
		var p *PanicError
		if !errors.As(err, &p) || !strings.Contains(string(p.Stack), "stages_test.go") {
			t.Fatal(err)
		}
	})
}

// A drain does not wait for batches that a slow stage holds, with any number of
// workers.
func TestADrainTakesNoLongerThanTheStagesWish(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				l := w.claim(tx)
				drain := make(chan struct{})
				l.cfg.Drain = drain
				w.spec.ExitOnEmpty = false
				l.workers(n, func(ctx context.Context, b *message.Batch) error {
					if b.Msg(0).Ordinal < 30 {
						return nil
					}
					select {
					case <-time.After(time.Hour):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				time.AfterFunc(time.Second, func() { close(drain) })
				began := time.Now()
				if _, err := l.run(t.Context(), reads(0, 300, 10)); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the drain took %v", took)
				}
				w.at(30)
				w.once(30)
			})
		})
	}
}

// A writer that stands still must not let the workers read on for ever.
func TestAStalledCommitStopsTheReaderWithManyWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const workers = 4
		l := w.claim(plain)
		l.workers(workers, func(context.Context, *message.Batch) error { return nil })
		var read atomic.Int64
		s := reads(0, 2000, 10)
		for i, step := range s.steps {
			s.steps[i] = func(ctx context.Context) (*message.Batch, error) { read.Add(1); return step(ctx) }
		}
		var once sync.Once
		w.onWrite = func() error {
			once.Do(func() {
				time.Sleep(time.Minute)
				if n := read.Load(); n > 2*workers+6 {
					t.Errorf("%d batches were read while the first write stood still", n)
				}
			})
			return nil
		}
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.once(2000)
	})
}

func TestRowsRefusedBySeveralWorkersStopAtTheFirstInOrder(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.OnError = route.OnErrorStop
		l := w.claim(kind)
		l.workers(4, func(_ context.Context, b *message.Batch) error {
			if b.Msg(0).Ordinal == 20 {
				time.Sleep(time.Minute)
			}
			return &connectors.RowsError{Rows: []connectors.RowError{{Index: 5, Err: errors.New("bad")}}}
		})
		_, err := l.run(t.Context(), reads(20, 80, 10))
		if connectors.Classify(err) != connectors.ClassData {
			t.Fatal(err)
		}
		w.at(25)
	})
}
