package raft

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// newLogger routes the library's log to slog: errors as warnings, the rest at
// debug. What people need to know this package says itself.
//
// Once life has ended all is at debug: connections are closed under what still uses
// them.
func newLogger(life context.Context, log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Off})
	l.RegisterSink(&logSink{life: life, log: log, last: map[string]time.Time{}})
	return l
}

type logSink struct {
	life context.Context
	log  *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time
}

// repeatAfter is how long the same warning stays quiet: a member that is away
// would otherwise be told of several times a second.
const repeatAfter = 10 * time.Second

func (s *logSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Error && s.life.Err() == nil {
		to = slog.LevelWarn
		if !s.due(msg + fmt.Sprint(args[:min(2, len(args))]...)) {
			to = slog.LevelDebug
		}
	}
	if s.log.Enabled(context.Background(), to) {
		s.log.Log(context.Background(), to, "raft: "+msg, args...)
	}
}

func (s *logSink) due(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last[what]) < repeatAfter {
		return false
	}
	if len(s.last) > 100 {
		clear(s.last)
	}
	s.last[what] = now
	return true
}
