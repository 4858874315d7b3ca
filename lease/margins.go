package lease

import "time"

// Margins are a session's times, for people to judge them.
type Margins struct {
	TTL, Margin, Interval, TryTimeout time.Duration
	// Left is the time until the gate closes if no keepalive comes through; 0
	// while it is closed.
	Left time.Duration
}

// Margins returns the session's times as they are now.
func (s *Session) Margins() Margins {
	m := Margins{TTL: s.o.TTL, Margin: s.o.Margin, Interval: s.o.Interval, TryTimeout: s.o.TryTimeout}
	if h := s.held.Load(); h.id != 0 {
		m.Left = max(0, h.deadline-s.o.Now())
	}
	return m
}
