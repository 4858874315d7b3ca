// Package logging keeps the logs of the programs readable when one trouble comes
// again and again.
package logging

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Interval is how often a repeated record is shown by the programs.
const Interval = 10 * time.Second

// Suppressed is the attribute that counts the records that were left out since the
// one before.
const Suppressed = "suppressed"

// remembered bounds the kinds of records that are kept apart. One that is forgotten
// is shown the next time, as if it were new.
const remembered = 1024

// Sample returns a handler that passes the first warning or error of a kind on to
// next, and then one in each interval with the count of those left out. A kind is
// a message of one level, with the route, partition and error that it has; numbers
// in the error make no difference, since attempts, offsets and times change with
// each record. Records below warnings all pass. now is the clock; nil takes the time
// of the records themselves. Safe for concurrent use.
func Sample(next slog.Handler, interval time.Duration, now func() time.Time) slog.Handler {
	kinds, err := lru.New[kind, *seen](remembered)
	if err != nil {
		panic(err) // of a size that is no size
	}
	return &sampler{next: next, shared: &shared{interval: interval, now: now, kinds: kinds}}
}

type sampler struct {
	next   slog.Handler
	own    kind // as far as attributes of the logger say
	groups int
	*shared
}

// shared is what the handlers made from one another have in common.
type shared struct {
	interval time.Duration
	now      func() time.Time

	mu    sync.Mutex
	kinds *lru.Cache[kind, *seen]
}

type kind struct {
	level                           slog.Level
	message, route, partition, text string
}

type seen struct {
	shown time.Time
	left  int64
}

// Enabled implements slog.Handler.
func (s *sampler) Enabled(ctx context.Context, level slog.Level) bool {
	return s.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (s *sampler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return s.next.Handle(ctx, r)
	}
	k := s.own
	k.level, k.message = r.Level, r.Message
	if s.groups == 0 {
		r.Attrs(func(a slog.Attr) bool {
			k.add(a)
			return true
		})
	}
	left, show := s.admit(k, r.Time)
	if !show {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64(Suppressed, left))
	}
	return s.next.Handle(ctx, r)
}

func (s *shared) admit(k kind, at time.Time) (left int64, show bool) {
	if s.now != nil {
		at = s.now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.kinds.Get(k)
	if !known {
		s.kinds.Add(k, &seen{shown: at})
		return 0, true
	}
	if at.Sub(before.shown) < s.interval {
		before.left++
		return 0, false
	}
	left = before.left
	before.shown, before.left = at, 0
	return left, true
}

// add notes what an attribute says about the kind.
func (k *kind) add(a slog.Attr) {
	switch a.Key {
	case "route":
		k.route = a.Value.Resolve().String()
	case "partition":
		k.partition = a.Value.Resolve().String()
	case "error":
		k.text = withoutNumbers(a.Value.Resolve().String())
	}
}

// withoutNumbers replaces each run of digits by one sign.
func withoutNumbers(s string) string {
	var b strings.Builder
	number := false
	for _, c := range s {
		digit := c >= '0' && c <= '9'
		switch {
		case !digit:
			b.WriteRune(c)
		case !number:
			b.WriteByte('#')
		}
		number = digit
	}
	return b.String()
}

// WithAttrs implements slog.Handler.
func (s *sampler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *s
	out.next = s.next.WithAttrs(attrs)
	if s.groups == 0 {
		for _, a := range attrs {
			out.own.add(a)
		}
	}
	return &out
}

// WithGroup implements slog.Handler.
func (s *sampler) WithGroup(name string) slog.Handler {
	out := *s
	out.next = s.next.WithGroup(name)
	if name != "" {
		out.groups++
	}
	return &out
}
