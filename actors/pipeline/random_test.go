package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// A partition lives through runs that are killed, drained, fail in a stage, panic, or
// meet a sink, a store or a dlq that is away, while the sink refuses other records each
// time. In the end each record is where it belongs, once where that is promised.
func TestEachRecordEndsInOnePlaceWhateverFailsOnTheWay(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{tx, enclosed, part, plain, state} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(40) {
				bubbleOf(t, func(t *testing.T, w *world) {
					newOdyssey(w, kind, seed).live()
					if t.Failed() {
						t.Fatalf("%s, seed %d", kind, seed)
					}
				})
			}
		})
	}
}

// enclosed is tx with a dlq in the same system.
const enclosed = "InTxn, letters enclosed"

// odyssey is one such life. What is drawn from r is the same for a seed, up to the
// order in which goroutines draw.
type odyssey struct {
	*world
	kind  string
	total int64
	// letters has everything that the dlq was given; nil where on_error is drop.
	letters *box
	// What becomes of a record before it reaches the sink.
	unreadable, odd, filtered map[int64]bool

	mu      sync.Mutex
	r       *rand.Rand
	dropped map[string]bool
	calm    bool // nothing fails any more, so that there is an end
}

func newOdyssey(w *world, kind string, seed uint64) *odyssey {
	o := &odyssey{world: w, kind: kind, r: rand.New(rand.NewPCG(seed, 0)), dropped: map[string]bool{},
		unreadable: map[int64]bool{}, odd: map[int64]bool{}, filtered: map[int64]bool{}}
	o.total = int64(50 + o.below(300))
	for n := range o.total {
		switch o.below(24) {
		case 0:
			o.unreadable[n] = true
		case 1:
			o.odd[n] = true
		case 2, 3:
			o.filtered[n] = true
		}
	}
	w.spec.Roll = route.Roll{Bytes: int64(10 + o.below(500)), Records: int64(1 + o.below(60)), Age: o.upTo(time.Second)}
	w.spec.CheckpointInterval, w.spec.GiveUpAfter = o.upTo(time.Second), 2*time.Second
	if o.one(3) && kind != enclosed {
		w.spec.OnError = route.OnErrorDrop
		return o
	}
	o.letters = &box{fail: func() error { return o.maybe(8, "dlq away") }}
	if kind == enclosed {
		o.kind, w.enclosed = tx, &o.letters.letters
	}
	return o
}

func (o *odyssey) below(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.r.IntN(n)
}

func (o *odyssey) one(in int) bool                    { return o.below(in) == 0 }
func (o *odyssey) upTo(d time.Duration) time.Duration { return time.Duration(1 + o.below(int(d))) }

// maybe is an error of the way to a system in one of n cases.
func (o *odyssey) maybe(n int, says string) error {
	if o.calm || !o.one(n) {
		return nil
	}
	return connectors.Connection(errors.New(says))
}

func (o *odyssey) live() {
	for runs := 0; !o.run(); runs++ {
		if o.calm = runs > 20; runs > 30 {
			o.t.Fatal("it comes to no end")
		}
	}
	o.judge()
}

// run is one of its runs; true at the end of the input.
func (o *odyssey) run() bool {
	if len(o.refuse) == 0 || o.kind != part { // what is promised has to come out the same
		o.refuse = map[string]bool{}
		for n := range o.total {
			if o.one(15) {
				o.refuse[strconv.FormatInt(n, 10)] = true
			}
		}
	}
	l := o.claim(o.kind)
	if o.letters != nil {
		l.dlq(o.letters)
	} else {
		l.cfg.Claim.Reject = func(_ context.Context, bad connectors.BadRecord) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.dropped[strconv.FormatInt(bad.Ordinal, 10)] = true
			return nil
		}
	}
	away := func() error { return o.maybe(25, "sink away") }
	o.onCommit, o.onPublish, o.onWrite, o.onSeal = away, away, away, away
	o.slow = func(ctx context.Context) error { return pause(ctx, o.upTo(200*time.Millisecond)) }
	if o.one(3) {
		l.cfg.Sending.Buffer = &connectors.Buffer{Messages: 1 + o.below(200), Delay: o.upTo(500 * time.Millisecond)}
	}
	l.retry(1 + o.below(3))
	if o.kind != plain { // a message that is spent is a letter
		l.cfg.Sending.Retry = nil
	}
	l.workers(1+o.below(4), o.stage)
	ctx, kill := context.WithCancelCause(o.t.Context())
	defer kill(nil)
	drain := make(chan struct{})
	l.cfg.Drain = drain
	if !o.calm {
		switch o.below(4) {
		case 0, 1:
			defer time.AfterFunc(o.upTo(1500*time.Millisecond), func() { kill(errors.New("killed")) }).Stop()
		case 2:
			defer time.AfterFunc(o.upTo(1500*time.Millisecond), func() { close(drain) }).Stop()
		}
		o.store.Fail(o.fault)
		defer o.store.Fail(nil)
	}
	began := time.Now()
	_, err := l.run(ctx, o.source(l))
	if took := time.Since(began); took > 10*time.Minute {
		o.t.Errorf("a run took %v", took)
	}
	if connectors.Classify(err) == connectors.ClassPermanent {
		o.t.Fatal(err)
	}
	o.store.Fail(nil)
	rec := o.record()
	n, _ := rec.Position.Number()
	if n != o.total || len(rec.Intents) > 0 || err != nil {
		return false
	}
	if rec.Verdicts != nil {
		o.t.Errorf("verdicts are left")
	}
	return true
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fault is what the store does. A transaction finds out itself what became of a lost
// reply, and knows no other failure here.
func (o *odyssey) fault(call memory.Call, _ string) memory.Fault {
	switch {
	case !o.one(15):
		return memory.FaultNone
	case call != memory.CallSwap && o.kind != tx:
		return memory.FaultRefuse
	case call == memory.CallSwap && o.kind != tx:
		return memory.Fault(1 + o.below(3))
	case call == memory.CallSwap:
		return memory.FaultLoseReply
	}
	return memory.FaultNone
}

func (o *odyssey) stage(ctx context.Context, b *message.Batch) error {
	if err := pause(ctx, o.upTo(50*time.Millisecond)); err != nil {
		return err
	}
	if err := o.maybe(80, "stage away"); err != nil {
		return err
	}
	if !o.calm && o.one(200) {
		panic("stage")
	}
	var bad connectors.RowsError
	kept := 0
	b.Keep(func(i int) bool {
		n := b.Msg(i).Ordinal
		if o.odd[n] {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: kept, Err: errors.New("odd")})
		}
		if !o.filtered[n] {
			kept++
		}
		return !o.filtered[n]
	})
	if bad.Rows != nil {
		return &bad
	}
	return nil
}

// source reads on where l begins.
func (o *odyssey) source(l *life) *script {
	s := &script{}
	from := l.from()
	if promised := l.cfg.Claim.Record.Intents; len(promised) > 0 {
		from, _ = promised[0].From.Number()
	}
	for from < o.total {
		first, end := from, min(from+int64(1+o.below(40)), o.total)
		s.steps = append(s.steps, func(ctx context.Context) (*message.Batch, error) {
			var bad []int64
			for n := first; n < end; n++ {
				if !o.unreadable[n] {
					continue
				}
				bad = append(bad, n)
				if err := l.cfg.Claim.Reject(ctx, connectors.BadRecord{Ordinal: n, Place: "f", Payload: []byte(strconv.FormatInt(n, 10)), Err: errors.New("torn")}); err != nil {
					return nil, err
				}
			}
			b := batch(first, end, bad...)
			b.Read, b.Dropped = int(end-first), len(bad)
			return b, nil
		})
		if o.one(6) {
			s.steps = append(s.steps, waits(o.upTo(300*time.Millisecond)))
		}
		from = end
	}
	return s
}

// judge looks where everything is.
func (o *odyssey) judge() {
	rows := o.content()
	if o.kind != plain && !slices.Equal(rows, sorted(rows)) {
		o.t.Errorf("out of order: %s", strings.Join(rows, " "))
	}
	in, dead := count(rows), map[string]int{}
	if o.letters != nil {
		dead = count(o.letters.letters)
	}
	for n := range o.total {
		p := strconv.FormatInt(n, 10)
		written, lettered := in[p] > 0, dead[p] > 0
		fate := fmt.Sprintf("record %d: %d times in the sink, %d letters", n, in[p], dead[p])
		switch early := o.unreadable[n] || o.odd[n]; {
		case o.filtered[n] && !early:
			if written || lettered {
				o.t.Errorf("%s, and it is filtered", fate)
			}
		case early && written:
			o.t.Errorf("%s, and it is bad", fate)
		case o.letters == nil:
			if !written && !o.dropped[p] {
				o.t.Errorf("%s, nor was it dropped", fate)
			}
		case !written && !lettered:
			o.t.Error(fate)
		case written && lettered && o.kind != plain: // it may be written, and be refused when it comes again
			o.t.Error(fate)
		}
		if in[p] > 1 && o.kind != plain || dead[p] > 1 && o.enclosed != nil {
			o.t.Error(fate)
		}
	}
}

func count(rows []string) map[string]int {
	out := map[string]int{}
	for _, r := range rows {
		out[r]++
	}
	return out
}
