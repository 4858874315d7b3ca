package pipeline

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// moody is a T3 sink that says what it does with each message.
type moody struct {
	plainWriter
	say func(ctx context.Context, payload string) error // of a row
	all func(ctx context.Context) error                 // of a call
	n   int                                             // calls
}

func (x *moody) Write(ctx context.Context, b *message.Batch, i, j int) error {
	x.n++
	if x.all != nil {
		if err := x.all(ctx); err != nil {
			return err
		}
	}
	var bad connectors.RowsError
	for ; i < j; i++ {
		p := string(b.Payload(i))
		if err := x.say(ctx, p); err != nil {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: err})
			continue
		}
		x.w.mu.Lock()
		x.w.rows = append(x.w.rows, p)
		x.w.mu.Unlock()
	}
	if bad.Rows != nil {
		return &bad
	}
	return nil
}

var (
	busy = &connectors.Error{Class: connectors.ClassRetryable, Err: errors.New("busy")}
	away = connectors.Connection(errors.New("away"))
)

func (l *life) retry(attempts int) {
	l.cfg.Sending.Retry = &connectors.Retry{Attempts: attempts, Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2}
}

func sorted(rows []string) []string {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return rows
}

// A later attempt must not write again what an earlier one wrote.
func TestARetryRepeatsNothingThatWasWritten(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		tries := map[string]int{}
		x := &moody{plainWriter: plainWriter{w}, say: func(_ context.Context, p string) error {
			if tries[p]++; (p == "3" || p == "4" || p == "17") && tries[p] < 3 {
				return busy
			}
			return nil
		}}
		l.cfg.Writer = x
		l.retry(3)
		c, err := l.run(t.Context(), reads(0, 20, 20))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 20, Written: 20})
		w.rows = sorted(w.rows)
		w.once(20)
	})
}

// Without a retry it is the run that is tried again; nobody is blamed.
func TestARetryableFailureIsNoBadRecord(t *testing.T) {
	t.Parallel()
	for _, withLetters := range []bool{false, true} {
		bubbleOf(t, func(t *testing.T, w *world) {
			l := w.claim(plain)
			b := &box{}
			if withLetters {
				l.dlq(b)
			}
			l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(_ context.Context, p string) error {
				if p == "3" {
					return busy
				}
				return nil
			}}
			if _, err := l.run(t.Context(), reads(0, 20, 20)); connectors.Classify(err) != connectors.ClassRetryable {
				t.Fatal(err)
			}
			if len(b.letters) > 0 {
				t.Errorf("dead letters %v", b.letters)
			}
			w.at(0)
		})
	}
}

func TestAMessageWithAConnectionErrorDoesNotLandInTheDLQ(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		b := &box{}
		l.dlq(b)
		l.retry(2)
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(_ context.Context, p string) error {
			switch p {
			case "3":
				return errors.New("bad")
			case "5":
				return busy
			case "7":
				return away
			}
			return nil
		}}
		if _, err := l.run(t.Context(), reads(0, 20, 20)); connectors.Classify(err) != connectors.ClassConnection {
			t.Fatal(err)
		}
		if len(b.letters) > 0 {
			t.Errorf("dead letters %v", b.letters)
		}
	})
}

func TestASpentRetryGoesToTheDLQ(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		b := &box{}
		l.dlq(b)
		l.retry(3)
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(_ context.Context, p string) error {
			switch p {
			case "3":
				return errors.New("bad")
			case "5":
				return busy
			}
			return nil
		}}
		c, err := l.run(t.Context(), reads(0, 20, 20))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 20, Written: 18, DeadLettered: 2})
		if !slices.Equal(b.letters, []string{"3", "5"}) {
			t.Errorf("dead letters %v", b.letters)
		}
		w.at(20)
	})
}

// A spent retry that nobody takes ends the run: the records are written later.
func TestASpentRetryWithoutADLQLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		l.retry(3)
		x := &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return nil }, all: func(context.Context) error { return busy }}
		l.cfg.Writer = x
		if _, err := l.run(t.Context(), reads(0, 20, 20)); connectors.Classify(err) != connectors.ClassRetryable {
			t.Fatal(err)
		}
		w.at(0)
		if x.n != 3 {
			t.Errorf("%d attempts", x.n)
		}
	})
}

func TestAWriteThatTakesTooLongIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		l.retry(3)
		l.cfg.Sending.AttemptTimeout = time.Second
		slow := 2
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return nil }, all: func(ctx context.Context) error {
			if slow--; slow >= 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		if _, err := l.run(t.Context(), reads(0, 20, 20)); err != nil {
			t.Fatal(err)
		}
		w.once(20)
	})
}

func TestATimeoutAroundTheRetryEndsItsAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		l.retry(1000)
		l.cfg.Sending.Timeout = 10 * time.Second
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return busy }}
		began := time.Now()
		_, err := l.run(t.Context(), reads(0, 20, 20))
		if connectors.Classify(err) != connectors.ClassRetryable || !strings.Contains(err.Error(), "10s") {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestABufferMakesFewWritesOfMany(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		l.cfg.Sending.Buffer = &connectors.Buffer{Messages: 50, Delay: time.Second}
		x := &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return nil }}
		l.cfg.Writer = x
		c, err := l.run(t.Context(), reads(0, 200, 5))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 200, Written: 200})
		w.once(200)
		w.at(200)
		if x.n > 5 { // the first record goes alone
			t.Errorf("%d writes", x.n)
		}
	})
}

// A trickle is written when the delay is over, not when the buffer is full.
func TestABufferHoldsNothingLongerThanItsDelay(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		l.cfg.Sending.Buffer = &connectors.Buffer{Messages: 50, Delay: time.Second}
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return nil }}
		s := reads(0, 5, 5)
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			time.Sleep(2500 * time.Millisecond)
			w.once(5)
			w.at(5)
			return nil, connectors.ErrEndOfInput
		})
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	})
}

// Gathering must not starve the reader, whatever the buffer was told to hold.
func TestABufferLargerThanTheMemoryDoesNotStandStill(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		budget := message.NewBudget(256 << 10)
		l.cfg.Claim.Budget = budget.Share()
		defer l.cfg.Claim.Budget.Close()
		pool := message.NewPool(l.cfg.Claim.Budget, 64<<10)
		l.cfg.Sending.Buffer = &connectors.Buffer{Messages: 1_000_000, Delay: time.Hour}
		l.cfg.Writer = &moody{plainWriter: plainWriter{w}, say: func(context.Context, string) error { return nil }}
		s := &script{}
		for n := range int64(50) {
			s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
				b, err := pool.Get(ctx)
				if err != nil {
					return nil, err
				}
				b.Append([]byte(strings.Repeat("x", 60<<10)), n, n+1)
				b.From, b.End, b.Positions, b.Read = pos(n), pos(n+1), positioner{}, 1
				return b, nil
			})
		}
		began := time.Now()
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %v", took)
		}
		w.at(50)
	})
}

func TestATransactionOrAPartThatTakesTooLongEndsTheRunAndIsTriedAgain(t *testing.T) {
	for _, kind := range []string{tx, part} {
		bubbleOf(t, func(t *testing.T, w *world) {
			l := w.claim(kind)
			l.cfg.Sending.AttemptTimeout = time.Second
			slow := true
			w.slow = func(ctx context.Context) error {
				if slow {
					slow = false
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			if _, err := l.run(t.Context(), reads(0, 20, 20)); connectors.Classify(err) != connectors.ClassRetryable {
				t.Fatal(err)
			}
			l = w.claim(kind)
			if _, err := l.run(t.Context(), reads(l.from(), 20, 20)); err != nil {
				t.Fatal(err)
			}
			w.once(20)
		})
	}
}
