package lease

import (
	"cmp"
	"time"
)

// HistoryLength bounds a partition's History.
const HistoryLength = 20

// History is the last runs of a partition, oldest first. It is for people:
// nothing decides by it. Only whoever holds the owner key writes it, in the very
// transactions that take and release the key, so that it costs no call of its own.
type History []Tenure

// Tenure is one epoch: who ran under it, and how that ended.
type Tenure struct {
	Epoch    uint64 `json:"epoch"`
	Node     string `json:"node"`
	Instance string `json:"instance"`
	// From and Until are by the clock of the node that wrote them, for display
	// only (invariant 7).
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"`
	// End says in words why the run ended; "" while it has not, as far as is known.
	End string `json:"end,omitempty"`
}

// EndLost is the end of a run that did not say why: its process died, or its
// lease was over before it could.
const EndLost = "lease ended: the process was killed, frozen or cut off"

// begin adds a run that o acquires, and ends the one before it if that is open:
// with why, if it was this very process's.
func (h History) begin(o *Owners, epoch uint64, why string, now time.Time) History {
	next := make(History, 0, HistoryLength)
	next = append(next, h[max(0, len(h)-HistoryLength+1):]...)
	if n := len(next); n > 0 && next[n-1].End == "" {
		last := &next[n-1]
		last.Until, last.End = now, EndLost
		if last.Node == o.node && last.Instance == o.instance {
			last.End = cmp.Or(why, "ended")
		}
	}
	return append(next, Tenure{Epoch: epoch, Node: o.node, Instance: o.instance, From: now})
}

// end closes the last run.
func (h History) end(why string, now time.Time) History {
	if len(h) == 0 {
		return nil
	}
	next := append(make(History, 0, len(h)), h...)
	next[len(next)-1].Until, next[len(next)-1].End = now, why
	return next
}
