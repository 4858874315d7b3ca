package pipeline

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// A transaction gathers until one of these is reached: large enough that its
// fixed cost (a round trip, an fsync, the fence) disappears, small enough that a
// slow stream is seen quickly and that a bad row is found in few tries.
const (
	txnRows  = 16384
	txnBytes = 8 << 20
	txnAge   = 20 * time.Millisecond
)

// inTxn commits rows, position and fence in one transaction of the sink (T1).
// While one transaction commits in the background, the next one is encoded.
type inTxn struct {
	r   *run
	w   connectors.TxWriter
	rec record // owned by the commit in flight, else by the writer loop; follow is the latter's

	maxRows int
	maxAge  time.Duration

	cur *gather
	due alarm

	commits  chan *gather      // to background
	results  chan commitResult // from background, one for each commit
	inFlight bool
	spare    []rowMark // reused by the next transaction
	lost     tally     // what failed commits gave back
}

// gather is a transaction being filled.
type gather struct {
	txn   connectors.Txn
	rows  []rowMark // of each row of txn
	spans []span    // of each batch
	end   message.Position
	tally tally
	// letters are the dead letters among its records. copies holds what becomes one
	// if the sink refuses it, since txn cannot give back what it encoded; nil where
	// the route has no dlq.
	letters pending
	copies  *message.Batch
	stop    error         // returned after this transaction committed
	room    message.Lease // of the process's budget, for what it holds
}

// fits takes room in the process's budget for what the transaction has grown by.
// It never waits: a writer that waited for memory with rows in its hands could
// wait for itself. Without room the transaction ends where it is (invariant 8).
func (g *gather) fits(budget *message.Budget) bool {
	grown := int64(g.txn.Bytes()) - g.room.Bytes()
	if g.copies != nil {
		grown += int64(g.copies.Bytes())
	}
	if grown <= 0 {
		return true
	}
	more, ok := budget.TryAcquire(grown)
	if ok {
		g.room.Join(more)
	}
	return ok
}

// span is the rows [from, next span's from) of one batch, whose positions are
// made by pos.
type span struct {
	from int
	pos  message.Positioner
}

type commitResult struct {
	rows []rowMark // for reuse
	err  error
}

type rowMark struct {
	ordinal, next int64
	size          int32
	copy          int32 // its index in gather.copies
}

func newInTxn(r *run, w connectors.TxWriter, rec record) *inTxn {
	c := &inTxn{r: r, w: w, rec: rec, maxRows: txnRows, maxAge: txnAge,
		commits: make(chan *gather), results: make(chan commitResult, 1)}
	if buf := r.Sending.Buffer; buf != nil {
		c.maxRows, c.maxAge = r.gathers(), buf.Delay
	}
	return c
}

func (c *inTxn) take(ctx context.Context, b *message.Batch, letters []letter) error {
	defer b.Release()
	if err := c.rec.follow(b, &letters); err != nil {
		c.r.Stats.returned(tallyOf(b))
		return err
	}
	if c.cur == nil {
		c.cur = &gather{txn: c.w.Begin(), rows: c.spare[:0]}
		c.spare = nil
	}
	g := c.cur
	err := g.txn.Add(b, 0, b.Len())
	var rows *connectors.RowsError
	switch {
	case errors.As(err, &rows):
		// Rows that cannot be encoded are not in txn; drop them from the batch,
		// or cut the batch before the first and stop behind what is left.
		kept := g.txn.Rows()
		stop := c.r.refused(b, rows.Rows, &letters, false)
		if stop != nil {
			g.stop = stop
			g.txn.Truncate(len(g.rows) + b.Len())
		} else if kept != len(g.rows)+b.Len() {
			g.txn.Truncate(len(g.rows))
			c.r.Stats.returned(tallyOf(b))
			return connectors.Permanent(errors.New("sink kept another number of rows than it refused"), "this is a bug of the connector")
		}
	case err != nil:
		c.r.Stats.returned(tallyOf(b))
		return err
	}
	t := tallyOf(b).letters(len(letters))
	g.letters.add(letters)
	if b.Len() > 0 {
		g.spans = append(g.spans, span{from: len(g.rows), pos: b.Positions})
	}
	if c.r.DeadLetters != nil && g.copies == nil {
		g.copies = message.NewBatch()
	}
	for i := range b.Len() {
		m, n := b.Msg(i), len(b.Payload(i))
		mark := rowMark{ordinal: m.Ordinal, next: m.Next, size: int32(n)}
		if g.copies != nil {
			mark.copy = int32(g.copies.Len())
			g.copies.AppendFrom(b, i)
		}
		g.rows = append(g.rows, mark)
		t.bytes += int64(n)
	}
	g.tally.add(t)
	g.end = b.End
	switch {
	case g.stop != nil:
		return c.flush(ctx)
	case len(g.rows) >= c.maxRows || g.letters.full() || g.txn.Bytes() >= txnBytes || !g.fits(c.r.Claim.Budget):
		return c.start(ctx)
	case len(g.rows) == 0:
		// Nothing to write so far: only the position moves, and that can wait.
		if !c.due.on() {
			c.due.set(c.r.Claim.Spec.CheckpointInterval)
		}
	case !c.due.on() || len(g.rows) == b.Len():
		c.due.set(c.maxAge)
	}
	return nil
}

// start hands the current transaction to the background, once the one before
// it is durable.
func (c *inTxn) start(ctx context.Context) error {
	c.due.off()
	if err := c.wait(ctx); err != nil {
		return err
	}
	if c.cur == nil {
		return nil
	}
	select {
	case c.commits <- c.cur:
		c.cur, c.inFlight = nil, true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns when no commit is in flight.
func (c *inTxn) wait(ctx context.Context) error {
	if !c.inFlight {
		return nil
	}
	select {
	case res := <-c.results:
		c.inFlight, c.spare = false, res.rows
		return res.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *inTxn) timer() <-chan time.Time        { return c.due.c() }
func (c *inTxn) tick(ctx context.Context) error { return c.start(ctx) }

func (c *inTxn) flush(ctx context.Context) error {
	if err := c.start(ctx); err != nil {
		return err
	}
	return c.wait(ctx)
}

func (c *inTxn) inheritedDone() bool { return true }
func (c *inTxn) finish()             { close(c.commits) }

func (c *inTxn) background(ctx context.Context) error {
	for g := range c.commits {
		err := func() error {
			defer g.room.Release() // also when the sink panics
			defer g.txn.Discard()
			return c.commit(ctx, g)
		}()
		c.results <- commitResult{rows: g.rows, err: err}
		if err != nil {
			return err
		}
	}
	return nil
}

// commit makes one transaction durable. Rows that the sink refuses are handled
// by the route's rule; the transaction is tried again without them.
func (c *inTxn) commit(ctx context.Context, g *gather) error {
	for {
		if err := c.r.Claim.Gate(); err != nil {
			c.lost.add(g.tally)
			return err
		}
		var err error
		if t, ok := g.txn.(connectors.LetterTxn); ok && t.TakesLetters() {
			err = c.rec.enclose(t, &g.letters)
		} else {
			err = c.rec.carryOut(ctx, &g.letters)
		}
		if err != nil {
			c.lost.add(g.tally)
			return err
		}
		next := c.rec.held
		next.Position, next.Verdicts = g.end, c.rec.verdictsBehind(g.end)
		next.Version++
		try, cancel := c.r.limited(ctx)
		began := c.r.Stats.Output.begin()
		err = g.txn.Commit(try, connectors.Swap{Key: c.r.Claim.Key, Expected: c.rec.held.Version, Record: next})
		cancel()
		var rows *connectors.RowsError
		errors.As(err, &rows)
		c.r.Stats.Output.end(began, len(g.rows), err, true)
		if err == nil {
			c.rec.held = next
			c.rec.passed(g.end)
			c.r.Stats.durable(g.tally)
			c.rec.committed(next)
			return g.stop
		}
		if rows == nil {
			c.lost.add(g.tally)
			return err
		}
		if !c.without(g, rows) {
			return g.stop
		}
	}
}

// without takes refused rows out of g. It reports whether anything is left to commit.
func (c *inTxn) without(g *gather, rows *connectors.RowsError) bool {
	drop := rows.Rows
	for k, row := range drop {
		mark := g.rows[row.Index]
		if g.copies != nil {
			g.letters.add([]letter{c.r.letterOf(g.copies, int(mark.copy), row.Err, true)})
		} else if g.stop = c.r.reject(mark.ordinal, nil, row.Err); g.stop != nil {
			// Stop before this row: everything in front of it is committed.
			drop = drop[:k]
			c.cut(g, row.Index)
			break
		}
		g.tally.bytes -= int64(mark.size)
	}
	n := int64(len(drop))
	g.tally.rows -= n
	if g.copies != nil {
		g.tally.dead += n
	} else {
		g.tally.dropped += n
	}
	// From the end, so that a sink which refuses everything moves nothing about.
	for _, row := range slices.Backward(drop) {
		g.txn.Drop(row.Index)
	}
	left, span := 0, 0
	for at, mark := range g.rows {
		for ; span < len(g.spans) && g.spans[span].from == at; span++ {
			g.spans[span].from = left
		}
		if len(drop) > 0 && drop[0].Index == at {
			drop = drop[1:]
			continue
		}
		g.rows[left] = mark
		left++
	}
	for ; span < len(g.spans); span++ { // whose rows were cut
		g.spans[span].from = left
	}
	if g.rows = g.rows[:left]; g.stop == nil {
		return true
	}
	if left == 0 {
		// Only filtered and dropped records stand in front of it; they are read again.
		c.lost.add(g.tally)
		return false
	}
	g.end = g.after(left - 1)
	return true
}

// cut gives the rows from at on back to the source.
func (c *inTxn) cut(g *gather, at int) {
	cut := tally{read: int64(len(g.rows) - at), rows: int64(len(g.rows) - at)}
	for _, m := range g.rows[at:] {
		cut.bytes += int64(m.size)
	}
	c.lost.add(cut)
	g.tally.read -= cut.read
	g.tally.rows -= cut.rows
	g.tally.bytes -= cut.bytes
	g.txn.Truncate(at)
	g.rows = g.rows[:at]
}

// after is the position after a row, made by the batch that it came in.
func (g *gather) after(row int) message.Position {
	s := g.spans[0]
	for _, next := range g.spans[1:] {
		if next.from > row {
			break
		}
		s = next
	}
	m := g.rows[row]
	return s.pos.After(&message.Message{Ordinal: m.ordinal, Next: m.next})
}

func (c *inTxn) abandon() {
	c.due.off()
	if c.cur != nil {
		c.lost.add(c.cur.tally)
		c.cur.txn.Discard()
		c.cur.room.Release()
	}
	c.r.Stats.returned(c.lost)
}
