package sinktest

import (
	"errors"
	"slices"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

var plainBehaviours = []behaviour{
	{"check changes nothing", always, checkIsQuiet},
	{"written is visible, in order", keeps, plainVisible},
	{"writes the range and nothing else", keeps, plainRange},
	{"any batch is taken", func(s *Subject) bool { return s.Rows == nil }, plainTaken},
	{"refused rows leave the others", func(s *Subject) bool { return s.Refused != nil }, plainRefused},
	{"repeat is absorbed", func(s *Subject) bool { return s.Absorbs }, plainRepeat},
	{"closed gate", keeps, plainGate},
	{"close while blocked", func(s *Subject) bool { return s.Block != nil }, plainCloseBlocked},
}

func checkIsQuiet(r *rig) {
	sink := r.s.Open(r.T)
	defer sink.Close()
	if err := sink.Check(r.ctx()); err != nil {
		r.Errorf("check: %v", err)
	}
	if r.s.Rows != nil {
		r.sees("after Check")
	}
	// A run that ends between Prepare and Open leaves nothing either.
	o := r.open(1)
	o.close()
	if r.s.Rows != nil {
		r.sees("after an empty run")
	}
}

func (o *owner) plain() connectors.PlainWriter { return o.writer.(connectors.PlainWriter) }

// write writes messages [i, j) as a committer does: a sink with a state is asked for
// it first, and again behind them, so that they are committed.
func (o *owner) write(b *message.Batch, i, j int) error {
	o.r.Helper()
	if len(o.held.SinkState) == 0 {
		o.keepState()
	}
	if err := o.plain().Write(o.r.ctx(), b, i, j); err != nil {
		return err
	}
	o.keepState()
	return nil
}

// keepState takes the sink's state over into the record, if the sink has one.
func (o *owner) keepState() {
	o.r.Helper()
	if w, ok := o.writer.(connectors.StatefulWriter); ok {
		state, err := w.State(o.r.ctx())
		if err != nil {
			o.r.Fatalf("state: %v", err)
		}
		if len(state) == 0 || len(state) > 500 {
			o.r.Fatalf("the state has %d bytes", len(state))
		}
		o.held.SinkState = state
	}
}

func plainVisible(r *rig) {
	o := r.open(1)
	for from := 0; from < 60; from += 20 {
		if err := o.write(r.batch(from, 20, nil), 0, 20); err != nil {
			r.Fatal(err)
		}
		r.sees("after Write returned", span(0, from+20)...)
	}
	o.close()
	again := r.open(2, goesOn(o))
	defer again.close()
	if err := again.write(r.batch(60, 5, nil), 0, 5); err != nil {
		r.Fatal(err)
	}
	r.sees("after a second run", span(0, 65)...)
}

func plainRange(r *rig) {
	o := r.open(1)
	defer o.close()
	b := r.batch(0, 10, nil)
	for _, w := range [][2]int{{2, 5}, {5, 5}, {5, 9}} {
		if err := o.write(b, w[0], w[1]); err != nil {
			r.Fatal(err)
		}
	}
	r.sees("after writing messages 2 to 8", span(2, 9)...)
}

func plainTaken(r *rig) {
	o := r.open(1)
	defer o.close()
	if err := o.plain().Write(r.ctx(), r.batch(0, 10, nil), 0, 10); err != nil {
		r.Error(err)
	}
}

func plainRefused(r *rig) {
	o := r.open(1)
	defer o.close()
	b := r.batch(0, 10, map[int]func(int) []byte{3: r.s.Refused, 7: r.s.Refused})
	if got := r.refused(o.write(b, 1, 10)); !slices.Equal(got, []int{3, 7}) {
		r.Errorf("messages %v are refused, want 3 and 7 (invariant 12)", got)
	}
	if _, ok := o.writer.(connectors.StatefulWriter); ok {
		// Its state could not say which of them are there.
		o.keepState()
		r.sees("beside refused ones")
		b.DropRows([]int{3, 7})
		if err := o.write(b, 1, b.Len()); err != nil {
			r.Fatal(err)
		}
	}
	r.sees("beside refused ones", span(1, 10, 3, 7)...)
}

func plainRepeat(r *rig) {
	o := r.open(1)
	for range 2 {
		if err := o.plain().Write(r.ctx(), r.batch(0, 10, nil), 0, 10); err != nil {
			r.Fatal(err)
		}
	}
	o.close()
	again := r.open(2)
	defer again.close()
	if err := again.plain().Write(r.ctx(), r.batch(5, 10, nil), 0, 10); err != nil {
		r.Fatal(err)
	}
	r.sees("after repeats", span(0, 15)...)
}

func plainGate(r *rig) {
	o := r.open(1)
	defer o.close()
	o.shut.Store(true)
	if err := o.plain().Write(r.ctx(), r.batch(0, 10, nil), 0, 10); !errors.Is(err, connectors.ErrGateClosed) {
		r.Errorf("got %v, want ErrGateClosed", err)
	}
	r.sees("behind a closed gate")
}

func plainCloseBlocked(r *rig) {
	o := r.open(1)
	b := r.batch(0, 10, nil)
	o.closeWhileBlocked(func() error { return o.plain().Write(r.Context(), b, 0, 10) })
}

var statefulBehaviours = []behaviour{
	{"what was written behind the state is taken back", keeps, statefulTakesBack},
	{"the state of an empty run", keeps, statefulEmpty},
}

func statefulTakesBack(r *rig) {
	o := r.open(1)
	if err := o.write(r.batch(0, 10, nil), 0, 10); err != nil {
		r.Fatal(err)
	}
	for epoch := uint64(2); epoch <= 3; epoch++ {
		// Written, and perhaps durable, but the position was never committed.
		if err := o.plain().Write(r.ctx(), r.batch(10, 500, nil), 0, 500); err != nil {
			r.Fatal(err)
		}
		if epoch == 3 {
			if _, err := o.writer.(connectors.StatefulWriter).State(r.ctx()); err != nil {
				r.Fatal(err)
			}
		}
		o.close()
		next := r.open(epoch, goesOn(o))
		r.sees("after what was not committed", span(0, 10)...)
		o = next
	}
	defer o.close()
	if err := o.write(r.batch(10, 20, nil), 0, 20); err != nil {
		r.Fatal(err)
	}
	r.sees("after it was written again", span(0, 30)...)
}

func statefulEmpty(r *rig) {
	o := r.open(1)
	o.keepState()
	if err := o.plain().Write(r.ctx(), r.batch(0, 10, nil), 0, 10); err != nil {
		r.Fatal(err)
	}
	o.close()
	again := r.open(2, goesOn(o))
	defer again.close()
	r.sees("after a run that committed nothing")
	if err := again.write(r.batch(0, 10, nil), 0, 10); err != nil {
		r.Fatal(err)
	}
	r.sees("after the same again", span(0, 10)...)
}
