package pipeline

import (
	"errors"
	"testing"

	"github.com/mqbridge/mqb/connectors"
)

// A record that was judged and that the next owner filters is passed like any other.
func TestAVerdictOnARecordThatIsFilteredNowDoesNotStandForEver(t *testing.T) {
	t.Parallel()
	all(t, func(t *testing.T, w *world, kind string) {
		if kind == part {
			return // refuses before it writes, and needs no verdicts
		}
		w.refuse["5"] = true
		l := w.claim(kind)
		l.dlq(&box{fail: func() error { return connectors.Connection(errors.New("away")) }})
		if _, err := l.run(t.Context(), reads(0, 10, 10)); err == nil {
			t.Fatal("no error")
		}
		if w.record().Verdicts == nil {
			t.Fatal("no verdict was left")
		}
		l = w.claim(kind)
		l.dlq(&box{})
		l.keep(func(n int64) bool { return n != 5 })
		if _, err := l.run(t.Context(), reads(l.from(), 20, 10)); err != nil {
			t.Fatal(err)
		}
		w.at(20)
		if n, err := w.record().Verdicts.Numbers(); err != nil || n != nil {
			t.Errorf("verdicts on %v are left (%v)", n, err)
		}
	})
}
