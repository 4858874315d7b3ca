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
	wake    chan struct{}
}

// durable notes p as durable.
func (s *settler) durable(p message.Position) {
	s.mu.Lock()
	s.pos, s.pending = p, true
	if s.wake != nil {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
}

func (s *settler) take() (message.Position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pos, s.pending
	s.pending = false
	return p, ok
}

func (s *settler) loop(ctx context.Context, r connectors.Reader, log *slog.Logger) {
	wake := make(chan struct{}, 1)
	s.mu.Lock()
	s.wake = wake
	s.mu.Unlock()
	for {
		select {
		case <-wake:
		case <-ctx.Done():
			return
		}
		s.last(ctx, r, log)
		t := time.NewTimer(settleInterval)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// last settles what is pending, once. An error is logged: the source learns of a
// later position with the next one, and loses nothing by knowing less.
func (s *settler) last(ctx context.Context, r connectors.Reader, log *slog.Logger) {
	p, ok := s.take()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.Settle(ctx, p); err != nil && ctx.Err() == nil {
		log.Warn("source not told of the durable position; it is told with the next one", "error", err)
	}
}
