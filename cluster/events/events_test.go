package events

import (
	"fmt"
	"testing"
)

func TestRingKeepsTheLastAndACursorMissesNoneOfThem(t *testing.T) {
	t.Parallel()
	r := NewRing("n1", "a")
	c := Cursor{}
	seen := 0
	read := func() {
		list := r.After(c)
		c.See(list)
		for _, e := range list {
			if seen++; e.Text != fmt.Sprint(seen) {
				t.Fatalf("event %d says %s", seen, e.Text)
			}
		}
	}
	for i := 1; i <= 3*Length; i++ {
		r.Add(Event{Text: fmt.Sprint(i)})
		if i%100 == 0 {
			read()
		}
	}
	read()
	if seen != 3*Length {
		t.Errorf("saw %d", seen)
	}
	if list := r.After(Cursor{}); len(list) != Length || list[0].Text != fmt.Sprint(2*Length+1) {
		t.Errorf("%d events, the first is %q", len(list), list[0].Text)
	}
	// Another process under the same name begins anew.
	if list := r.After(Cursor{"n1": {Instance: "before", Seq: 5 * Length}}); len(list) != Length {
		t.Errorf("%d events for a cursor of another process", len(list))
	}
}
