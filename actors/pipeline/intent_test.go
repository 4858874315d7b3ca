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
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

var errCrash = errors.New("crash")

func TestPartBoundaries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		roll  route.Roll
		batch int64
		gaps  []int64
		want  []string
	}{
		"records, inside batches":   {route.Roll{Records: 8, Bytes: 1 << 20}, 10, nil, []string{"part-000-007", "part-008-015", "part-016-023", "part-024-029"}},
		"records, at a batch's end": {route.Roll{Records: 10, Bytes: 1 << 20}, 10, nil, []string{"part-000-009", "part-010-019", "part-020-029"}},
		"records, larger than all":  {route.Roll{Records: 100, Bytes: 1 << 20}, 7, nil, []string{"part-000-029"}},
		"one record a part":         {route.Roll{Records: 1, Bytes: 1 << 20}, 30, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28}, []string{"part-000-000", "part-001-029"}},
		"bytes":                     {route.Roll{Records: 100, Bytes: 20}, 10, nil, []string{"part-000-010", "part-011-017", "part-018-024", "part-025-029"}},
		"gaps belong to a part":     {route.Roll{Records: 8, Bytes: 1 << 20}, 10, []int64{7, 8, 9, 29}, []string{"part-000-010", "part-011-018", "part-019-026", "part-027-029"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.spec.Roll = c.roll
				w.spec.Roll.Age = time.Hour
				if _, err := w.claim(part).run(t.Context(), reads(0, 30, c.batch, c.gaps...)); err != nil {
					t.Fatal(err)
				}
				if got := w.names(); !slices.Equal(got, c.want) {
					t.Errorf("parts %v\nwant  %v", got, c.want)
				}
				w.once(30, c.gaps...)
				w.at(30)
			})
		})
	}
}

func TestAgeEndsAPart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := &script{}
		for n := range int64(3) {
			s.steps = append(s.steps, func(context.Context) (*message.Batch, error) {
				time.Sleep(6 * time.Second)
				return batch(n*10, n*10+10), nil
			})
		}
		if _, err := w.claim(part).run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := w.names(); !slices.Equal(got, []string{"part-000-019", "part-020-029"}) {
			t.Errorf("parts %v", got)
		}
	})
}

// Crashes at each step of the part protocol, several in a row: nothing is lost,
// nothing doubled, whatever the next owner's roll says.
func TestCrashAtAnyStepOfThePartProtocol(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 7; n++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(n, after), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
					w.spec.Roll.Records = 8
					for try := range 5 {
						seen := 0
						w.onPublish = func() error {
							if seen++; seen == n && try < 4 {
								return errCrash
							}
							return nil
						}
						if after { // the part is there, the position was not committed
							w.onPublish = nil
							ctx, cancel := context.WithCancel(t.Context())
							defer cancel()
							l := w.claim(part)
							w.spec.Roll.Records += 3
							w.gate = func() error {
								if seen++; seen == n && try < 4 {
									return errCrash
								}
								return nil
							}
							_, _ = l.run(ctx, reads(l.from(), 50, 10))
							w.gate = func() error { return nil }
							continue
						}
						l := w.claim(part)
						w.spec.Roll.Records += 3
						_, _ = l.run(t.Context(), reads(l.from(), 50, 10))
					}
					w.once(50)
					w.at(50)
					if in := w.record().Intents; len(in) != 0 {
						t.Errorf("intents %v", in)
					}
				})
			})
		}
	}
}

// promise leaves the record as a crash right behind step 1 does: [0, 10) stand,
// the part [10, 20) is promised with what keep lets through.
func promise(t *testing.T, w *world, keep func(int64) bool) checkpoint.Intent {
	t.Helper()
	w.spec.Roll.Records = 10
	n := 0
	w.onPublish = func() error {
		if n++; n == 2 {
			return errCrash
		}
		return nil
	}
	l := w.claim(part)
	s := reads(0, 10, 10)
	s.steps = append(s.steps, gives(batch(10, 20)))
	l.keep(keep)
	if _, err := l.run(t.Context(), s); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	w.onPublish = nil
	w.spec.Roll.Records = 1_000_000
	in := w.record().Intents
	if len(in) != 1 || in[0].Name != "part-010-019" || in[0].Generation != 1 {
		t.Fatalf("intents %+v", in)
	}
	return in[0]
}

func everything(int64) bool { return true }

func TestInheritedIntentIsFinishedAsItStands(t *testing.T) {
	for _, size := range []int64{3, 10, 40} {
		t.Run(fmt.Sprint("batches of ", size), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				promise(t, w, everything)
				l := w.claim(part)
				c, err := l.run(t.Context(), reads(l.from(), 40, size))
				if err != nil {
					t.Fatal(err)
				}
				want(t, c, lease.Counters{Read: 30, Written: 30})
				if got := w.names(); !slices.Equal(got, []string{"part-000-009", "part-010-019", "part-020-039"}) {
					t.Errorf("parts %v", got)
				}
				w.once(40)
				w.at(40)
			})
		})
	}
}

// The part of the intent is there already: only the position moves.
func TestInheritedIntentWhosePartIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		in := promise(t, w, everything)
		for n := in.First; n <= in.Last; n++ {
			w.parts[in.Name] = append(w.parts[in.Name], fmt.Sprint(n))
		}
		l := w.claim(part)
		if l.from() != 20 {
			t.Fatalf("goes on at %d", l.from())
		}
		if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); err != nil {
			t.Fatal(err)
		}
		w.once(30)
	})
}

// The range ends in records that are filtered: no message says that it is over.
func TestInheritedIntentWithAFilteredTail(t *testing.T) {
	for _, size := range []int64{4, 10, 30} {
		t.Run(fmt.Sprint("batches of ", size), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				keep := func(n int64) bool { return n < 15 || n >= 25 }
				in := promise(t, w, keep)
				if in.Records != 5 {
					t.Fatalf("%+v", in)
				}
				l := w.claim(part)
				l.keep(keep)
				if _, err := l.run(t.Context(), reads(l.from(), 30, size)); err != nil {
					t.Fatal(err)
				}
				w.once(30, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24)
				w.at(30)
			})
		})
	}
}

func TestInheritedIntentOverAChangedSourceIsAGap(t *testing.T) {
	for name, read := range map[string]func() *script{
		"a record less": func() *script { return reads(10, 30, 10, 12) },
		"a record differs": func() *script {
			s := reads(10, 10, 10)
			b := batch(10, 30)
			b.SetPayload(3, []byte("x"))
			s.steps = append(s.steps, gives(b))
			return s
		},
		"ends inside": func() *script { return reads(10, 15, 10) },
		"is gone":     func() *script { return reads(40, 60, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				promise(t, w, everything)
				c, err := w.claim(part).run(t.Context(), read())
				if connectors.Classify(err) != connectors.ClassGap {
					t.Fatalf("%v", err)
				}
				if c.Written != 0 {
					t.Errorf("%+v", c)
				}
				w.once(10)
				w.at(10)
				if in := w.record().Intents; len(in) != 1 {
					t.Errorf("the promise is gone: %v", in)
				}
			})
		})
	}
}

func TestDrainInsideAPromisedRangeKeepsThePromise(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		promise(t, w, everything)
		drain := make(chan struct{})
		s := reads(10, 15, 10)
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			synctest.Wait()
			close(drain)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		l := w.claim(part)
		l.cfg.Drain = drain
		c, err := l.run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 5, Returned: 5})
		w.at(10)
		l = w.claim(part)
		if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); err != nil {
			t.Fatal(err)
		}
		w.once(30)
	})
}

// A run that only keeps the promise of an older generation must not move the
// position behind it: what that generation filtered there, the new one may keep.
func TestOlderGenerationMovesNothingBehindItsPromise(t *testing.T) {
	for name, size := range map[string]int64{"batch ends with the part": 10, "batch goes on": 20} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				keep := func(n int64) bool { return n < 15 }
				promise(t, w, keep)
				l := w.claim(part)
				l.keep(keep)
				l.cfg.FinishOnly = true
				if _, err := l.run(t.Context(), reads(l.from(), 50, size)); err != nil {
					t.Fatal(err)
				}
				w.at(20)
				l = w.claim(part) // the new generation keeps everything
				if _, err := l.run(t.Context(), reads(l.from(), 50, 10)); err != nil {
					t.Fatal(err)
				}
				w.once(50, 15, 16, 17, 18, 19)
			})
		})
	}
}

// The first part of a partition is promised before any position is durable. A
// source that chooses where to begin (Kafka: latest, or the group's offset) must
// not choose again.
func TestFirstPromisePinsWhereThePartitionBegan(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.onPublish = func() error { return errCrash }
		if _, err := w.claim(part).run(t.Context(), reads(100, 110, 10)); !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		w.onPublish = nil
		l := w.claim(part)
		if !l.cfg.Claim.Resumed || l.from() != 100 {
			t.Fatalf("the next run would choose a start anew: position %q", l.cfg.Claim.Record.Position.Sort)
		}
		if _, err := l.run(t.Context(), reads(l.from(), 120, 10)); err != nil {
			t.Fatal(err)
		}
		w.at(120)
		if got := w.names(); !slices.Equal(got, []string{"part-100-109", "part-110-119"}) {
			t.Errorf("parts %v", got)
		}
	})
}

func TestRangesOfAnotherLineageAreCoveredNotWritten(t *testing.T) {
	r := func(first, last int64) connectors.Range { return connectors.Range{First: first, Last: last} }
	for name, c := range map[string]struct {
		covered []connectors.Range
		size    int64
		without []int64
		parts   []string
	}{
		"from the start":      {[]connectors.Range{r(0, 9)}, 7, seq(0, 9), []string{"part-010-029"}},
		"in the middle":       {[]connectors.Range{r(10, 19)}, 7, seq(10, 19), []string{"part-000-009", "part-020-029"}},
		"at batch boundaries": {[]connectors.Range{r(10, 19)}, 10, seq(10, 19), []string{"part-000-009", "part-020-029"}},
		"to the end":          {[]connectors.Range{r(25, 40)}, 10, seq(25, 29), []string{"part-000-024"}},
		"everything":          {[]connectors.Range{r(0, 40)}, 10, seq(0, 29), nil},
		"two, one record each": {[]connectors.Range{r(3, 3), r(5, 5)}, 30, []int64{3, 5},
			[]string{"part-000-002", "part-004-004", "part-006-029"}},
		"side by side": {[]connectors.Range{r(3, 9), r(10, 12)}, 4, seq(3, 12), []string{"part-000-002", "part-013-029"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.covered = c.covered
				got, err := w.claim(part).run(t.Context(), reads(0, 30, c.size))
				if err != nil {
					t.Fatal(err)
				}
				n := int64(len(c.without))
				want(t, got, lease.Counters{Read: 30, Written: 30 - n, Covered: n})
				if names := w.names(); !slices.Equal(names, c.parts) {
					t.Errorf("parts %v\nwant  %v", names, c.parts)
				}
				w.once(30, c.without...)
				w.at(30)
			})
		})
	}
}

func seq(from, to int64) (out []int64) {
	for ; from <= to; from++ {
		out = append(out, from)
	}
	return out
}
