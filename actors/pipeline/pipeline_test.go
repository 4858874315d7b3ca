package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// The run ends while the source is being told of a position: that call is cut
// off, and the position must be told again.
func TestSettlementCutOffByTheEndOfTheRunIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := reads(0, 10, 10)
		s.settle = func(ctx context.Context, _ message.Position) error {
			s.settle = nil
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := w.claim(tx).run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if n := len(s.settled); n == 0 || s.settled[n-1].Compare(pos(10)) != 0 {
			t.Errorf("settled to %v", s.settled)
		}
	})
}

// A settlement that fails while the input is idle is tried again, at its pace.
func TestFailedSettlementIsTriedAgainWithoutNewRecords(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.spec.ExitOnEmpty = false
		drain := make(chan struct{})
		s := reads(0, 10, 10)
		calls := 0
		s.settle = func(context.Context, message.Position) error {
			if calls++; calls < 3 {
				return errors.New("broker away")
			}
			return nil
		}
		l := w.claim(tx)
		l.cfg.Drain = drain
		time.AfterFunc(10*time.Second, func() {
			if calls != 3 {
				t.Errorf("%d calls", calls)
			}
			close(drain)
		})
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	})
}

// A panic must not keep the bytes of what it tore out of a loop's hands: the
// budget is the whole process's, and one route's storm would stop all others.
func TestPanicGivesItsBytesBack(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"reader", "middleware", "writer"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			all(t, func(t *testing.T, w *world, kind string) {
				budget := message.NewBudget(1 << 20)
				explode := func() { panic("boom in the " + where) }
				for range 5 {
					l := w.claim(kind)
					l.cfg.Claim.Budget = budget
					share := budget.Share()
					pool := message.NewPool(share, 200<<10)
					s := &script{}
					s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
						b, err := pool.Get(ctx)
						if err != nil {
							return nil, err
						}
						if where == "reader" {
							explode()
						}
						b.Append([]byte("0"), 0, 1)
						b.From, b.End, b.Positions, b.Read = pos(0), pos(1), positioner{}, 1
						return b, nil
					})
					l.cfg.Middlewares = [][]connectors.Middleware{{each{func(context.Context, *message.Batch) error {
						if where == "middleware" {
							explode()
						}
						return nil
					}}}}
					boom := func() error { explode(); return nil }
					if where == "writer" {
						w.onCommit, w.onWrite, w.onSeal = boom, boom, boom
					}
					_, err := l.run(t.Context(), s)
					share.Close()
					var p *PanicError
					if !errors.As(err, &p) || connectors.Classify(err) != connectors.ClassBug || !strings.Contains(string(p.Stack), "pipeline_test.go") {
						t.Fatalf("%v", err)
					}
				}
				room, err := budget.Acquire(t.Context(), budget.Size())
				if err != nil {
					t.Fatal(err)
				}
				_ = room
			})
		})
	}
}

// A hard stop in the middle of everything: the cause is what Run returns, all
// loops end, and what was read goes back.
func TestHardStopGivesBackWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := w.claim(kind)
		l.cfg.Middlewares = [][]connectors.Middleware{{each{func(ctx context.Context, b *message.Batch) error {
			if b.Msg(0).Ordinal == 30 {
				time.AfterFunc(time.Second, func() { cancel(connectors.ErrGateClosed) })
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}}}
		c, err := l.run(ctx, reads(0, 200, 10))
		if !errors.Is(err, connectors.ErrGateClosed) {
			t.Fatal(err)
		}
		if c.Read < 40 || c.Returned < 10 {
			t.Errorf("%+v", c)
		}
		synctest.Wait()
	})
}

// A middleware's failure leaves what it had handed on before to be committed.
func TestFailedMiddlewareStandsBehindTheBatchesBefore(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		gone := connectors.Connection(errors.New("gone"))
		l.cfg.Middlewares = [][]connectors.Middleware{{each{func(_ context.Context, b *message.Batch) error {
			b.Keep(func(i int) bool { return b.Msg(i).Ordinal%2 == 0 })
			if b.From.Compare(pos(20)) == 0 {
				return gone
			}
			return nil
		}}}}
		c, err := l.run(t.Context(), reads(0, 40, 10))
		if !errors.Is(err, gone) {
			t.Fatal(err)
		}
		w.at(20)
		if c.Written != 10 {
			t.Errorf("%+v", c)
		}
	})
}

func TestNothingToReadChangesNothing(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		c, err := l.run(t.Context(), &script{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{})
		if len(w.content()) != 0 {
			t.Errorf("%v", w.content())
		}
	})
}

// A panic that is the answer to a cancellation comes behind the other loops'
// errors; it is told all the same, and what it held is counted as returned.
func TestPanicOnTheWayOutIsToldAndCounted(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		ctx, cancel := context.WithCancel(t.Context())
		l := w.claim(kind)
		l.cfg.Middlewares = [][]connectors.Middleware{{each{func(ctx context.Context, b *message.Batch) error {
			if b.Msg(0).Ordinal == 30 {
				time.AfterFunc(time.Second, cancel)
				<-ctx.Done()
				time.Sleep(time.Second) // until the others have gone
				panic("on the way out")
			}
			return nil
		}}}}
		_, err := l.run(ctx, reads(0, 200, 10))
		var p *PanicError
		if !errors.As(err, &p) {
			t.Errorf("%v", err)
		}
	})
}

// An owner that died between its commit and the settlement left the source behind
// what is durable. Its successor tells it, also when no record comes any more.
func TestSuccessorTellsTheSourceWhatIsDurableAlready(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first := reads(0, 10, 10)
		first.settle = func(context.Context, message.Position) error { return errors.New("broker away") }
		if _, err := w.claim(tx).run(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		second := &script{}
		if _, err := w.claim(tx).run(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		if len(first.settled) != 0 || len(second.settled) != 1 || second.settled[0].Compare(pos(10)) != 0 {
			t.Errorf("settled to %v by the first and to %v by the second run", first.settled, second.settled)
		}
	})
}
