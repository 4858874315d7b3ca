// Package events keeps what happened on a node lately, for people to read.
// Nothing decides by it, and it is gone with the process.
package events

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Kind says what happened. The values are stable; those of partitions are the
// ones of package actors.
type Kind string

const (
	NodeJoined Kind = "node_joined"
	NodeLeft   Kind = "node_left"
	// TakenAway: the scheduler removed the ownership of a node that is gone or wedged.
	TakenAway Kind = "taken_away"
	Scheduler Kind = "scheduler"
)

// Event is one thing that happened.
type Event struct {
	// Node and Instance name the process that saw it, Seq numbers what that
	// process saw, from 1.
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`
	// Time is by the clock of Node; for display only (invariant 7).
	Time      time.Time `json:"time"`
	Kind      Kind      `json:"kind"`
	Route     string    `json:"route,omitempty"`
	Partition string    `json:"partition,omitempty"`
	Epoch     uint64    `json:"epoch,omitempty"`
	// Subject is the member that an event of membership is about, with its
	// instance, so that what every node saw can be shown once.
	Subject string `json:"subject,omitempty"`
	Text    string `json:"text"`
}

// Length bounds a Ring: with the length of texts bounded, some 300 KiB
// (invariant 8).
const Length = 1024

// Ring holds the last events of one process. Safe for concurrent use.
type Ring struct {
	node, instance string

	mu   sync.Mutex
	seq  uint64
	last []Event // up to Length, event seq at (seq-1) % Length
}

// NewRing returns the empty ring of a process.
func NewRing(node, instance string) *Ring { return &Ring{node: node, instance: instance} }

// Add appends an event; node, instance and number are the ring's to set, and the
// time where it is zero.
func (r *Ring) Add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	r.seq++
	e.Node, e.Instance, e.Seq = r.node, r.instance, r.seq
	if len(r.last) < Length {
		r.last = append(r.last, e)
		return
	}
	r.last[(e.Seq-1)%Length] = e
}

// After returns the events that the cursor has not seen yet, oldest first.
func (r *Ring) After(c Cursor) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var seen uint64
	if at := c[r.node]; at.Instance == r.instance {
		seen = min(at.Seq, r.seq)
	}
	seen = max(seen, r.seq-uint64(len(r.last)))
	out := make([]Event, 0, r.seq-seen)
	for s := seen + 1; s <= r.seq; s++ {
		out = append(out, r.last[(s-1)%Length])
	}
	return out
}

// Cursor is how far a reader has seen each node's events.
type Cursor map[string]At

// At is a place in the events of a process.
type At struct {
	Instance string
	Seq      uint64
}

// See moves the cursor past events.
func (c Cursor) See(list []Event) {
	for _, e := range list {
		if at := c[e.Node]; at.Instance != e.Instance || at.Seq < e.Seq {
			c[e.Node] = At{e.Instance, e.Seq}
		}
	}
}

// Line writes an event for people, without its time and node.
func (e Event) Line() string {
	var b strings.Builder
	if e.Route != "" {
		fmt.Fprintf(&b, "%s/%s: ", e.Route, e.Partition)
	}
	b.WriteString(strings.ReplaceAll(string(e.Kind), "_", " "))
	if e.Epoch > 0 {
		fmt.Fprintf(&b, " (epoch %d)", e.Epoch)
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	return b.String()
}
