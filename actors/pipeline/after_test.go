package pipeline

import (
	"errors"
	"testing"

	"github.com/mqbridge/mqb/connectors"
)

// What a run wrote without a commit is taken back by the next one: also the very
// first, of which the record knew nothing until it began.
func TestBytesOfARunThatNeverCommittedAreTakenBack(t *testing.T) {
	for _, before := range []int64{0, 10} {
		bubbleOf(t, func(t *testing.T, w *world) {
			if before > 0 {
				if _, err := w.claim(state).run(t.Context(), reads(0, before, 10)); err != nil {
					t.Fatal(err)
				}
			}
			l := w.claim(state)
			gone := connectors.Connection(errors.New("disk gone"))
			writes := 0
			w.onWrite = func() error {
				if writes++; writes == 2 {
					return gone
				}
				return nil
			}
			if _, err := l.run(t.Context(), reads(l.from(), 40, 10)); !errors.Is(err, gone) {
				t.Fatal(err)
			}
			w.at(before)
			w.onWrite = nil
			l = w.claim(state)
			if _, err := l.run(t.Context(), reads(l.from(), 40, 10)); err != nil {
				t.Fatal(err)
			}
			w.once(40)
			w.at(40)
		})
	}
}
