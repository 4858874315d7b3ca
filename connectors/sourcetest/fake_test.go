package sourcetest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// data is a source of numbered records in memory that can do everything the
// suite asks for, and each of its faults on demand. It exists to see the suite
// pass and turn red.
type data struct {
	fault string
	ends  bool

	mu      sync.Mutex
	changed chan struct{}
	id      string
	good    int
	rows    []row // rows[i] has the ordinal i
	lost    int   // rows below are gone
	opens   int
}

type row struct {
	n   int // record number; bad rows have none
	bad bool
}

func newData(fault string, ends bool) *data {
	return &data{fault: fault, ends: ends, changed: make(chan struct{}), id: "one"}
}

func payload(i int) []byte { return fmt.Appendf(nil, `{"n":%d,"pad":"%0100d"}`, i, i) }

func (d *data) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *data) append(n int) {
	d.change(func() {
		for range n {
			d.rows = append(d.rows, row{n: d.good})
			d.good++
		}
	})
}

// place is the ordinal of record number n, which is the number of rows if it is beyond.
func (d *data) place(n int) int {
	if i := slices.IndexFunc(d.rows, func(r row) bool { return !r.bad && r.n >= n }); i >= 0 {
		return i
	}
	return len(d.rows)
}

func (d *data) Partitions(context.Context) ([]connectors.Partition, error) {
	id := "p"
	d.opens++
	if d.fault == "partition id changes" {
		id = fmt.Sprint("p", d.opens)
	}
	return []connectors.Partition{{ID: id}}, nil
}

func (d *data) Identify(_ context.Context, _ connectors.Partition, recorded string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "identity changes" {
		return fmt.Sprint(recorded, "x"), nil
	}
	if recorded != "" && recorded != d.id && d.fault != "replacement ignored" {
		return "", checkpoint.ErrForeign
	}
	return d.id, nil
}

func (d *data) Open(_ context.Context, claim connectors.Claim) (connectors.Reader, error) {
	n, _ := claim.Record.Position.Number()
	if claim.Record.Position.IsZero() {
		n = int64(d.lost)
	}
	if d.fault == "resumes one too far" && n > 0 {
		n++
	}
	if d.fault == "resumes one too early" && n > 0 {
		n--
	}
	if int(n) > len(d.rows) && d.fault != "lost tail ignored" {
		return nil, connectors.ErrGap
	}
	r := &reader{d: d, claim: claim, at: n, pool: message.NewPool(claim.Budget, 64<<10)}
	r.life, r.end = context.WithCancel(context.Background())
	return r, nil
}

func (d *data) Check(context.Context) error { return nil }
func (d *data) Close() error                { return nil }

type reader struct {
	d     *data
	claim connectors.Claim
	at    int64
	stuck bool // reached the end once
	pool  *message.Pool
	life  context.Context
	end   context.CancelFunc
}

func (r *reader) After(m *message.Message) message.Position { return r.position(m.Next) }

func (r *reader) position(n int64) message.Position {
	return message.Position{Token: binary.BigEndian.AppendUint64(nil, uint64(n)), Sort: message.SortKey(n)}
}

func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.d.fault != "close does not wake Read" {
		defer context.AfterFunc(r.life, cancel)()
	}
	if r.d.fault == "cancel does not wake Read" {
		ctx = r.life
	}
	for {
		r.d.mu.Lock()
		changed, have := r.d.changed, int64(len(r.d.rows)) > r.at
		r.d.mu.Unlock()
		if have && (r.d.fault != "growth unnoticed" || !r.stuck) {
			break
		}
		r.stuck = true
		if r.d.ends {
			if r.d.fault == "end is a batch" {
				return message.NewBatch(), nil
			}
			return nil, connectors.ErrEndOfInput
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	b := message.NewBatch()
	if r.d.fault != "memory unbounded" {
		if r.d.fault == "close does not wake a starved Read" {
			ctx = parent
		}
		var err error
		if b, err = r.pool.Get(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.fill(b); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

func (r *reader) fill(b *message.Batch) error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if r.d.fault == "any loss is a gap" && r.d.lost > 0 {
		return connectors.ErrGap
	}
	if r.at < int64(r.d.lost) {
		if r.d.fault != "lost head ignored" {
			return connectors.ErrGap
		}
		r.at = int64(r.d.lost)
	}
	b.From, b.Positions = r.position(r.at), r
	for ; r.at < int64(len(r.d.rows)) && b.Len() < r.claim.Spec.BatchSize && b.Bytes() < 60<<10; r.at++ {
		rec := r.d.rows[r.at]
		if rec.bad {
			b.Read++
			if r.d.fault == "bad record taken silently" {
				b.Dropped++
				continue
			}
			err := r.claim.Reject(context.Background(), connectors.BadRecord{Ordinal: r.at, Place: fmt.Sprint("row ", r.at), Err: errors.New("bad")})
			if err == nil {
				b.Dropped++
				continue
			}
			b.Read--
			if b.Read > 0 && r.d.fault != "records before a bad one lost" {
				break
			}
			return err
		}
		if r.d.fault == "counters off" && b.Len() == 5 {
			b.Read++
		}
		b.Append(payload(rec.n), r.at, r.at+1)
		b.Read++
	}
	if r.d.fault == "order swapped" && b.Len() > 1 {
		p := slices.Clone(b.Payload(0))
		b.SetPayload(0, b.Payload(1))
		b.SetPayload(1, p)
	}
	if r.d.fault == "no positions inside a batch" {
		b.Positions = nil
	}
	b.End = r.position(r.at)
	return nil
}

func (r *reader) Settle(_ context.Context, p message.Position) error {
	n, _ := p.Number()
	if r.d.fault == "settle once only" && r.d.lost == int(n) {
		return errors.New("nothing to settle")
	}
	if r.d.fault == "settle frees what was read" {
		n = r.at
	}
	if r.d.fault == "settle frees nothing" {
		return nil
	}
	r.d.change(func() { r.d.lost = max(r.d.lost, int(n)) })
	return nil
}

func (r *reader) Lag() int64 { return -1 }

func (r *reader) Close() error {
	r.end()
	return nil
}
