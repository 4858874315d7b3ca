// Package memory is a coordinator inside one process, for tests and simulation.
// Its clock is package time's, so that a testing/synctest bubble drives leases;
// each Client of a Store stands for one node's connection and can be cut off or
// made to lose replies.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// Options configures a Store.
type Options struct {
	// History bounds what watches are served from.
	History kv.Options
}

// Store is the shared state behind any number of clients.
type Store struct {
	kv *kv.Store

	mu     sync.Mutex
	leases map[lease.LeaseID]*running
	closed bool
}

// running is a lease whose time runs.
type running struct {
	ttl      time.Duration
	deadline time.Time
	timer    *time.Timer
}

// NewStore returns an empty store. Close it when its clients are done.
func NewStore(o Options) *Store {
	return &Store{kv: kv.New(o.History), leases: map[lease.LeaseID]*running{}}
}

// New returns one client with a store of its own; closing it closes both.
func New() *Client {
	c := NewStore(Options{}).Client()
	c.owns = true
	return c
}

// Client returns a new connection to the store.
func (s *Store) Client() *Client {
	return &Client{store: s, closed: make(chan struct{}), up: closedChannel()}
}

// Close ends all watches and stops all leases' clocks.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, l := range s.leases {
		l.timer.Stop()
	}
	s.kv.Close()
	return nil
}

func (s *Store) grant(ttl time.Duration) (lease.LeaseID, error) {
	if ttl <= 0 {
		return 0, fmt.Errorf("memory: lease of %v", ttl)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, lease.ErrClosed
	}
	id := s.kv.Grant(ttl)
	s.leases[id] = &running{
		ttl:      ttl,
		deadline: time.Now().Add(ttl),
		timer:    time.AfterFunc(ttl, func() { s.expire(id) }),
	}
	return id, nil
}

func (s *Store) keepAlive(id lease.LeaseID) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		return 0, lease.ErrLeaseNotFound
	}
	l.deadline = time.Now().Add(l.ttl)
	l.timer.Reset(l.ttl)
	return l.ttl, nil
}

func (s *Store) revoke(id lease.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil {
		l.timer.Stop()
		delete(s.leases, id)
	}
	s.kv.Revoke(id)
}

// expire is the timer's: a keepalive that came in between has moved the deadline.
func (s *Store) expire(id lease.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if s.closed || l == nil || time.Now().Before(l.deadline) {
		return
	}
	delete(s.leases, id)
	s.kv.Revoke(id)
}

// Fault is what happens to one call of a client.
type Fault uint8

const (
	// FaultNone lets the call through.
	FaultNone Fault = iota
	// FaultRefuse fails the call before it had an effect.
	FaultRefuse
	// FaultLoseReply lets the call take effect and then fails it.
	FaultLoseReply
)

// Client is one connection. It implements lease.Coordinator.
type Client struct {
	store *Store
	owns  bool

	mu       sync.Mutex
	up       chan struct{} // closed while available
	down     bool
	fault    func(call string) Fault
	isClosed bool
	closed   chan struct{}
}

var _ lease.Coordinator = (*Client)(nil)

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// SetAvailable cuts the client off (false) or connects it again. While it is
// cut off every call returns ErrUnavailable and watches are silent.
func (c *Client) SetAvailable(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case up && c.down:
		c.down = false
		close(c.up)
	case !up && !c.down:
		c.down = true
		c.up = make(chan struct{})
	}
}

// SetFault installs a decision per call; the call is named "get", "list", "txn",
// "grant", "keepalive" or "revoke". nil removes it.
func (c *Client) SetFault(f func(call string) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// begin decides whether a call goes through, and returns what to fail it with
// after it took effect.
func (c *Client) begin(ctx context.Context, call string) (after, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", call, lease.ErrUnavailable, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, lease.ErrClosed
	}
	fault := FaultNone
	if c.fault != nil {
		fault = c.fault(call)
	}
	if c.down {
		fault = FaultRefuse
	}
	switch fault {
	case FaultRefuse:
		return nil, fmt.Errorf("%s: %w", call, lease.ErrUnavailable)
	case FaultLoseReply:
		return fmt.Errorf("%s: reply lost: %w", call, lease.ErrUnavailable), nil
	}
	return nil, nil
}

func (c *Client) Get(ctx context.Context, key string) (*lease.KV, int64, error) {
	after, err := c.begin(ctx, "get")
	if err = first(err, after); err != nil {
		return nil, 0, err
	}
	kv, rev := c.store.kv.Get(key)
	return kv, rev, nil
}

func (c *Client) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	after, err := c.begin(ctx, "list")
	if err = first(err, after); err != nil {
		return nil, 0, err
	}
	kvs, rev := c.store.kv.List(prefix)
	return kvs, rev, nil
}

func (c *Client) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	after, err := c.begin(ctx, "txn")
	if err != nil {
		return lease.Result{}, err
	}
	r, err := c.store.kv.Txn(compares, ops)
	if err = first(after, err); err != nil {
		return lease.Result{}, err
	}
	return r, nil
}

func (c *Client) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	after, err := c.begin(ctx, "grant")
	if err != nil {
		return 0, err
	}
	id, err := c.store.grant(ttl)
	if err = first(after, err); err != nil {
		return 0, err
	}
	return id, nil
}

func (c *Client) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	after, err := c.begin(ctx, "keepalive")
	if err != nil {
		return 0, err
	}
	ttl, err := c.store.keepAlive(id)
	if err = first(after, err); err != nil {
		return 0, err
	}
	return ttl, nil
}

func (c *Client) Revoke(ctx context.Context, id lease.LeaseID) error {
	after, err := c.begin(ctx, "revoke")
	if err != nil {
		return err
	}
	c.store.revoke(id)
	return after
}

// Watch streams changes; while the client is cut off it stays silent, and goes
// on without a gap (or with ErrCompacted) afterwards.
func (c *Client) Watch(ctx context.Context, prefix string, from int64) <-chan lease.WatchResponse {
	ctx, cancel := context.WithCancel(ctx)
	in := c.store.kv.Watch(ctx, prefix, from)
	out := make(chan lease.WatchResponse)
	go func() {
		defer close(out)
		defer cancel()
		for {
			var r lease.WatchResponse
			var ok bool
			select {
			case r, ok = <-in:
			case <-c.closed:
			}
			if !ok {
				return
			}
			c.mu.Lock()
			up := c.up
			c.mu.Unlock()
			select {
			case <-up:
			case <-ctx.Done():
				return
			case <-c.closed:
				return
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			case <-c.closed:
				return
			}
		}
	}()
	return out
}

// Close ends the client's watches; its later calls return ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil
	}
	c.isClosed = true
	close(c.closed)
	if c.owns {
		return c.store.Close()
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
