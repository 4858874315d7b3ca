package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// bucket is a T2 sink: parts that are created if their name is absent.
type bucket struct {
	w *world

	mu    sync.Mutex
	parts map[string]part             // by name
	in    map[string]map[int64]string // by partition: in which part a record is
}

type part struct {
	partition   string
	first, last int64
	records     []int64
}

func newBucket(w *world) *bucket {
	return &bucket{w: w, parts: map[string]part{}, in: map[string]map[int64]string{}}
}

// create is where exactly-once is decided: a part under a new name must not hold
// a record that another one has.
func (b *bucket) create(name string, p part) (created bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.parts[name]; there {
		return false
	}
	b.parts[name] = p
	if b.in[p.partition] == nil {
		b.in[p.partition] = map[int64]string{}
	}
	last := int64(-1)
	for _, n := range p.records {
		if other, twice := b.in[p.partition][n]; twice {
			b.w.failf("record %d of %s is in %s and in %s", n, p.partition, other, name)
		}
		if n <= last || n < p.first || n > p.last {
			b.w.failf("part %s holds record %d behind %d", name, n, last)
		}
		b.in[p.partition][n], last = name, n
	}
	return true
}

func (b *bucket) has(partition string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.in[partition][n]
	return ok
}

func (b *bucket) count(partition string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.in[partition])
}

// bucketSink is the sink of a process.
type bucketSink struct {
	p *process
	b *bucket
}

func (s *bucketSink) Check(context.Context) error { return nil }
func (s *bucketSink) Close() error                { return nil }

func (s *bucketSink) Prepare(ctx context.Context, _ connectors.Partition) (connectors.Prepared, error) {
	err := s.p.call(ctx, "bucket prepare", func() error { return nil })
	return &bucketPrepared{s}, err
}

type bucketPrepared struct{ s *bucketSink }

func (p *bucketPrepared) Session() string { return "" }
func (p *bucketPrepared) Close() error    { return nil }

// Open looks at the parts as a part sink has to: one beyond the position that
// nobody promised says that the record went back (invariant 10).
func (p *bucketPrepared) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	w := &partWriter{s: p.s, claim: claim, sealed: map[string]part{}}
	at, _ := claim.Record.Position.Number()
	err := p.s.p.call(ctx, "bucket list", func() error {
		b := p.s.b
		b.mu.Lock()
		defer b.mu.Unlock()
		for name, part := range b.parts {
			if part.partition != claim.Partition.ID || part.last < at {
				continue
			}
			if in := claim.Record.Intents; len(in) == 0 || in[0].Name != name {
				return fmt.Errorf("%w: part %s is beyond position %d", checkpoint.ErrRegressed, name, at)
			}
		}
		return nil
	})
	return w, err
}

// partWriter spools in memory. What a zombie has sealed is its own.
type partWriter struct {
	s     *bucketSink
	claim connectors.Claim

	open  []int64
	bytes int64

	mu     sync.Mutex
	sealed map[string]part
}

func (x *partWriter) Close() error { return nil }

func (x *partWriter) Abort() error {
	x.open, x.bytes = nil, 0
	return nil
}

func (x *partWriter) Stage(_ context.Context, b *message.Batch, i, j int) error {
	if err := refused(b, i, j); err != nil {
		return err
	}
	for ; i < j; i++ {
		x.open = append(x.open, b.Msg(i).Ordinal)
		x.bytes += int64(len(b.Payload(i))) + 1
	}
	return nil
}

// refused names the records that a sink does not take.
func refused(b *message.Batch, i, j int) error {
	var bad connectors.RowsError
	for ; i < j; i++ {
		if kindOf(b.Msg(i).Ordinal) == kindRefused {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: errors.New("refused")})
		}
	}
	if bad.Rows != nil {
		return &bad
	}
	return nil
}

func (x *partWriter) OpenPart() (records, bytes int64) { return int64(len(x.open)), x.bytes }

func (x *partWriter) Seal(_ context.Context, from, end message.Position, name string) (checkpoint.Intent, error) {
	first, _ := from.Number()
	last, _ := end.Number()
	last--
	if name == "" {
		name = fmt.Sprintf("part-%s-%06d-%06d", x.claim.Partition.ID, first, last)
	}
	h := crc32.NewIEEE()
	for _, n := range x.open {
		_, _ = h.Write(strconv.AppendInt(nil, n, 10))
	}
	in := checkpoint.Intent{From: from, End: end, First: first, Last: last, Name: name, Records: int64(len(x.open)), Bytes: x.bytes,
		Digest: fmt.Sprintf("crc32:%08x", h.Sum32())}
	x.mu.Lock()
	x.sealed[name] = part{partition: x.claim.Partition.ID, first: first, last: last, records: x.open}
	x.mu.Unlock()
	x.open, x.bytes = nil, 0
	return in, nil
}

func (x *partWriter) Publish(ctx context.Context, in checkpoint.Intent) error {
	if err := x.claim.Gate(); err != nil {
		return err
	}
	x.s.p.w.ledger.open(x.s.p)
	x.mu.Lock()
	p := x.sealed[in.Name]
	x.mu.Unlock()
	return x.s.p.call(ctx, "bucket create", func() error {
		// Under the ledger's lock nobody moves the record meanwhile.
		if !x.s.b.exists(in.Name) {
			x.s.p.w.ledger.promised(x.claim.Key, x.claim.Epoch, in.Name)
		}
		x.s.b.create(in.Name, p)
		return nil
	})
}

func (b *bucket) exists(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, there := b.parts[name]
	return there
}

func (x *partWriter) Exists(ctx context.Context, in checkpoint.Intent) (bool, error) {
	return answer(x.s.p.caller(ctx, "bucket head"), func() (bool, error) { return x.s.b.exists(in.Name), nil })
}

func (x *partWriter) Covered() []connectors.Range { return nil }
