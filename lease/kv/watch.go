package kv

import (
	"context"
	"sort"
	"strings"

	"github.com/mqbridge/mqb/lease"
)

// history keeps the last changes, bounded in events and bytes (invariant 8), so
// that watches need no buffer of their own: a watch is a cursor into it.
type history struct {
	maxEvents, maxBytes int

	revisions     []change // ascending, one per revision, no revision left out
	events, bytes int
	compacted     int64 // every revision up to here is gone
}

type change struct {
	rev    int64
	bytes  int
	events []lease.Event
}

func (h *history) add(rev int64, events []lease.Event) {
	c := change{rev: rev, events: events}
	for i := range events {
		c.bytes += len(events[i].KV.Key) + len(events[i].KV.Value)
	}
	h.revisions = append(h.revisions, c)
	h.events += len(events)
	h.bytes += c.bytes
	drop := 0
	for h.events > h.maxEvents || h.bytes > h.maxBytes {
		old := &h.revisions[drop]
		h.events -= len(old.events)
		h.bytes -= old.bytes
		h.compacted = old.rev
		*old = change{} // the array may outlive the slice; the values must not
		drop++
	}
	h.revisions = h.revisions[drop:]
}

// reset forgets everything up to rev.
func (h *history) reset(rev int64) {
	h.revisions, h.events, h.bytes, h.compacted = nil, 0, 0, rev
}

// since returns the changes from revision from on. The result stays valid: a
// change is never altered, and a caller holds copies of the headers only.
func (h *history) since(from int64) []change {
	i := sort.Search(len(h.revisions), func(i int) bool { return h.revisions[i].rev >= from })
	rest := h.revisions[i:]
	if len(rest) > watchBatch {
		rest = rest[:watchBatch]
	}
	return append([]change(nil), rest...)
}

// watchBatch is how many revisions a watch takes out of the history at once:
// what a slow receiver can keep alive beyond the history's own bound.
const watchBatch = 64

// Watch streams the changes under prefix at or after revision from. A receiver
// that falls behind the history gets ErrCompacted; nothing waits for it.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) <-chan lease.WatchResponse {
	out := make(chan lease.WatchResponse, 16)
	go func() {
		defer close(out)
		send := func(r lease.WatchResponse) bool {
			select {
			case out <- r:
				return true
			case <-ctx.Done():
				return false
			case <-s.ended:
				return false
			}
		}
		next := max(from, 1)
		for {
			s.mu.RLock()
			compacted, closed, changed := s.history.compacted, s.closed, s.changed
			news := s.history.since(next)
			s.mu.RUnlock()
			if closed || ctx.Err() != nil {
				return
			}
			if next <= compacted {
				send(lease.WatchResponse{Revision: compacted, Err: lease.ErrCompacted})
				return
			}
			for _, c := range news {
				next = c.rev + 1
				if events := under(prefix, c.events); len(events) > 0 {
					if !send(lease.WatchResponse{Revision: c.rev, Events: events}) {
						return
					}
				}
			}
			if len(news) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-s.ended:
				return
			}
		}
	}()
	return out
}

// under returns the events of keys with the prefix, sharing the slice when all are.
func under(prefix string, events []lease.Event) []lease.Event {
	n := 0
	for i := range events {
		if strings.HasPrefix(events[i].KV.Key, prefix) {
			n++
		}
	}
	if n == len(events) || n == 0 {
		return events[:n]
	}
	out := make([]lease.Event, 0, n)
	for i := range events {
		if strings.HasPrefix(events[i].KV.Key, prefix) {
			out = append(out, events[i])
		}
	}
	return out
}
