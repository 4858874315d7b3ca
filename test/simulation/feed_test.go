package simulation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// batchBytes is what a batch takes of the budget.
const batchBytes = 1 << 10

// kind is what has to become of a record. It follows from its number, so that
// every reading gives the same.
type kind int

const (
	kindAbsent   kind = iota // the source has no record of this number
	kindBad                  // it cannot be read: dropped by the route's rule
	kindFiltered             // a middleware drops it
	kindRefused              // the sink refuses it: dropped by the route's rule
	kindWritten              // it has to be in the sink, once
)

func kindOf(n int64) kind {
	switch {
	case n%19 == 11:
		return kindAbsent
	case n%23 == 5:
		return kindBad
	case n%7 == 3:
		return kindFiltered
	case n%29 == 8:
		return kindRefused
	}
	return kindWritten
}

// log is one partition of an input: records numbered from 0. It only grows.
type log struct {
	mu      sync.Mutex
	first   int64 // what is below is lost
	end     int64
	settled int64
	grown   chan struct{}
}

func newLog() *log { return &log{grown: make(chan struct{})} }

func (l *log) grow(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end += n
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *log) bounds() (first, end int64, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.end, l.grown
}

// feed is the source of a route, as one process sees it.
type feed struct {
	p *process
	r *simRoute
}

func (f *feed) Partitions(ctx context.Context) ([]connectors.Partition, error) {
	return answer(f.p.caller(ctx, "source list"), func() (out []connectors.Partition, err error) {
		for i := range f.r.logs {
			out = append(out, connectors.Partition{ID: partitionID(i), PartSource: f.r.name, PartNumber: i})
		}
		return out, nil
	})
}

func (f *feed) Identify(ctx context.Context, p connectors.Partition, recorded string) (string, error) {
	return answer(f.p.caller(ctx, "source identify"), func() (string, error) {
		id := f.r.name + "/" + p.ID
		if recorded != "" && recorded != id {
			return "", fmt.Errorf("recorded for %s: %w", recorded, connectors.ErrGap)
		}
		return id, nil
	})
}

func (f *feed) Open(ctx context.Context, claim connectors.Claim) (connectors.Reader, error) {
	i, err := strconv.Atoi(claim.Partition.ID[1:])
	if err != nil {
		return nil, connectors.Permanent(err, "")
	}
	l := f.r.logs[i]
	at, _ := claim.Record.Position.Number()
	err = f.p.call(ctx, "source open", func() error {
		if first, end, _ := l.bounds(); at < first || at > end {
			return fmt.Errorf("position %d, records [%d, %d): %w", at, first, end, connectors.ErrGap)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &reader{f: f, log: l, claim: claim, at: at, size: int(claim.Epoch), pool: message.NewPool(claim.Budget, batchBytes)}, nil
}

func (f *feed) Check(context.Context) error { return nil }
func (f *feed) Close() error                { return nil }

type reader struct {
	f     *feed
	log   *log
	claim connectors.Claim
	at    int64
	pool  *message.Pool
	size  int
}

func position(n int64) message.Position { return message.Position{Sort: message.SortKey(n)} }

// After implements message.Positioner.
func (r *reader) After(m *message.Message) message.Position { return position(m.Next) }

func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	for {
		_, end, grown := r.log.bounds()
		if r.at < end {
			b, err := r.fetch(ctx, end)
			if b != nil || err != nil {
				return b, err
			}
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// fetch reads on to end, or as much as a batch holds.
func (r *reader) fetch(ctx context.Context, end int64) (*message.Batch, error) {
	if err := r.f.p.call(ctx, "source read", func() error { return nil }); err != nil {
		return nil, err
	}
	b, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	r.size = (r.size*7 + 3) % r.claim.Spec.BatchSize // batches of changing sizes
	b.From, b.Positions = position(r.at), r
	for n := 0; r.at < end && n <= r.size; r.at++ {
		switch kindOf(r.at) {
		case kindAbsent:
			continue
		case kindBad:
			bad := connectors.BadRecord{Ordinal: r.at, Place: fmt.Sprintf("%s[%d]", r.claim.Partition.ID, r.at), Err: errors.New("cannot be read")}
			if err := r.claim.Reject(ctx, bad); err != nil {
				b.Release()
				return nil, err
			}
			b.Dropped++
		default:
			b.Append(strconv.AppendInt(nil, r.at, 10), r.at, r.at+1)
		}
		b.Read++
		n++
	}
	b.End = position(r.at)
	return b, nil
}

func (r *reader) Settle(ctx context.Context, p message.Position) error {
	n, _ := p.Number()
	return r.f.p.call(ctx, "source settle", func() error {
		r.f.p.w.ledger.settled(r.claim.Key, n)
		r.log.mu.Lock()
		r.log.settled = max(r.log.settled, n)
		r.log.mu.Unlock()
		return nil
	})
}

func (r *reader) Lag() int64   { return 0 }
func (r *reader) Close() error { return nil }
