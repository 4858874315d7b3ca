package actors

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
)

// EventKind is what happened to a partition. The values are stable.
type EventKind string

const (
	EventAcquired    EventKind = "acquired"
	EventHandedOff   EventKind = "handed_off"
	EventDone        EventKind = "done"
	EventSuspended   EventKind = "suspended"
	EventFenced      EventKind = "fenced"
	EventFailed      EventKind = "failed"
	EventQuarantined EventKind = "quarantined"
)

// Event is one thing that happened to a partition of this node.
type Event struct {
	Kind             EventKind
	Time             time.Time
	Route, Partition string
	Epoch            uint64
	// Text says it in words, without secrets (invariant 11).
	Text string
}

func (n *Node) observe(e Event) {
	if n.cfg.Observe != nil {
		e.Time = time.Now()
		n.cfg.Observe(e)
	}
}

// observe tells of the end of a run, and keeps its words for the history. An
// attempt that never owned the partition is no run.
func (a *partitionActor) observe(out outcome) {
	if a.cur.owned == nil {
		return
	}
	a.before = a.cur.words(&out)
	kind := EventFailed
	switch out.class {
	case connectors.ClassStopped:
		kind = EventHandedOff
		if out.done {
			kind = EventDone
		}
	case connectors.ClassSuspended:
		kind = EventSuspended
	case connectors.ClassFenced:
		kind = EventFenced
	}
	text := a.before
	switch kind {
	case EventDone, EventSuspended, EventFenced: // the kind says the first word already
		_, text, _ = strings.Cut(text, ": ")
	}
	a.node.observe(Event{Kind: kind, Route: a.route.Name, Partition: a.view.key.partition, Epoch: a.cur.owned.Epoch, Text: text})
}

// words say why the run ended.
func (a *attempt) words(out *outcome) string {
	switch out.class {
	case connectors.ClassStopped:
		switch {
		case out.done:
			return "done: the input ended"
		case out.finished:
			return "released: the parts of an older generation are finished"
		}
		return a.node.whyStopped(a.route)
	case connectors.ClassSuspended:
		return "gate: the node could not prove its lease"
	case connectors.ClassFenced:
		var fenced *checkpoint.FencedError
		if errors.As(out.err, &fenced) {
			return fmt.Sprintf("fence: the record holds epoch %d", fenced.Stored)
		}
		return "fence: another owner holds the record"
	case connectors.ClassSuspect:
		return "sink: its session was ended: " + shorten(out.err)
	case connectors.ClassBug:
		return "panic: " + shorten(out.err)
	}
	return "error: " + shorten(out.err)
}

// whyStopped says why a run of r was asked to stop.
func (n *Node) whyStopped(r Route) string {
	n.mu.Lock()
	stopped := n.stopped
	now, wanted := n.routes[r.Name]
	n.mu.Unlock()
	switch {
	case stopped:
		return "drained: the node stopped"
	case !wanted:
		return "released: the route was paused, disabled or deleted"
	case now.Generation != r.Generation || now.UID != r.UID:
		return fmt.Sprintf("released: generation %d of the route followed", now.Generation)
	case n.cfg.Draining != nil && n.cfg.Draining():
		return "drained: the node is being emptied"
	}
	return "released: given to another node"
}

// maxWords bounds an error in an event and in the history.
const maxWords = 160

func shorten(err error) string {
	if err == nil {
		return "unknown"
	}
	s := strings.ToValidUTF8(err.Error(), "?")
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "") + "…"
	}
	return s
}
