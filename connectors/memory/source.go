package memory

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// batchBytes is what one batch takes of the process's budget.
const batchBytes = 256 << 10

type source struct {
	topic *topic
	node  string
	keep  bool
}

// Partitions lists those of this node: another node has a topic of its own under
// the same name.
func (s *source) Partitions(context.Context) ([]connectors.Partition, error) {
	parts := make([]connectors.Partition, len(s.topic.logs))
	for i := range parts {
		parts[i] = connectors.Partition{
			ID:         s.node + "/" + strconv.Itoa(i),
			Node:       s.node,
			Attributes: map[string]string{"partition": strconv.Itoa(i)},
			PartSource: s.topic.name + "-" + s.node,
			PartNumber: i,
		}
	}
	return parts, nil
}

// Identify returns "": a new life of a topic is no other source, it only has
// nothing of the old one.
func (s *source) Identify(context.Context, connectors.Partition, string) (string, error) {
	return "", nil
}

func (s *source) Open(_ context.Context, claim connectors.Claim) (connectors.Reader, error) {
	i, err := strconv.Atoi(claim.Partition.Attributes["partition"])
	if err != nil || i < 0 || i >= len(s.topic.logs) {
		return nil, connectors.Permanent(fmt.Errorf("memory topic %s has no partition %s", s.topic.name, claim.Partition.ID), "")
	}
	l := s.topic.logs[i]
	pos := claim.Record.Position
	n, numbered := pos.Number()
	if !pos.IsZero() && !numbered {
		return nil, connectors.Permanent(fmt.Errorf("memory topic %s: position %q is no record number", s.topic.name, pos.Sort), "")
	}
	r := &reader{source: s, log: l, limit: claim.Spec.BatchSize, drain: claim.Spec.ExitOnEmpty}
	if pos.IsZero() || bytes.Equal(pos.Token, s.topic.instance) {
		first, next := l.resume(n)
		switch {
		case n > next:
			return nil, fmt.Errorf("memory topic %s ends at record %d, before the position %d: %w", s.topic.name, next, n, connectors.ErrGap)
		case n < first && s.keep && !pos.IsZero():
			return nil, fmt.Errorf("memory topic %s begins at record %d, behind the position %d: %w", s.topic.name, first, n, connectors.ErrGap)
		case n < first && !pos.IsZero():
			// What a run took and did not write is gone: without enable_nack the
			// route is at-most-once and says so.
			claim.Log.Warn("records that an earlier run took are lost; enable_nack keeps them", "records", first-n)
		}
		r.at = max(n, first)
	} else {
		r.at = l.rebase(n)
	}
	r.pool = message.NewPool(claim.Budget, batchBytes)
	r.life, r.end = context.WithCancel(context.Background())
	return r, nil
}

func (s *source) Check(context.Context) error { return nil }

func (s *source) Close() error {
	topics.close(s.topic)
	return nil
}

type reader struct {
	source *source
	log    *log
	pool   *message.Pool
	limit  int
	drain  bool
	at     int64 // ordinal of the next record; the reading goroutine's

	life context.Context // ends with Close
	end  context.CancelFunc
}

func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.drain && r.log.lag(r.at) <= 0 {
		return nil, connectors.ErrEndOfInput
	}
	// Room is taken only when there is something to put into it, so that idle
	// readers do not hold the budget.
	if err := r.log.wait(ctx, r.at); err != nil {
		return nil, err
	}
	b, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	b.Positions = r
	b.From = r.position(r.at)
	r.at = r.log.fill(b, r.at, r.limit, batchBytes)
	b.Read = b.Len()
	b.End = r.position(r.at)
	if !r.source.keep {
		r.log.free(r.at)
	}
	return b, nil
}

// After implements message.Positioner.
func (r *reader) After(m *message.Message) message.Position { return r.position(m.Next) }

func (r *reader) position(n int64) message.Position {
	return message.Position{Token: r.source.topic.instance, Sort: message.SortKey(n)}
}

// Settle forgets what is durable elsewhere. A position of another life of the
// topic names none of these records (invariant 2).
func (r *reader) Settle(_ context.Context, p message.Position) error {
	if n, ok := p.Number(); ok && bytes.Equal(p.Token, r.source.topic.instance) {
		r.log.free(n)
	}
	return nil
}

func (r *reader) Lag() int64 {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	return r.log.next - r.log.read
}

func (r *reader) Close() error {
	r.end()
	return nil
}
