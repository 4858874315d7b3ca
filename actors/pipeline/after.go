package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// after writes first and commits the position every checkpoint_interval: what
// was written since the last commit may be written again (T3, and T2 sinks whose
// key absorbs that).
type after struct {
	r    *run
	w    connectors.PlainWriter
	rec  record
	end  message.Position
	done tally // written, position not committed
	due  alarm

	began bool // this run wrote its first record
}

func newAfter(r *run, w connectors.PlainWriter) *after {
	return &after{r: r, w: w, rec: record{r: r, held: r.Claim.Record}}
}

func (c *after) take(ctx context.Context, b *message.Batch) error {
	defer b.Release()
	var stop error
	if b.Len() > 0 {
		if err := c.r.Claim.Gate(); err != nil {
			c.r.Stats.returned(tallyOf(b))
			return err
		}
		var err error
		if stop, err = c.write(ctx, b); err != nil {
			c.r.Stats.returned(tallyOf(b))
			return err
		}
	}
	t := tallyOf(b)
	for i := range b.Len() {
		t.bytes += int64(len(b.Payload(i)))
	}
	c.done.add(t)
	c.end = b.End
	if stop != nil {
		if err := c.flush(ctx); err != nil {
			return err
		}
		return stop
	}
	if !c.due.on() {
		c.due.set(c.r.Claim.Spec.CheckpointInterval)
	}
	return nil
}

// write writes b and applies the route's rule to what the sink refuses; stop is
// its answer. The first record of a run goes alone: a sink writes what stands
// behind a record that it refuses, and when a run begins at the one that stopped
// the run before, all of that would be written again with each try.
func (c *after) write(ctx context.Context, b *message.Batch) (stop, err error) {
	rest := 0
	if !c.began {
		c.began = true
		n := b.Len()
		if stop, err = c.rows(ctx, b, 0, 1); stop != nil || err != nil {
			return stop, err
		}
		rest = 1 - (n - b.Len()) // 0 if it was dropped
	}
	if rest == b.Len() {
		return nil, nil
	}
	return c.rows(ctx, b, rest, b.Len())
}

func (c *after) rows(ctx context.Context, b *message.Batch, i, j int) (stop, err error) {
	err = c.w.Write(ctx, b, i, j)
	var rows *connectors.RowsError
	if errors.As(err, &rows) {
		return c.r.refused(b, rows), nil
	}
	return nil, err
}

func (c *after) timer() <-chan time.Time        { return c.due.c() }
func (c *after) tick(ctx context.Context) error { return c.flush(ctx) }

func (c *after) flush(ctx context.Context) error {
	c.due.off()
	if c.done.read == 0 && c.end.Compare(c.rec.held.Position) <= 0 {
		return nil
	}
	next := c.rec.held
	next.Position = c.end
	t := time.Now()
	err := c.rec.commit(ctx, next)
	c.r.Stats.WaitFence(t)
	if err != nil {
		return err
	}
	c.r.Stats.durable(c.done)
	c.done = tally{}
	return nil
}

func (c *after) inheritedDone() bool              { return true }
func (c *after) finish()                          {}
func (c *after) background(context.Context) error { return nil }
func (c *after) abandon()                         { c.due.off(); c.r.Stats.returned(c.done) }
