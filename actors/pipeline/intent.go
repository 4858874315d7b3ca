package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
)

// intent is the protocol of immutable parts (T2, docs/protocol.md "parts"):
//
//  1. the part's range, complete name and generation are committed to the record,
//  2. the part is created if absent,
//  3. the position is committed, in one write with the next intent if there is one.
//
// The writer loop stages and seals; a publisher in the background runs the three
// steps, so that the next part spools while the last one publishes. One intent
// stands at a time, as the model in docs/spec has it.
type intent struct {
	r   *run
	w   connectors.PartWriter
	rec record // owned by background once it runs

	// The open part covers [from, end); both are the writer loop's.
	from, end message.Position
	open      tally
	letters   pending // of the records in [from, end)
	due       alarm
	covered   []connectors.Range

	inherited *checkpoint.Intent // still to be finished by staging its range again

	queue chan sealed
	lost  tally // background's
	// committing is the time in nanoseconds that background spent on the record,
	// including what runs now (since commitStart).
	committing  atomic.Int64
	commitStart atomic.Int64
}

// sealed is a part on its way, or only a position when intent is nil.
type sealed struct {
	intent    *checkpoint.Intent
	inherited bool // its intent stands in the record already
	end       message.Position
	tally     tally
	letters   pending
	flushed   chan struct{} // closed when durable, if not nil
}

func newIntent(r *run, w connectors.PartWriter, rec record) *intent {
	c := &intent{r: r, w: w, rec: rec,
		from: r.Claim.Record.Position, end: r.Claim.Record.Position,
		covered: w.Covered(), queue: make(chan sealed)}
	if len(c.rec.held.Intents) > 0 {
		in := c.rec.held.Intents[0]
		c.inherited = &in
		c.from = in.From
	}
	return c
}

func (c *intent) inheritedDone() bool { return c.inherited == nil }

func (c *intent) take(ctx context.Context, b *message.Batch, letters []letter) error {
	defer b.Release()
	if err := c.rec.follow(b, &letters); err != nil {
		c.r.Stats.returned(tallyOf(b))
		return err
	}
	if c.from.IsZero() {
		c.from, c.end = b.From, b.From
	}
	if c.r.FinishOnly && c.inherited != nil {
		// What lies behind the promised range is the new generation's to judge.
		last := c.inherited.Last
		letters = slices.DeleteFunc(letters, func(l letter) bool { return l.ordinal > last })
	}
	// All of them go with the part that is sealed next, which may end before some
	// of their records: early does no harm, late would lose them.
	c.letters.add(letters)
	dead := len(letters)
	// used counts the records of b that are in a part or covered; what is left of
	// b is given back when something fails.
	var used tally
	giveBack := func(err error) error {
		left := tallyOf(b)
		left.read -= used.read
		c.r.Stats.returned(left)
		return err
	}
	var stop error
	for i := 0; i < b.Len(); {
		j, seal := c.extent(b, i)
		if j > i {
			err := c.w.Stage(ctx, b, i, j)
			var rows *connectors.RowsError
			switch {
			case errors.As(err, &rows):
				// None of them was staged. The rule drops the refused ones or cuts
				// the batch before the first; the others are staged after that.
				var own []letter
				stop = c.r.refused(b, rows.Rows, &own, false)
				c.letters.add(own)
				dead += len(own)
				continue
			case err != nil:
				return giveBack(err)
			}
			c.staged(b, i, j)
			used.read += int64(j - i)
			i = j
		}
		if seal {
			if err := c.seal(ctx, nil); err != nil {
				return giveBack(err)
			}
			if c.r.FinishOnly && c.inherited == nil {
				// What follows belongs to the new generation.
				return giveBack(nil)
			}
		}
		n := c.skipCovered(b, i)
		used.read += int64(n)
		i += n
	}
	// Records filtered or dropped behind the last message are covered by the part
	// that is open, or by the position alone.
	rest := tallyOf(b).letters(dead)
	rest.read -= used.read
	rest.rows = 0
	c.open.add(rest)
	if b.End.Compare(c.end) > 0 {
		c.end = b.End
	}
	if stop != nil {
		if err := c.flush(ctx); err != nil {
			return err
		}
		return stop
	}
	if c.inherited != nil && c.end.Compare(c.inherited.End) >= 0 {
		if err := c.seal(ctx, nil); err != nil {
			return err
		}
	}
	if c.inherited == nil && c.letters.full() {
		return c.seal(ctx, nil)
	}
	if c.inherited == nil && !c.due.on() {
		c.due.set(c.r.Claim.Spec.CheckpointInterval)
	}
	return nil
}

// staged notes messages [i, j) as part of the open part.
func (c *intent) staged(b *message.Batch, i, j int) {
	if c.open.rows == 0 {
		c.due.set(c.r.Claim.Spec.Roll.Age)
	}
	n := int64(j - i)
	t := tally{read: n, rows: n}
	for k := i; k < j; k++ {
		t.bytes += int64(len(b.Payload(k)))
	}
	c.open.add(t)
	c.end = b.PositionAfter(j - 1)
}

// extent returns the end of the run of messages from i that goes into the open
// part, and whether the part ends there.
func (c *intent) extent(b *message.Batch, i int) (j int, seal bool) {
	n := b.Len()
	if in := c.inherited; in != nil {
		// Exactly the boundaries that were promised, whatever roll says now.
		for j = i; j < n && b.Msg(j).Ordinal <= in.Last; j++ {
		}
		return j, j < n
	}
	for _, r := range c.covered {
		if o := b.Msg(i).Ordinal; o <= r.Last {
			if r.Covers(o) {
				return i, c.open.rows > 0
			}
			for j = i; j < n && b.Msg(j).Ordinal < r.First; j++ {
			}
			n = j
			break
		}
	}
	roll := c.r.Claim.Spec.Roll
	records, bytes := c.w.OpenPart()
	limit := n
	if room := roll.Records - records; int64(limit-i) > room {
		limit = i + int(max(room, 1))
	}
	if bytes+int64(b.Bytes()) < roll.Bytes {
		return limit, limit < n || records+int64(limit-i) >= roll.Records || n < b.Len()
	}
	for j = i; j < limit; {
		bytes += int64(len(b.Payload(j))) + 1
		j++
		if bytes >= roll.Bytes {
			return j, true
		}
	}
	return limit, limit < n || records+int64(limit-i) >= roll.Records || n < b.Len()
}

// skipCovered passes over records that parts of another lineage hold, as long as
// no part is open, and returns how many.
func (c *intent) skipCovered(b *message.Batch, i int) (n int) {
	if len(c.covered) == 0 || c.open.rows > 0 {
		return 0
	}
	for ; i+n < b.Len(); n++ {
		o := b.Msg(i + n).Ordinal
		if !slices.ContainsFunc(c.covered, func(r connectors.Range) bool { return r.Covers(o) }) {
			break
		}
		c.open.add(tally{read: 1, covered: 1})
		c.end = b.PositionAfter(i + n)
		c.from = c.end
	}
	return n
}

// seal ends the open part, if it holds anything, and hands it on with the
// position behind it.
func (c *intent) seal(ctx context.Context, flushed chan struct{}) error {
	c.due.off()
	s := sealed{end: c.end, tally: c.open, letters: c.letters, flushed: flushed}
	if in := c.inherited; in != nil {
		got, err := c.w.Seal(ctx, in.From, in.End, in.Name)
		if err != nil {
			return err
		}
		if got.Records != in.Records || in.Digest != "" && got.Digest != in.Digest {
			return fmt.Errorf("%w: part %s was promised with %d records (%s), the source now gives %d (%s): the input was changed",
				connectors.ErrGap, in.Name, in.Records, in.Digest, got.Records, got.Digest)
		}
		s.intent, s.inherited, s.end = in, true, in.End
		// The position behind the last staged record can lie before the promised
		// end: the records between were filtered. It can lie behind it too, over
		// records that the spec of an older generation filtered: those are the new
		// one's to judge.
		if c.end.Compare(in.End) < 0 || c.r.FinishOnly {
			c.end = in.End
		}
		c.inherited = nil
	} else if c.open.rows > 0 {
		in, err := c.w.Seal(ctx, c.from, c.end, "")
		if err != nil {
			return err
		}
		in.Generation = c.r.Claim.Generation
		s.intent = &in
	}
	c.from, c.open, c.letters = s.end, tally{}, pending{}
	hook.At("part.sealed")
	// What this loop waits here for the record, and not for the part itself, is
	// the cost of the fence.
	before := c.commitTime()
	select {
	case c.queue <- s:
		c.r.Stats.FenceWait.Add(c.commitTime() - before)
		return nil
	case <-ctx.Done():
		c.r.Stats.returned(s.tally)
		return ctx.Err()
	}
}

func (c *intent) commitTime() int64 {
	t := c.committing.Load()
	if s := c.commitStart.Load(); s != 0 {
		t += time.Now().UnixNano() - s
	}
	return t
}

func (c *intent) timer() <-chan time.Time { return c.due.c() }

func (c *intent) tick(ctx context.Context) error {
	if c.inherited != nil {
		c.due.off() // its end is fixed; age has no say
		return nil
	}
	return c.seal(ctx, nil)
}

func (c *intent) flush(ctx context.Context) error {
	if c.inherited != nil {
		return nil // drained inside a promised range: the next run stages it again
	}
	done := make(chan struct{})
	before := c.commitTime()
	if err := c.seal(ctx, done); err != nil {
		return err
	}
	select {
	case <-done:
		c.r.Stats.FenceWait.Add(c.commitTime() - before)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *intent) finish() { close(c.queue) }

// Recover looks at the intent that the record holds before the source is
// opened: when the part is there already, its owner died between steps 2 and 3,
// and only the position is left to move. It returns the record to start from.
func Recover(ctx context.Context, claim connectors.Claim, w connectors.Writer, store checkpoint.Store) (checkpoint.Record, error) {
	rec := claim.Record
	pw, ok := w.(connectors.PartWriter)
	if len(rec.Intents) == 0 {
		return rec, nil
	}
	if !ok {
		return rec, connectors.Permanent(fmt.Errorf("the record holds the promise of part %s, which this sink cannot finish", rec.Intents[0].Name),
			"go back to the sink that made it, or reset the checkpoint")
	}
	there, err := pw.Exists(ctx, rec.Intents[0])
	if err != nil || !there {
		return rec, err
	}
	if err := claim.Gate(); err != nil {
		return rec, err
	}
	next := rec
	next.Position, next.Intents, next.Generation = rec.Intents[0].End, nil, claim.Generation
	return checkpoint.Commit(ctx, store, claim.Key, rec, next)
}

// background publishes. Interleavings that matter: a crash after step 1 leaves
// an intent that the successor finishes under the same name; after step 2 the
// successor finds the part and only moves the position; a zombie's step 2 meets
// the same name and changes nothing (invariant 1).
func (c *intent) background(ctx context.Context) error {
	var last *sealed // published, its position not committed
	for {
		var s sealed
		var ok bool
		if last == nil {
			s, ok = <-c.queue
		} else {
			select {
			case s, ok = <-c.queue:
			default:
				if err := c.position(ctx, last, nil); err != nil {
					return err
				}
				last = nil
				continue
			}
		}
		if !ok {
			if last != nil {
				return c.position(ctx, last, nil)
			}
			return nil
		}
		if s.intent != nil {
			// Before the promise, and before a part that was promised already: whoever
			// finds the part there moves the position over its range without reading it.
			if err := c.rec.carryOut(ctx, &s.letters); err != nil {
				c.lost.add(s.tally)
				if last != nil {
					c.lost.add(last.tally)
				}
				return err
			}
		}
		if s.intent == nil || s.inherited {
			if last != nil {
				if err := c.position(ctx, last, nil); err != nil {
					c.lost.add(s.tally)
					return err
				}
				last = nil
			}
		} else {
			if err := c.position(ctx, last, s.intent); err != nil {
				c.lost.add(s.tally)
				return err
			}
			last = nil
			hook.At("part.intent-committed")
		}
		if s.intent != nil {
			try, cancel := c.r.limited(ctx)
			began := c.r.Stats.Output.begin()
			err := c.w.Publish(try, *s.intent)
			c.r.Stats.Output.end(began, int(s.tally.rows), err, true)
			cancel()
			if err != nil {
				c.lost.add(s.tally)
				return err
			}
			hook.At("part.published")
		}
		if s.flushed != nil || s.intent == nil {
			if err := c.position(ctx, &s, nil); err != nil {
				return err
			}
			continue
		}
		last = &s
	}
}

// position commits the position behind done (nil: it stays) together with the
// next intent (nil: none).
func (c *intent) position(ctx context.Context, done *sealed, in *checkpoint.Intent) error {
	if done != nil {
		if err := c.rec.carryOut(ctx, &done.letters); err != nil {
			c.lost.add(done.tally)
			return err
		}
	}
	next := c.rec.held
	next.Intents = nil
	if done != nil {
		next.Position, next.Verdicts = done.end, c.rec.verdictsBehind(done.end)
		next.Generation = c.r.Claim.Generation
	}
	if in != nil {
		next.Intents = []checkpoint.Intent{*in}
		if next.Position.IsZero() {
			// A source that chose where to begin (latest, a group's offset) must not
			// choose again when this run ends before the part is there.
			next.Position = in.From
		}
	}
	if done != nil && in == nil && done.end.Compare(c.rec.held.Position) == 0 && len(c.rec.held.Intents) == 0 {
		c.confirm(done)
		return nil
	}
	t := time.Now()
	c.commitStart.Store(t.UnixNano())
	err := c.rec.commit(ctx, next)
	c.committing.Add(int64(time.Since(t)))
	c.commitStart.Store(0)
	if err != nil {
		if done != nil {
			c.lost.add(done.tally)
		}
		return err
	}
	if done != nil {
		c.rec.passed(done.end)
		c.confirm(done)
		hook.At("part.position-committed")
	}
	return nil
}

func (c *intent) confirm(done *sealed) {
	c.r.Stats.durable(done.tally)
	if done.flushed != nil {
		close(done.flushed)
	}
}

func (c *intent) abandon() {
	c.due.off()
	c.lost.add(c.open)
	c.r.Stats.returned(c.lost)
}
