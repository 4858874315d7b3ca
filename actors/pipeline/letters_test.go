package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// box is the endpoint of a dlq: payload and id of each letter, in order.
type box struct {
	letters []string
	ids     []string
	fail    func() error
}

func (x *box) Close() error { return nil }

func (x *box) Write(_ context.Context, b *message.Batch, i, j int) error {
	if x.fail != nil {
		if err := x.fail(); err != nil {
			return err
		}
	}
	for ; i < j; i++ {
		id, _ := b.Meta(i, route.IDKey)
		cause, _ := b.Meta(i, metaLetterError)
		if len(cause) == 0 {
			return errors.New("a letter without a cause")
		}
		x.letters = append(x.letters, string(b.Payload(i)))
		x.ids = append(x.ids, string(id))
	}
	return nil
}

// dlq gives a life a dlq that writes to x.
func (l *life) dlq(x *box) {
	l.spec.OnError = route.OnErrorDLQ
	l.cfg.DeadLetters = &DeadLetters{Open: func(context.Context) (connectors.PlainWriter, error) { return x, nil }}
	l.cfg.Claim.Reject = l.cfg.DeadLetters.Reject
}

func sameSet(got []string, want ...string) bool {
	got = slices.Clone(got)
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(slices.Compact(got), want)
}

// Records that a stage or the sink refuses become dead letters; their healthy
// neighbours are written.
func TestHealthyMessagesAreNotLostBehindBadOnes(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		w.refuse = map[string]bool{"0": true, "9": true, "10": true, "29": true}
		l := w.claim(kind)
		x := &box{}
		l.dlq(x)
		l.workers(2, func(_ context.Context, b *message.Batch) error {
			for i := range b.Len() {
				if b.Msg(i).Ordinal == 15 {
					return &connectors.RowsError{Rows: []connectors.RowError{{Index: i, Err: errors.New("odd")}}}
				}
			}
			return nil
		})
		c, err := l.run(t.Context(), reads(0, 30, 10))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: 30, Written: 25, DeadLettered: 5})
		w.once(30, 0, 9, 10, 15, 29)
		w.at(30)
		if !sameSet(x.letters, "0", "9", "10", "15", "29") || len(x.letters) != 5 {
			t.Errorf("dead letters %v", x.letters)
		}
		if !slices.Contains(x.ids, "uid/s/p/15") {
			t.Errorf("ids %v", x.ids)
		}
		if v := w.record().Verdicts; v != nil {
			t.Errorf("verdicts are left: %+v", v)
		}
	})
}

func TestALetterOfTheReaderIsDurableBeforeThePositionMovesOverIt(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		l := w.claim(kind)
		x := &box{fail: func() error { return connectors.Connection(errors.New("dlq away")) }}
		l.dlq(x)
		bad := func(context.Context) (*message.Batch, error) {
			b := batch(10, 20, 12)
			b.Read, b.Dropped = 10, 1
			err := l.cfg.Claim.Reject(t.Context(), connectors.BadRecord{Ordinal: 12, Place: "f:12", Err: errors.New("torn"), Payload: []byte("twelve")})
			return b, err
		}
		s := reads(0, 10, 10)
		s.steps = append(s.steps, bad)
		if _, err := l.run(t.Context(), s); connectors.Classify(err) != connectors.ClassConnection {
			t.Fatal(err)
		}
		if n, _ := w.record().Position.Number(); n > 12 {
			t.Errorf("the position is %d, and the letter of record 12 is not written", n)
		}
		l = w.claim(kind)
		x.fail = nil
		l.dlq(x)
		s = reads(l.from(), 10, 10)
		s.steps = append(s.steps, bad)
		if _, err := l.run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		w.at(20)
		if !slices.Equal(x.letters, []string{"twelve"}) {
			t.Errorf("dead letters %v", x.letters)
		}
	})
}

// The owner dies between the letters and the position, and the sink would take the
// record by now: it must not end up in both.
func TestARecordThatWasDeadLetteredIsNotWrittenByTheNextOwner(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{tx, plain} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.refuse = map[string]bool{"13": true, "17": true}
				x := &box{}
				l := w.claim(kind)
				l.dlq(x)
				stop := errors.New("killed")
				x.fail = func() error { // after the verdicts, instead of the letters
					if got, err := w.record().Verdicts.Numbers(); err != nil || !slices.Equal(got, []int64{13, 17}) && !slices.Equal(got, []int64{13}) {
						t.Errorf("letters are written before their verdicts stand in the record: %v, %v", got, err)
					}
					x.letters = append(x.letters, "13")
					return connectors.Connection(stop)
				}
				if _, err := l.run(t.Context(), reads(0, 30, 10)); !errors.Is(err, stop) {
					t.Fatal(err)
				}
				w.refuse, x.fail = nil, nil
				l = w.claim(kind)
				l.dlq(x)
				if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); err != nil {
					t.Fatal(err)
				}
				for _, r := range x.letters {
					if n := strings.Count(" "+strings.Join(w.content(), " ")+" ", " "+r+" "); n != 0 {
						t.Errorf("record %s is a dead letter and was written %d times", r, n)
					}
				}
				if !slices.Contains(x.letters, "13") {
					t.Errorf("dead letters %v", x.letters)
				}
				if w.at(30); w.record().Verdicts != nil {
					t.Errorf("verdicts are left")
				}
			})
		})
	}
}

// Regression: the letters of a part were written behind its publication. Whoever finds
// a part that is there moves the position over its range without reading it again, so
// that a crash in between lost them.
func TestLettersAreNotLostByACrashBetweenTheirPartAndThePosition(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.refuse = map[string]bool{"3": true}
		x := &box{}
		l := w.claim(part)
		l.dlq(x)
		killed := errors.New("killed")
		w.onPublish = func() error {
			asked := 0
			w.gate = func() error {
				if asked++; asked == 1 {
					return nil // of the publication: the part will be there
				}
				return killed
			}
			return nil
		}
		odd := func(_ context.Context, b *message.Batch) error {
			return &connectors.RowsError{Rows: []connectors.RowError{{Index: 7, Err: errors.New("odd")}}}
		}
		l.workers(1, odd)
		if _, err := l.run(t.Context(), reads(0, 10, 10)); !errors.Is(err, killed) {
			t.Fatal(err)
		}
		w.onPublish, w.gate = nil, func() error { return nil }
		l = w.claim(part)
		l.dlq(x)
		l.workers(1, odd)
		if _, err := l.run(t.Context(), reads(l.from(), 10, 10)); err != nil {
			t.Fatal(err)
		}
		w.at(10)
		w.once(10, 3, 7)
		if !sameSet(x.letters, "3", "7") {
			t.Errorf("dead letters %v", x.letters)
		}
	})
}

// Regression: whoever made the promise may have been of a version that wrote its
// letters behind the part.
func TestLettersOfAPartThatAnotherOwnerPromisedAreThereBeforeThePart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.refuse = map[string]bool{"3": true}
		killed := errors.New("killed")
		w.onPublish = func() error { return killed }
		l := w.claim(part)
		l.dlq(&box{})
		if _, err := l.run(t.Context(), reads(0, 10, 10)); !errors.Is(err, killed) || len(w.record().Intents) != 1 {
			t.Fatalf("%v, record %+v", err, w.record())
		}
		x := &box{}
		w.onPublish = func() error {
			if !sameSet(x.letters, "3") {
				t.Errorf("published behind the letters %v", x.letters)
			}
			return nil
		}
		l = w.claim(part)
		l.dlq(x)
		if _, err := l.run(t.Context(), reads(l.from(), 10, 10)); err != nil {
			t.Fatal(err)
		}
		w.at(10)
		w.once(10, 3)
	})
}

// The letter belongs to a record in front of the part's end, and the part is
// published in the middle of the batch.
func TestALetterIsNotLostWhenAPartEndsInsideItsBatch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.spec.Roll.Records = 4
		w.refuse = map[string]bool{"1": true, "18": true}
		x := &box{}
		l := w.claim(part)
		l.dlq(x)
		w.onPublish = func() error {
			if n, _ := w.record().Position.Number(); n > 1 && !slices.Contains(x.letters, "1") {
				t.Errorf("position %d, letter 1 not written", n)
			}
			return nil
		}
		if _, err := l.run(t.Context(), reads(0, 20, 20)); err != nil {
			t.Fatal(err)
		}
		w.once(20, 1, 18)
		if !slices.Equal(x.letters, []string{"1", "18"}) {
			t.Errorf("dead letters %v", x.letters)
		}
	})
}

// A dlq that is full of everything: letters do not pile up in memory.
func TestLettersOfNothingButBadRecordsAreWrittenAsTheyCome(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		x := &box{}
		l := w.claim(kind)
		l.dlq(x)
		const n = 6000 // with what is said of each, more than is kept
		for i := range n {
			w.refuse[fmt.Sprint(i)] = true
		}
		c, err := l.run(t.Context(), reads(0, n, 100))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: n, DeadLettered: n})
		w.at(n)
		if len(x.letters) != n {
			t.Errorf("%d letters", len(x.letters))
		}
		// A transaction knows its letters at its end only.
		if c := l.stats.Commits.Load(); kind != tx && c < 2 {
			t.Errorf("%d commits for %d letters", c, n)
		}
	})
}

func TestVerdictsWithoutADLQStopThePartition(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(plain)
		next := l.cfg.Claim.Record
		next.Verdicts = checkpoint.NewVerdicts([]int64{3, 1}, "why")
		if _, err := checkpoint.Commit(t.Context(), w.store, key, l.cfg.Claim.Record, next); err != nil {
			t.Fatal(err)
		}
		l = w.claim(plain)
		if _, err := l.run(t.Context(), reads(0, 10, 10)); connectors.Classify(err) != connectors.ClassPermanent {
			t.Fatal(err)
		}
	})
}

// Letters and position are one: a run that dies before the commit leaves neither.
func TestLettersInTheTransactionAreThereOnceWithThePosition(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var dead []string
		w.enclosed = &dead
		w.refuse = map[string]bool{"3": true, "17": true, "25": true}
		gone := connectors.Connection(errors.New("gone"))
		fail := 2
		w.onCommit = func() error {
			if fail--; fail == 0 {
				return gone
			}
			return nil
		}
		for i := range 2 {
			l := w.claim(tx)
			l.dlq(&box{fail: func() error { t.Error("written apart"); return nil }})
			c, err := l.run(t.Context(), reads(l.from(), 30, 10))
			if i == 0 && !errors.Is(err, gone) || i == 1 && err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				want(t, c, lease.Counters{Read: 30, Written: 27, DeadLettered: 3})
			}
		}
		w.once(30, 3, 17, 25)
		if !slices.Equal(dead, []string{"3", "17", "25"}) {
			t.Errorf("dead letters %v", dead)
		}
		w.at(30)
	})
}

// The letter of a verdict is written, then the same transaction meets another
// refusal, and the run dies before its commit: the position has passed neither, and
// the first verdict must stand as long as its record can be read again.
func TestAVerdictStandsUntilThePositionHasPassedItsRecord(t *testing.T) {
	for _, kind := range []string{tx, plain} {
		bubbleOf(t, func(t *testing.T, w *world) {
			x := &box{}
			gone := connectors.Connection(errors.New("killed"))
			for i, refuse := range []map[string]bool{{"13": true}, {"17": true}, nil} {
				w.refuse = refuse
				l := w.claim(kind)
				l.dlq(x)
				writes := 0
				x.fail = func() error {
					if writes++; i == 0 || i == 1 && (kind == plain || writes == 2) {
						return gone
					}
					return nil
				}
				if _, err := l.run(t.Context(), reads(l.from(), 30, 10)); (err == nil) != (i == 2) {
					t.Fatal(i, err)
				}
			}
			if !sameSet(x.letters, "13", "17") {
				t.Errorf("%s: dead letters %v", kind, x.letters)
			}
			for _, r := range w.content() {
				// A sink that is written first has 17 of the first run already.
				if r == "13" || r == "17" && kind == tx {
					t.Errorf("%s: record %s is a dead letter and was written", kind, r)
				}
			}
			if w.at(30); w.record().Verdicts != nil {
				t.Errorf("%s: verdicts are left", kind)
			}
		})
	}
}

// Regression: a large buffer in front of a sink that refuses everything gathered more
// verdicts than a record holds, and that stopped the partition for good.
func TestABufferGathersNoMoreVerdictsThanARecordHolds(t *testing.T) {
	const n, size = 40_000, 2_000
	bubble(t, func(t *testing.T, w *world) {
		l := w.claim(tx)
		l.cfg.Claim.Budget = message.NewBudget(1 << 30)
		l.cfg.Sending.Buffer = &connectors.Buffer{Messages: 1_000_000, Delay: time.Hour}
		x := &box{}
		x.fail = func() error {
			if judged, err := w.record().Verdicts.Numbers(); err != nil || len(judged) > txnRows+size {
				return fmt.Errorf("%d verdicts in one record, %v", len(judged), err)
			}
			return nil
		}
		l.dlq(x)
		for i := range n {
			w.refuse[strconv.Itoa(i)] = true
		}
		c, err := l.run(t.Context(), reads(0, n, size))
		if err != nil {
			t.Fatal(err)
		}
		want(t, c, lease.Counters{Read: n, DeadLettered: n})
		if w.at(n); len(x.letters) != n {
			t.Errorf("%d letters", len(x.letters))
		}
	})
}
