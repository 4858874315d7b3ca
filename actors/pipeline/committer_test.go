package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

var kinds = []string{tx, part, plain, state}

// all runs f for the committers, in a bubble of its own.
func all(t *testing.T, f func(t *testing.T, w *world, kind string)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, newWorld(t), kind) })
		})
	}
}

func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

// bubbleOf is bubble for a test that has several.
func bubbleOf(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

func want(t *testing.T, got, want lease.Counters) {
	t.Helper()
	if got != want {
		t.Errorf("counters %+v\nwant     %+v", got, want)
	}
}

func TestEverythingReadIsWrittenOnceAndTheSourceSettled(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		s := reads(0, 50, 7)
		c, err := w.claim(kind).run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 50, Written: 50})
		w.once(50)
		w.at(50)
		if last := s.settled[len(s.settled)-1]; last.Compare(pos(50)) != 0 {
			t.Errorf("settled to %s", last.Sort)
		}
	})
}

// What a middleware takes out moves the position, also where nothing is left.
func TestFilteredRecordsAreCoveredByThePosition(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		l.keep(func(n int64) bool { return n < 20 && n%2 == 0 })
		c, err := l.run(t.Context(), reads(0, 50, 7))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 50, Written: 10, Filtered: 40})
		w.at(50)
	})
}

func TestBadRowsAreDroppedAndCounted(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.OnError = route.OnErrorDrop
		w.refuse = map[string]bool{"0": true, "9": true, "10": true, "29": true}
		c, err := w.claim(kind).run(t.Context(), reads(0, 30, 10))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 30, Written: 26, Dropped: 4})
		w.once(30, 0, 9, 10, 29)
		w.at(30)
	})
}

// Everything in front of a bad row is durable, nothing behind it, and the next
// run meets the same row.
func TestStopsRightBeforeABadRow(t *testing.T) {
	t.Parallel()
	for _, bad := range []int64{0, 9, 10, 13, 29} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			t.Parallel()
			all(t, func(t *testing.T, w *world, kind string) {
				w.refuse = map[string]bool{fmt.Sprint(bad): true, "29": true}
				for range 2 {
					l := w.claim(kind)
					_, err := l.run(t.Context(), reads(l.from(), 30, 10))
					if connectors.Classify(err) != connectors.ClassData {
						t.Fatalf("%v", err)
					}
					w.at(bad)
				}
				if kind != plain { // a T3 sink wrote what stands behind it, and will again
					w.once(bad)
				}
				w.refuse = nil
				l := w.claim(kind)
				if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); err != nil {
					t.Fatal(err)
				}
				w.at(30)
				if kind != plain {
					w.once(30)
				}
			})
		})
	}
}

// A T3 sink that refuses one record has written those behind it; the runs that
// come back to it, once a minute for as long as nobody mends it, must not write
// them again each time.
func TestRunsThatComeBackToABadRowRepeatNothingBehindIt(t *testing.T) {
	for _, rule := range []route.OnError{route.OnErrorStop, route.OnErrorDrop} {
		t.Run(string(rule), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.refuse = map[string]bool{"13": true}
				for range 4 {
					l := w.claim(plain)
					if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); connectors.Classify(err) != connectors.ClassData {
						t.Fatal(err)
					}
				}
				n := 0
				for _, r := range w.rows {
					if r == "14" {
						n++
					}
				}
				if n != 1 {
					t.Errorf("record 14 was written %d times", n)
				}
				if w.spec.OnError = rule; rule == route.OnErrorStop {
					w.refuse = nil
				}
				l := w.claim(plain)
				c, err := l.run(t.Context(), reads(l.from(), 30, 10))
				if err != nil {
					t.Fatal(err)
				}
				if c.Read != 17 || c.Written+c.Dropped != 17 {
					t.Errorf("%+v", c)
				}
				w.at(30)
			})
		})
	}
}

// The same for rows that the transaction cannot even encode.
func TestUnencodableRowCutsTheTransactionBeforeIt(t *testing.T) {
	for _, rule := range []route.OnError{route.OnErrorStop, route.OnErrorDrop} {
		t.Run(string(rule), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.spec.OnError = rule
				l := w.claim(tx)
				l.cfg.Middlewares = [][]connectors.Middleware{{each{func(_ context.Context, b *message.Batch) error {
					for i := range b.Len() {
						if n := b.Msg(i).Ordinal; n == 13 || n == 15 {
							b.SetPayload(i, fmt.Appendf(nil, "unencodable %d", n))
						}
					}
					return nil
				}}}}
				c, err := l.run(t.Context(), reads(0, 30, 10))
				if rule == route.OnErrorDrop {
					if err != nil {
						t.Fatal(err)
					}
					want(t, c, lease.Counters{Read: 30, Written: 28, Dropped: 2})
					w.once(30, 13, 15)
					w.at(30)
					return
				}
				if connectors.Classify(err) != connectors.ClassData {
					t.Fatal(err)
				}
				w.once(13)
				w.at(13)
				if c.Written != 13 || c.Dropped != 0 {
					t.Errorf("%+v", c)
				}
			})
		})
	}
}

// A read error stands behind the records before it: they are committed first.
func TestReadErrorComesBehindWhatWasReadBeforeIt(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		s := reads(0, 20, 10)
		s.steps = append(s.steps, fails(connectors.ErrGap))
		c, err := w.claim(kind).run(t.Context(), s)
		if !errors.Is(err, connectors.ErrGap) {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 20, Written: 20})
		w.at(20)
	})
}

func TestDrainCommitsWhatWasReadAndReturnsAtOnce(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.ExitOnEmpty = false
		drain := make(chan struct{})
		s := reads(0, 20, 10)
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			time.AfterFunc(time.Millisecond, func() { close(drain) })
			<-ctx.Done()
			return nil, ctx.Err()
		})
		l := w.claim(kind)
		l.cfg.Drain = drain
		began := time.Now()
		c, err := l.run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("a drain took %v", d)
		}
		want(t, c, lease.Counters{Read: 20, Written: 20})
		w.at(20)
		if last := s.settled[len(s.settled)-1]; last.Compare(pos(20)) != 0 {
			t.Errorf("settled to %s", last.Sort)
		}
	})
}

// A reader that ignores its context between batches must not go on for ever.
func TestDrainEndsAReaderThatAlwaysHasMore(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		drain := make(chan struct{})
		s := &script{}
		for n := int64(0); n < 10_000; n += 10 {
			s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
				if n == 50 {
					close(drain)
					synctest.Wait()
				}
				return batch(n, n+10), nil
			})
		}
		l := w.claim(kind)
		l.cfg.Drain = drain
		c, err := l.run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if c.Read > 100 {
			t.Errorf("read %d records after the drain began", c.Read-60)
		}
	})
}

// The input ends, is reported, grows and ends again.
func TestEndThenGrowth(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.ExitOnEmpty = false
		drain := make(chan struct{})
		s := reads(0, 10, 10)
		s.steps = append(s.steps, waits(0), waits(time.Minute), gives(batch(10, 15)), waits(0))
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			close(drain)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		l := w.claim(kind)
		l.cfg.Drain = drain
		var told []bool
		l.cfg.OnEnd = func(ended bool) {
			told = append(told, ended)
			if n, _ := w.record().Position.Number(); ended && n != 10 && n != 15 {
				t.Errorf("told of the end at position %d", n)
			}
		}
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.once(15)
		if !slices.Equal(told, []bool{true, false, true}) {
			t.Errorf("told %v", told)
		}
	})
}

// The end is reported when all of it is durable, which takes time; growth that was
// read in between makes the report untrue.
func TestEndReportedLateDoesNotHideGrowth(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.spec.ExitOnEmpty = false
		slow := true
		w.onPublish = func() error {
			if slow {
				time.Sleep(5 * time.Second)
			}
			slow = false
			return nil
		}
		drain := make(chan struct{})
		s := reads(0, 10, 10)
		s.steps = append(s.steps, waits(0), gives(batch(10, 20)))
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		l := w.claim(part)
		l.cfg.Drain = drain
		ended := false
		l.cfg.OnEnd = func(e bool) { ended = e }
		time.AfterFunc(6*time.Second, func() {
			if ended {
				t.Error("shown as ended while more is being read")
			}
			close(drain)
		})
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.once(20)
	})
}

func TestClosedGateWritesNothingMore(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.spec.CheckpointInterval, w.spec.Roll.Age = time.Hour, time.Hour
		var before []string
		var version uint64
		l := w.claim(kind)
		s := reads(0, 10, 10)
		s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
			time.Sleep(time.Second)
			before, version = w.content(), w.record().Version
			w.gate = func() error { return connectors.ErrGateClosed }
			return batch(10, 20), nil
		})
		c, err := l.run(t.Context(), s)
		if !errors.Is(err, connectors.ErrGateClosed) {
			t.Fatal(err)
		}
		if got := w.content(); !slices.Equal(got, before) {
			t.Errorf("written behind the gate: %v", got[len(before):])
		}
		if got := w.record().Version; got != version {
			t.Errorf("the record went from version %d to %d behind the gate", version, got)
		}
		if c.Returned == 0 {
			t.Errorf("%+v", c)
		}
	})
}

// A successor's claim fences the run in the middle of it (invariant 1).
func TestFencedRunWritesNothingThatCounts(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		s := reads(0, 10, 10)
		var next *life
		s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
			time.Sleep(20 * time.Second)
			next = w.claim(kind)
			return batch(10, 20), nil
		})
		if _, err := l.run(t.Context(), s); !errors.Is(err, checkpoint.ErrFenced) {
			t.Fatal(err)
		}
		w.at(10)
		if _, err := next.run(t.Context(), reads(next.from(), 30, 10)); err != nil {
			t.Fatal(err)
		}
		// A T3 sink has the zombie's last write; a file that is appended to would not
		// have been opened while the zombie holds its lock.
		if kind != plain && kind != state {
			w.once(30)
		}
	})
}

// A lost reply of a commit is no failure; a refused one ends the run, and the
// next one repeats nothing at T1 and T2.
func TestCommitsThatFailAreRepeatedByTheNextRun(t *testing.T) {
	t.Parallel()
	for fault, name := range map[memory.Fault]string{memory.FaultRefuse: "refused", memory.FaultLoseReply: "reply lost", memory.FaultConflict: "false conflict"} {
		for n := 1; n <= 12; n++ {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				all(t, func(t *testing.T, w *world, kind string) {
					w.spec.Roll.Records = 8
					seen := 0
					l := w.claim(kind)
					w.store.Fail(func(call memory.Call, _ string) memory.Fault {
						if call == memory.CallSwap {
							if seen++; seen == n {
								return fault
							}
						}
						return memory.FaultNone
					})
					for try := 0; ; try++ {
						_, err := l.run(t.Context(), reads(l.from(), 50, 10))
						if err == nil {
							break
						}
						if try == 2 || !errors.Is(err, memory.ErrLost) && !errors.Is(err, checkpoint.ErrConflict) {
							t.Fatal(err)
						}
						w.store.Fail(nil)
						l = w.claim(kind)
					}
					w.at(50)
					if kind != plain {
						w.once(50)
					}
				})
			})
		}
	}
}

// Growing transactions are bounded in rows.
func TestTransactionEndsAtItsBound(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var sizes []int
		before := 0
		w.onCommit = func() error {
			sizes = append(sizes, len(w.rows)-before)
			before = len(w.rows)
			return nil
		}
		l := w.claim(tx)
		if _, err := l.run(t.Context(), reads(0, 3*txnRows, 1000)); err != nil {
			t.Fatal(err)
		}
		for _, n := range sizes {
			if n > txnRows+1000 {
				t.Errorf("transactions of %v rows", sizes)
			}
		}
		w.once(3 * txnRows)
	})
}

// A bad row far behind in a transaction of many batches is cut with the position
// of its own batch.
func TestTransactionIsCutAtAPositionOfTheRowsOwnBatch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.refuse = map[string]bool{"5": true}
		first, second := batch(0, 10), batch(10, 20)
		second.Positions = otherPositions{}
		s := &script{}
		s.steps = append(s.steps, gives(first), gives(second))
		if _, err := w.claim(tx).run(t.Context(), s); connectors.Classify(err) != connectors.ClassData {
			t.Fatal(err)
		}
		w.once(5)
		if p := w.record().Position; string(p.Token) != "t5" {
			t.Errorf("position %q", p.Token)
		}
	})
}

type otherPositions struct{}

func (otherPositions) After(m *message.Message) message.Position {
	p := pos(m.Next)
	p.Token = append([]byte("other "), p.Token...)
	return p
}
