package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// endPoll is how often an input at its end is asked again.
const endPoll = 100 * time.Millisecond

// bounds end a copy: before its input does, with it, or after it. They serve the
// sources of one process.
type bounds struct {
	// limit is the most records, 0 for all of them.
	limit int64
	// wait is how long an input may be silent; 0 means that drain decides.
	wait time.Duration
	// drain: the end of the input is the end of the copy.
	drain bool

	mu    sync.Mutex
	left  int64
	spent chan struct{} // closed while nothing is left
	taken map[string][]span
}

// span are records that were handed on and may not be durable yet: count of them
// with ordinals first to last.
type span struct{ first, last, count int64 }

func newBounds(limit int64, wait time.Duration, drain bool) *bounds {
	return &bounds{limit: limit, wait: wait, drain: drain, left: limit, spent: make(chan struct{}), taken: map[string][]span{}}
}

// sources wraps the constructor of a source. The route ends at the end of its
// input; the source below it is told what the user said.
func (b *bounds) sources(build connectors.NewSource) connectors.NewSource {
	return func(config any, spec *route.Spec, env connectors.Env) (connectors.Source, error) {
		s, err := build(config, b.below(spec), env)
		if err != nil {
			return nil, err
		}
		return &boundedSource{Source: s, bounds: b}, nil
	}
}

func (b *bounds) below(spec *route.Spec) *route.Spec {
	below := *spec
	below.ExitOnEmpty = b.drain
	return &below
}

// take allows up to n records of a partition.
func (b *bounds) take(n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit == 0 {
		return n
	}
	n = min(n, b.left)
	b.left -= n
	if b.left == 0 {
		select {
		case <-b.spent:
		default:
			close(b.spent)
		}
	}
	return n
}

func (b *bounds) over() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent
}

func (b *bounds) took(partition string, s span) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 {
		b.taken[partition] = append(b.taken[partition], s)
	}
}

// durable forgets records before p. The others are given back with again, since a
// run that starts there reads them once more.
func (b *bounds) durable(partition string, p message.Position, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, ok := p.Number()
	if !ok && !p.IsZero() {
		return
	}
	var rest []span
	for _, s := range b.taken[partition] {
		if s.last < n {
			continue
		}
		if s.first < n {
			// Ordinals inside a span have no gaps that matter: spans are cut at them.
			s.count, s.first = s.last-n+1, n
		}
		rest = append(rest, s)
	}
	if !again {
		b.taken[partition] = rest
		return
	}
	delete(b.taken, partition)
	spent := b.limit > 0 && b.left == 0
	for _, s := range rest {
		b.left += s.count
	}
	if spent && b.left > 0 {
		b.spent = make(chan struct{})
	}
}

type boundedSource struct {
	connectors.Source
	bounds *bounds
}

// Open implements connectors.Source.
func (s *boundedSource) Open(ctx context.Context, claim connectors.Claim) (connectors.Reader, error) {
	s.bounds.durable(claim.Partition.ID, claim.Record.Position, true)
	claim.Spec = s.bounds.below(claim.Spec)
	// A copy that ends has to begin somewhere: where an input has no place of its
	// own to go on at, that is its beginning, not what comes from now on.
	claim.Late = true
	r, err := s.Source.Open(ctx, claim)
	if err != nil || s.bounds.limit == 0 && s.bounds.wait == 0 {
		return r, err
	}
	return &boundedReader{Reader: r, bounds: s.bounds, partition: claim.Partition.ID}, nil
}

type boundedReader struct {
	connectors.Reader
	bounds    *bounds
	partition string
	// cut: records were read and not handed on, so that nothing behind them is.
	cut bool
}

// Read implements connectors.Reader.
func (r *boundedReader) Read(ctx context.Context) (*message.Batch, error) {
	if r.cut {
		return nil, connectors.ErrEndOfInput
	}
	spent := r.bounds.over()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	if r.bounds.wait > 0 {
		reading, stop = context.WithTimeout(reading, r.bounds.wait)
		defer stop()
	}
	go stopWith(reading, spent, stop)
	for {
		select {
		case <-spent:
			return nil, connectors.ErrEndOfInput
		default:
		}
		b, err := r.Reader.Read(reading)
		switch {
		case err == nil:
			return r.bound(b)
		case ctx.Err() != nil:
			return nil, err
		case reading.Err() != nil:
			return nil, connectors.ErrEndOfInput
		case !errors.Is(err, connectors.ErrEndOfInput), r.bounds.drain && r.bounds.wait == 0:
			return nil, err
		}
		t := time.NewTimer(endPoll)
		select {
		case <-t.C:
		case <-reading.Done():
			t.Stop()
		}
	}
}

// stopWith calls stop when spent is closed, unless ctx ends first.
func stopWith(ctx context.Context, spent <-chan struct{}, stop context.CancelFunc) {
	select {
	case <-spent:
		stop()
	case <-ctx.Done():
	}
}

// bound cuts a batch to what the limit has left. The position after it is right
// behind the last record of it.
func (r *boundedReader) bound(b *message.Batch) (*message.Batch, error) {
	n := int(r.bounds.take(int64(b.Len())))
	if n < b.Len() {
		r.cut = true
		b.CutBefore(n)
		if n == 0 {
			b.Release()
			return nil, connectors.ErrEndOfInput
		}
	}
	for i := 0; i < n; {
		s := span{first: b.Msg(i).Ordinal, last: b.Msg(i).Ordinal, count: 1}
		for i++; i < n && b.Msg(i).Ordinal == s.last+1; i++ {
			s.last++
			s.count++
		}
		r.bounds.took(r.partition, s)
	}
	return b, nil
}

// Settle implements connectors.Reader.
func (r *boundedReader) Settle(ctx context.Context, p message.Position) error {
	r.bounds.durable(r.partition, p, false)
	return r.Reader.Settle(ctx, p)
}
