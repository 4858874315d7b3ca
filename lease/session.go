package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mqbridge/mqb/hook"
)

// MinTTL is the shortest lease a session takes: below it, a short pause of the
// process or of the coordinator's leader would end leases for nothing.
const MinTTL = 2 * time.Second

// SessionOptions configures a Session.
type SessionOptions struct {
	// TTL of the node's lease, at least MinTTL; default 3 s.
	TTL time.Duration
	// Margin is how long before the lease can end the gate closes; default TTL/5.
	Margin time.Duration
	// Interval is the pace of keepalives; default TTL/5.
	Interval time.Duration
	// TryTimeout bounds one call to the coordinator; default 70 % of Interval.
	TryTimeout time.Duration
	// Now is a clock that never stops; default Boottime. A simulation injects
	// its own.
	Now func() time.Duration
	// Register writes what the node keeps under its lease (its Node key). It is
	// called once for each new lease, before the gate opens on it, with at most
	// TTL/2 of time; an error is retried, ErrLeaseNotFound after a new grant.
	Register func(ctx context.Context, id LeaseID) error
	// Log defaults to slog.Default().
	Log *slog.Logger
}

func (o *SessionOptions) defaults() error {
	if o.TTL == 0 {
		o.TTL = 3 * time.Second
	}
	if o.TTL < MinTTL {
		return fmt.Errorf("lease: a TTL of %v is below the minimum of %v", o.TTL, MinTTL)
	}
	if o.Margin == 0 {
		o.Margin = o.TTL / 5
	}
	if o.Interval == 0 {
		o.Interval = o.TTL / 5
	}
	if o.TryTimeout == 0 {
		o.TryTimeout = o.Interval * 7 / 10
	}
	if o.Margin+o.Interval >= o.TTL {
		return fmt.Errorf("lease: margin %v and keepalive interval %v leave nothing of a TTL of %v", o.Margin, o.Interval, o.TTL)
	}
	if o.Now == nil {
		o.Now = Boottime
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return nil
}

// Session holds a node's one lease and answers whether it is provably alive: the
// gate that every write of the node passes. Safe for concurrent use.
type Session struct {
	c Coordinator
	o SessionOptions

	// held is what Gate reads: replaced as a whole, never changed.
	held atomic.Pointer[held]

	mu      sync.Mutex
	open    bool // as last announced through changed
	changed chan struct{}
	timer   *time.Timer
	stop    context.CancelFunc // of Run
	done    chan struct{}      // closed when Run has returned
	closed  bool
}

// held is a lease that was granted and registered.
type held struct {
	id         LeaseID
	generation uint64
	// deadline is when the gate closes: the time before the last successful
	// keepalive (or the grant) was sent, plus TTL, minus margin. The coordinator
	// started its TTL later than that, so the lease outlives the deadline.
	deadline time.Duration
}

// NewSession returns a session whose gate is closed until Run has a lease.
func NewSession(c Coordinator, o SessionOptions) (*Session, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	s := &Session{c: c, o: o, changed: make(chan struct{})}
	s.held.Store(&held{})
	return s, nil
}

// Gate returns nil while the lease is provably alive, else ErrGateClosed. It
// reads the clock at each call, so a process that wakes from a stop finds it
// closed without any timer having run. It costs one clock reading.
func (s *Session) Gate() error {
	if h := s.held.Load(); s.alive(h) || hook.Disabled("gate") {
		return nil
	}
	return ErrGateClosed
}

// GateOf is Gate for a run that began under generation: it stays closed once
// another lease has taken that one's place, since what the run owned went with it.
func (s *Session) GateOf(generation uint64) error {
	if h := s.held.Load(); h.generation == generation && s.alive(h) || hook.Disabled("gate") {
		return nil
	}
	return ErrGateClosed
}

func (s *Session) alive(h *held) bool { return h.id != 0 && s.o.Now() < h.deadline }

// Lease is the current lease, 0 before the first. It may have ended: see Gate.
func (s *Session) Lease() LeaseID { return s.held.Load().id }

// Generation rises by one with each new lease.
func (s *Session) Generation() uint64 { return s.held.Load().generation }

// Changed returns a channel that is closed when the gate opens or closes or a
// new lease takes the old one's place. Take the channel first, then look.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Run grants the lease, keeps it alive and replaces it when it is gone, until
// ctx ends or Close is called. It returns ctx's error, or nil after Close. It is
// called once. When it returns the lease is left to Close or to its TTL.
func (s *Session) Run(ctx context.Context) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.closed || s.done != nil {
		s.mu.Unlock()
		return errors.New("lease: session was run or closed before")
	}
	s.stop, s.done = cancel, make(chan struct{})
	defer close(s.done)
	s.mu.Unlock()

	for ctx.Err() == nil {
		id, sent, ok := s.grant(ctx)
		if ok && s.register(ctx, id) {
			s.install(&held{id: id, generation: s.Generation() + 1, deadline: s.deadline(sent)})
			s.keepAlive(ctx, id, sent)
		} else if ok {
			// Without its registration the lease is of no use to anybody.
			s.revoke(ctx, id)
			wait(ctx, s.o.Interval)
		}
	}
	return outer.Err()
}

func (s *Session) deadline(sent time.Duration) time.Duration { return sent + s.o.TTL - s.o.Margin }

// retry returns the pauses between tries that fail at once.
func (s *Session) retry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = s.o.Interval / 16
	b.MaxInterval = s.o.Interval
	return b
}

// grant asks for a lease until there is one or ctx ends.
func (s *Session) grant(ctx context.Context) (id LeaseID, sent time.Duration, ok bool) {
	pause := s.retry()
	for ctx.Err() == nil {
		sent = s.o.Now()
		try, cancel := context.WithTimeout(ctx, s.o.TryTimeout)
		id, err := s.c.Grant(try, s.o.TTL)
		cancel()
		if err == nil {
			return id, sent, true
		}
		if ctx.Err() == nil {
			s.o.Log.Debug("lease not granted", "error", err)
		}
		wait(ctx, pause.NextBackOff())
	}
	return 0, 0, false
}

// register reports whether Register succeeded within its time.
func (s *Session) register(ctx context.Context, id LeaseID) bool {
	if s.o.Register == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.TTL/2)
	defer cancel()
	pause := s.retry()
	for {
		err := s.o.Register(ctx, id)
		if err == nil {
			return true
		}
		if errors.Is(err, ErrLeaseNotFound) || !wait(ctx, pause.NextBackOff()) {
			s.o.Log.Warn("node not registered under its lease, will try a new one", "error", err)
			return false
		}
	}
}

// revoke tries once; what is left of the lease its TTL ends.
func (s *Session) revoke(ctx context.Context, id LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, s.o.TryTimeout)
	defer cancel()
	if err := s.c.Revoke(ctx, id); err != nil {
		s.o.Log.Debug("lease not revoked", "lease", id, "error", err)
	}
}

// keepAlive keeps the lease, granted by a request sent at sent, until it is gone
// or ctx ends.
func (s *Session) keepAlive(ctx context.Context, id LeaseID, sent time.Duration) {
	pause := s.retry()
	next := max(0, s.o.Interval-(s.o.Now()-sent))
	for wait(ctx, next) {
		sent := s.o.Now() // before the request: the anchor of the gate
		try, cancel := context.WithTimeout(ctx, s.o.TryTimeout)
		_, err := s.c.KeepAlive(try, id)
		cancel()
		switch {
		case err == nil:
			h := s.held.Load()
			s.install(&held{id: id, generation: h.generation, deadline: s.deadline(sent)})
			pause.Reset()
			next = max(0, s.o.Interval-(s.o.Now()-sent))
		case errors.Is(err, ErrLeaseNotFound):
			h := s.held.Load()
			s.install(&held{generation: h.generation})
			s.o.Log.Warn("the node's lease ended", "lease", id)
			return
		default:
			if ctx.Err() == nil {
				s.o.Log.Debug("lease not kept alive", "lease", id, "error", err)
			}
			next = pause.NextBackOff()
		}
	}
}

// wait reports whether it waited d out.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// install makes h current and announces what changed by it.
func (s *Session) install(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	fresh := s.held.Load().generation != h.generation
	s.held.Store(h)
	s.observe(fresh)
}

// observe announces a transition of the gate and arms the timer for the next
// closing. Called under s.mu.
func (s *Session) observe(fresh bool) {
	h := s.held.Load()
	now := s.o.Now()
	open := h.id != 0 && now < h.deadline
	if open != s.open || fresh {
		switch {
		case open && fresh:
			s.o.Log.Debug("gate open on a new lease", "lease", h.id)
		case open:
			s.o.Log.Info("gate open again", "lease", h.id)
		default:
			s.o.Log.Warn("gate closed: the lease cannot be proven alive", "lease", h.id)
		}
		s.open = open
		close(s.changed)
		s.changed = make(chan struct{})
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if open {
		s.timer = time.AfterFunc(h.deadline-now, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.closed {
				s.observe(false)
			}
		})
	}
}

// Close closes the gate for good, ends Run and revokes the lease, which deletes
// everything bound to it. An error of the revocation is harmless: the TTL does it.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	h := s.held.Load()
	s.held.Store(&held{generation: h.generation})
	s.closed, s.open = true, false
	close(s.changed)
	s.changed = make(chan struct{})
	if s.timer != nil {
		s.timer.Stop()
	}
	stop, done := s.stop, s.done
	s.mu.Unlock()
	if done != nil {
		stop()
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	if h.id == 0 {
		return nil
	}
	if err := s.c.Revoke(ctx, h.id); err != nil {
		return fmt.Errorf("lease: revoke %d: %w", h.id, err)
	}
	return nil
}
