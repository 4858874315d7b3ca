package raft

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// lessor is the leader's clock of leases. It decides that a lease is over and
// proposes that; the entry in the log is what ends it. Each new leader starts all
// times anew, since how much of them was left nobody else knows.
type lessor struct {
	store *kv.Store
	// expire proposes the end of a lease and reports whether it is sure that the
	// proposal will never be applied.
	expire func(lease.LeaseID) (surelyNot bool)

	mu     sync.Mutex
	term   uint64 // 0 while not leading
	leases map[lease.LeaseID]*running
	wg     sync.WaitGroup
}

type running struct {
	ttl      time.Duration
	deadline time.Time
	timer    *time.Timer
	ending   bool // its end is proposed: a keepalive can no longer save it
}

// start begins to lead: every entry of earlier terms has been applied.
func (l *lessor) start(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
	l.term, l.leases = term, map[lease.LeaseID]*running{}
	for id, ttl := range l.store.Leases() {
		l.add(id, ttl)
	}
}

// stop ends leading.
func (l *lessor) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
}

func (l *lessor) reset() {
	for _, r := range l.leases {
		r.timer.Stop()
	}
	l.term, l.leases = 0, nil
}

// add starts a lease's time, under l.mu.
func (l *lessor) add(id lease.LeaseID, ttl time.Duration) {
	if l.term == 0 || l.leases[id] != nil {
		return
	}
	term := l.term
	l.leases[id] = &running{ttl: ttl, deadline: time.Now().Add(ttl), timer: time.AfterFunc(ttl, func() { l.fire(term, id) })}
}

// granted and revoked are called when an entry has been applied.
func (l *lessor) granted(o kv.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ttl, ok := l.store.TTL(o.Lease); ok {
		l.add(o.Lease, ttl)
	}
}

func (l *lessor) revoked(id lease.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.leases[id]; r != nil {
		r.timer.Stop()
		delete(l.leases, id)
	}
}

var errEnding = errors.New("raft: lease is being ended")

// renew restarts a lease's time. term is the one in which the caller confirmed
// that this member leads.
func (l *lessor) renew(term uint64, id lease.LeaseID) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != term {
		return 0, errNotLeader
	}
	r := l.leases[id]
	if r == nil {
		return 0, lease.ErrLeaseNotFound
	}
	if r.ending {
		return 0, errEnding
	}
	r.deadline = time.Now().Add(r.ttl)
	r.timer.Reset(r.ttl)
	return r.ttl, nil
}

// fire is a lease's timer.
func (l *lessor) fire(term uint64, id lease.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.leases[id]
	if l.term != term || r == nil || r.ending {
		return
	}
	if left := time.Until(r.deadline); left > 0 {
		r.timer.Reset(left)
		return
	}
	r.ending = true
	l.wg.Go(func() {
		if !l.expire(id) {
			return // it is applied, or this term is over
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.term == term && l.leases[id] == r {
			r.ending = false
			r.timer.Reset(100 * time.Millisecond)
		}
	})
}

// confirmer proves that this member still leads, for many callers at once: a
// caller joins a round that begins after it came, never one under way.
type confirmer struct {
	prove func() (term uint64, err error)
	// spawn starts a goroutine unless the member closes.
	spawn func(func()) bool

	mu      sync.Mutex
	next    *round
	running bool
}

type round struct {
	done chan struct{}
	term uint64
	err  error
}

// confirm returns the term in which this member led at some time after the call.
func (c *confirmer) confirm(ctx context.Context) (uint64, error) {
	c.mu.Lock()
	if c.next == nil {
		if !c.running {
			if !c.spawn(c.run) {
				c.mu.Unlock()
				return 0, errNotLeader
			}
			c.running = true
		}
		c.next = &round{done: make(chan struct{})}
	}
	r := c.next
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.term, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *confirmer) run() {
	for {
		c.mu.Lock()
		r := c.next
		c.next = nil
		if r == nil {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		r.term, r.err = c.prove()
		close(r.done)
	}
}
