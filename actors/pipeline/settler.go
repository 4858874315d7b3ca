package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// settler tells the source of the durable position, at most once per
// settleInterval, outside the write path. It only ever sees positions that a
// committer made durable (invariant 2).
type settler struct {
	mu      sync.Mutex
	pos     message.Position
	pending bool
	wake    chan struct{} // of one slot
	failing bool          // the last call failed; who calls, calls alone
}

// durable notes p as durable.
func (s *settler) durable(p message.Position) {
	s.mu.Lock()
	s.pos, s.pending = p, true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *settler) take() (message.Position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pos, s.pending
	s.pending = false
	return p, ok
}

// again notes p as not told after all, unless a later one waits by now.
func (s *settler) again(p message.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.pending {
		s.pos, s.pending = p, true
	}
}

func (s *settler) loop(ctx context.Context, r connectors.Reader, log *slog.Logger) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		if !s.last(ctx, r, log) {
			select {
			case s.wake <- struct{}{}:
			default:
			}
		}
		t := time.NewTimer(settleInterval)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// last settles what is pending, once, and reports whether nothing is left. After
// an error, of which the first in a row is logged, and after a call that the end of
// the run cut off, the position is pending still; the source loses nothing by knowing less.
func (s *settler) last(ctx context.Context, r connectors.Reader, log *slog.Logger) bool {
	p, ok := s.take()
	if !ok {
		return true
	}
	try, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := r.Settle(try, p)
	if err == nil {
		s.failing = false
		return true
	}
	s.again(p)
	if ctx.Err() == nil && !s.failing {
		s.failing = true
		log.Warn("source not told of the durable position, will try again", "error", err)
	}
	return false
}
