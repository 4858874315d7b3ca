package message

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Budget is the one bound on the bytes that batches hold in this process
// (invariant 8): a reader takes room before it reads, Batch.Release gives it
// back, so a slow sink stops its readers. Safe for concurrent use.
type Budget struct {
	size int64
	sem  *semaphore.Weighted

	// Of a share only.
	share  bool
	mu     sync.Mutex
	held   int64
	closed bool
}

// DefaultBudget is the default of --memory: 128 MiB keep two cores busy with
// batches of a quarter MiB and leave a small container alive.
const DefaultBudget = 128 << 20

// NewBudget makes a budget of size bytes.
func NewBudget(size int64) *Budget {
	return &Budget{size: size, sem: semaphore.NewWeighted(size)}
}

// Share is the same budget, lent to one run: Close gives back whatever the run
// still holds. A panic tears batches out of the hands of their owner, and what
// they took would be missing to everybody for ever.
func (g *Budget) Share() *Budget { return &Budget{size: g.size, sem: g.sem, share: true} }

// Close ends a share; nothing read under it may be used any more. Closing the
// budget itself does nothing.
func (g *Budget) Close() {
	if !g.share {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.sem.Release(g.held)
	g.held = 0
}

// took notes n bytes as held by a share; false after Close.
func (g *Budget) took(n int64) bool {
	if !g.share {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.held += n
	return true
}

func (g *Budget) release(n int64) {
	if g.share {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.closed {
			return // Close gave it back
		}
		g.held -= n
	}
	g.sem.Release(n)
}

// Size is the whole budget in bytes.
func (g *Budget) Size() int64 { return g.size }

// Acquire waits until n bytes are free. A request larger than the budget is cut
// to it, so that one huge record can pass alone instead of never. The error is
// the context's, or context.Canceled from a share that was closed.
func (g *Budget) Acquire(ctx context.Context, n int64) (Lease, error) {
	n = min(n, g.size)
	if err := g.sem.Acquire(ctx, n); err != nil {
		return Lease{}, err
	}
	if !g.took(n) {
		g.sem.Release(n)
		return Lease{}, context.Canceled
	}
	return Lease{g: g, n: n}, nil
}

// TryAcquire is Acquire without the wait; ok is false when there is no room now.
func (g *Budget) TryAcquire(n int64) (l Lease, ok bool) {
	if n = min(n, g.size); !g.sem.TryAcquire(n) {
		return Lease{}, false
	}
	if !g.took(n) {
		g.sem.Release(n)
		return Lease{}, false
	}
	return Lease{g: g, n: n}, true
}

// TryAhead is TryAcquire for what is wanted early and not needed yet: it succeeds
// only while a quarter of the budget stays free behind it.
func (g *Budget) TryAhead(n int64) (l Lease, ok bool) {
	spare := g.size / 4
	if !g.sem.TryAcquire(n + spare) {
		return Lease{}, false
	}
	g.sem.Release(spare)
	if !g.took(n) {
		g.sem.Release(n)
		return Lease{}, false
	}
	return Lease{g: g, n: n}, true
}

// Join adds another lease of the same budget to l.
func (l *Lease) Join(other Lease) { l.g, l.n = other.g, l.n+other.n }

// Bytes is the size of the share.
func (l *Lease) Bytes() int64 { return l.n }

// Lease is a share of a Budget, given back once.
type Lease struct {
	g *Budget
	n int64
}

// Release gives the share back. Calling it again does nothing.
func (l *Lease) Release() {
	if l.g != nil && l.n > 0 {
		l.g.release(l.n)
	}
	l.g, l.n = nil, 0
}

// Pool hands out batches against a budget and takes their memory back. Each
// reader has its own pool, so a route with large records does not leave its
// large arenas to the others. Safe for concurrent use.
type Pool struct {
	budget *Budget
	size   int64

	mu   sync.Mutex
	free []*Batch
	keep int
}

// maxFree bounds what an idle pool keeps: one batch being read, one in the
// middleware, one being written, one spare.
const maxFree = 4

// KeepMore lets an idle pool keep n batches more than it does by itself, for a
// reader that reads that many ahead; 0 when it no longer does.
func (p *Pool) KeepMore(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep = n
	if most := maxFree + n; len(p.free) > most {
		clear(p.free[most:])
		p.free = p.free[:most]
	}
}

// NewPool makes a pool whose batches take size bytes of budget each. The arena
// may outgrow that by one record, never by more.
func NewPool(budget *Budget, size int) *Pool {
	return &Pool{budget: budget, size: int64(size)}
}

// Get waits for room in the budget and returns an empty batch.
func (p *Pool) Get(ctx context.Context) (*Batch, error) {
	lease, err := p.budget.Acquire(ctx, p.size)
	if err != nil {
		return nil, err
	}
	return p.batch(lease), nil
}

func (p *Pool) batch(lease Lease) *Batch {
	p.mu.Lock()
	var b *Batch
	if n := len(p.free); n > 0 {
		b, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if b == nil {
		b = &Batch{Arena: make([]byte, 0, p.size)}
	}
	b.reset()
	b.lease, b.pool = lease, p
	return b
}

// TryGet is Get for a batch that is read ahead: it never waits, and it leaves a
// quarter of the budget to those who need room now, so that readers that run
// ahead cannot starve one that has nothing yet (invariant 8). ok is false when
// there is no room.
func (p *Pool) TryGet() (b *Batch, ok bool) {
	lease, ok := p.budget.TryAhead(p.size)
	if !ok {
		return nil, false
	}
	return p.batch(lease), true
}

func (p *Pool) put(b *Batch) {
	// An arena that one huge record blew up is left to the collector.
	if int64(cap(b.Arena)) > 4*p.size {
		return
	}
	b.reset()
	p.mu.Lock()
	if len(p.free) < maxFree+p.keep {
		p.free = append(p.free, b)
	}
	p.mu.Unlock()
}

// NewBatch makes a batch outside any budget or pool, for tests and tools.
func NewBatch() *Batch { return &Batch{} }
