package pipeline

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
)

// after writes first and commits the position every checkpoint_interval: what was
// written since the last commit may be written again (T3, and T2 sinks whose key
// absorbs that). A sink with state of its own (append) has it committed in the same
// write as the position, so that it can take back what was written since.
type after struct {
	r   *run
	w   connectors.PlainWriter
	sw  connectors.StatefulWriter // w, if it is one
	rec record
	end message.Position
	// every is how far apart commits are.
	every time.Duration
	// done is written, with its position not committed; letters belong to it.
	done    tally
	letters pending

	// gathered waits for more messages, with its dead letters (middleware buffer).
	gathered        *message.Batch
	gatheredLetters []letter

	// When gathered is written and the position is committed; zero while nothing is
	// due. alarm is set to the earlier one.
	writeAt, commitAt time.Time
	alarm             alarm

	began bool // this run wrote its first record
}

func newAfter(r *run, w connectors.PlainWriter, rec record) *after {
	c := &after{r: r, w: w, rec: rec, every: r.Claim.Spec.CheckpointInterval}
	c.sw, _ = w.(connectors.StatefulWriter)
	if p, ok := w.(connectors.Paced); ok {
		c.every = max(c.every, p.CommitEvery())
	}
	return c
}

func (c *after) take(ctx context.Context, b *message.Batch, letters []letter) error {
	if err := c.rec.follow(b, &letters); err != nil {
		c.r.giveBack(b)
		return err
	}
	buf := c.r.Sending.Buffer
	if buf == nil {
		return c.write(ctx, b, letters)
	}
	c.gatheredLetters = append(c.gatheredLetters, letters...)
	if c.gathered == nil {
		c.gathered = b
		c.writeAt = time.Now().Add(buf.Delay)
		c.arm()
	} else {
		c.gathered.Join(b)
	}
	if c.gathered.Len() < c.r.gathers() && c.roomForMore() {
		return nil
	}
	return c.writeGathered(ctx)
}

// roomForMore: gathering on must not keep the reader waiting for the bytes that it
// holds (invariant 8).
func (c *after) roomForMore() bool {
	size := int64(c.gathered.Bytes())
	if size >= txnBytes {
		return false
	}
	room, ok := c.r.Claim.Budget.TryAcquire(size)
	room.Release()
	return ok
}

func (c *after) writeGathered(ctx context.Context) error {
	b, letters := c.gathered, c.gatheredLetters
	c.gathered, c.gatheredLetters, c.writeAt = nil, nil, time.Time{}
	c.arm()
	if b == nil {
		return nil
	}
	return c.write(ctx, b, letters)
}

func (c *after) write(ctx context.Context, b *message.Batch, letters []letter) error {
	defer b.Release()
	var stop error
	if b.Len() > 0 {
		err := c.r.Claim.Gate()
		if err == nil {
			err = c.firstState(ctx)
		}
		if err == nil {
			stop, err = c.rows(ctx, b, &letters)
		}
		if err != nil {
			c.r.Stats.returned(tallyOf(b))
			return err
		}
	}
	t := tallyOf(b).letters(len(letters))
	for i := range b.Len() {
		t.bytes += int64(len(b.Payload(i)))
	}
	c.done.add(t)
	c.letters.add(letters)
	c.end = b.End
	if stop != nil {
		if err := c.commit(ctx); err != nil {
			return err
		}
		return stop
	}
	if c.letters.full() {
		return c.commit(ctx)
	}
	if c.commitAt.IsZero() {
		c.commitAt = time.Now().Add(c.every)
		c.arm()
	}
	return nil
}

// firstState commits the sink's state before the first byte is written, unless it is
// what the record holds: what a successor finds without it, it would take for what
// was there before. It differs on the first run, and on the first one of an output
// that the route did not have before.
func (c *after) firstState(ctx context.Context) error {
	if c.sw == nil || c.began {
		return nil
	}
	state, err := c.sw.State(ctx)
	if err != nil || bytes.Equal(state, c.rec.held.SinkState) {
		return err
	}
	next := c.rec.held
	next.SinkState = state
	t := time.Now()
	defer c.r.Stats.WaitFence(t)
	return c.rec.commit(ctx, next)
}

// rows writes b and applies the route's rule to what the sink refuses; stop is its
// answer. The first record of a run goes alone: a sink writes what stands behind a
// record that it refuses, and when a run begins at the one that stopped the run
// before, all of that would be written again with each try. A sink with state takes
// it back.
func (c *after) rows(ctx context.Context, b *message.Batch, letters *[]letter) (stop, err error) {
	rest := 0
	if !c.began && c.sw == nil {
		n := b.Len()
		if stop, err = c.judged(c.send(ctx, b, 0, 1), b, letters); stop != nil || err != nil {
			return stop, err
		}
		rest = 1 - (n - b.Len()) // 0 if it was dropped
	}
	c.began = true
	for rest < b.Len() {
		n := b.Len()
		stop, err = c.judged(c.send(ctx, b, rest, n), b, letters)
		if c.sw == nil || stop == nil && b.Len() == n || err != nil {
			return stop, err
		}
		// Nothing of it was written; what is left of it is. A stop cut it before the
		// message that stops.
		if stop != nil {
			if b.Len() == 0 {
				return stop, nil
			}
			return stop, c.send(ctx, b, rest, b.Len())
		}
	}
	return nil, nil
}

func (c *after) judged(err error, b *message.Batch, letters *[]letter) (stop, _ error) {
	var rows *connectors.RowsError
	if errors.As(err, &rows) {
		return c.r.refused(b, rows.Rows, letters, true), nil
	}
	return nil, err
}

// arm sets the alarm to what is due first.
func (c *after) arm() {
	at := c.writeAt
	if at.IsZero() || !c.commitAt.IsZero() && c.commitAt.Before(at) {
		at = c.commitAt
	}
	if at.IsZero() {
		c.alarm.off()
		return
	}
	c.alarm.set(time.Until(at))
}

func (c *after) timer() <-chan time.Time { return c.alarm.c() }

func (c *after) tick(ctx context.Context) error {
	now := time.Now()
	if !c.writeAt.IsZero() && !now.Before(c.writeAt) {
		if err := c.writeGathered(ctx); err != nil {
			return err
		}
	}
	if !c.commitAt.IsZero() && !now.Before(c.commitAt) {
		return c.commit(ctx)
	}
	c.arm()
	return nil
}

func (c *after) flush(ctx context.Context) error {
	if err := c.writeGathered(ctx); err != nil {
		return err
	}
	return c.commit(ctx)
}

// commit moves the position over what was written, after its dead letters.
func (c *after) commit(ctx context.Context) error {
	c.commitAt = time.Time{}
	c.arm()
	if c.done.read == 0 && c.end.Compare(c.rec.held.Position) <= 0 {
		return nil
	}
	var state []byte
	if c.sw != nil && c.began {
		var err error
		if state, err = c.sw.State(ctx); err != nil {
			return err
		}
		hook.At("append.synced")
	}
	if err := c.rec.carryOut(ctx, &c.letters); err != nil {
		return err
	}
	next := c.rec.held
	next.Position, next.Verdicts = c.end, c.rec.verdictsBehind(c.end)
	if state != nil {
		next.SinkState = state
	}
	t := time.Now()
	err := c.rec.commit(ctx, next)
	c.r.Stats.WaitFence(t)
	if err != nil {
		return err
	}
	c.rec.passed(c.end)
	hook.At("after.position-committed")
	c.r.Stats.durable(c.done)
	c.done = tally{}
	return nil
}

func (c *after) inheritedDone() bool              { return true }
func (c *after) finish()                          {}
func (c *after) background(context.Context) error { return nil }

func (c *after) abandon() {
	c.alarm.off()
	if c.gathered != nil {
		c.r.giveBack(c.gathered)
	}
	c.r.Stats.returned(c.done)
}
