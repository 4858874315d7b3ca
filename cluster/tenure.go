package cluster

import (
	"maps"
	"time"
)

const (
	// tenureMemory is how long the loss of a node counts against it.
	tenureMemory = 5 * time.Minute
	// tenureLimit bounds how long a flapping node waits.
	tenureLimit = time.Minute
)

// tenure tells nodes that have been here for a while from those that just came
// or flap, so that partitions do not follow a node that comes and goes. A node
// has settled once it was here for a while; each loss within tenureMemory
// doubles the while. Times are this process's own (invariant 7): every node
// keeps its tenure, leader or not, so that a new leader knows as much as the old
// one. Not safe for concurrent use.
type tenure struct {
	self  string
	after time.Duration
	stays map[string]*stay
	begun bool
	since time.Time // of the first observation
}

// stay is what is known of one node.
type stay struct {
	present bool
	lease   int64 // of the node key: another one means that it was gone in between
	settles time.Time
	left    time.Time
	losses  int
}

func newTenure(self string, after time.Duration) *tenure {
	return &tenure{self: self, after: after, stays: map[string]*stay{}}
}

// observe takes note of who is here, with the lease of each. Whoever was here
// when we came, and is not ourselves, has settled: we do not know better.
func (t *tenure) observe(now time.Time, present map[string]int64) {
	for name, s := range t.stays {
		if _, here := present[name]; !here && s.present {
			s.present, s.left = false, now
			s.losses++
		}
		if !s.present && now.Sub(s.left) >= tenureMemory {
			delete(t.stays, name)
		}
	}
	for name, lease := range present {
		s := t.stays[name]
		switch {
		case s == nil:
			s = &stay{}
			t.stays[name] = s
		case s.present && s.lease == lease:
			continue
		case s.present:
			s.losses++
		}
		s.present, s.lease = true, lease
		s.settles = now.Add(min(t.after<<min(s.losses, 10), max(tenureLimit, t.after)))
		if !t.begun && name != t.self {
			s.settles = now
		}
	}
	if !t.begun && len(present) > 0 {
		t.begun, t.since = true, now
	}
}

// gone reports whether the node has been away for so long that nothing counts on
// it any more, as far as this process was here to see it.
func (t *tenure) gone(now time.Time, name string) bool {
	return t.begun && t.stays[name] == nil && now.Sub(t.since) >= tenureMemory
}

// settling lists the nodes that are here and have not settled, and until when.
func (t *tenure) settling(now time.Time) map[string]time.Time {
	var out map[string]time.Time
	for name, s := range t.stays {
		if s.present && s.settles.After(now) {
			if out == nil {
				out = map[string]time.Time{}
			}
			out[name] = s.settles
		}
	}
	return out
}

// settled reports whether the node was here long enough.
func (t *tenure) settled(now time.Time, name string) bool {
	s := t.stays[name]
	return s != nil && s.present && !now.Before(s.settles)
}

// next is when the next node settles, or is gone for good; zero if neither comes.
func (t *tenure) next(now time.Time) (at time.Time) {
	soonest := func(due time.Time) {
		if due.After(now) && (at.IsZero() || due.Before(at)) {
			at = due
		}
	}
	if t.begun {
		soonest(t.since.Add(tenureMemory)) // of those that were gone before we came
	}
	for s := range maps.Values(t.stays) {
		if s.present {
			soonest(s.settles)
		} else {
			soonest(s.left.Add(tenureMemory))
		}
	}
	return at
}
