package pipeline

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Metadata of a dead letter, beside that of the record and mqb.id, which is the
// letter's id: <route uid>/<series>/<partition>/<ordinal>.
const (
	metaLetterError     = "mqb.dlq.error"
	metaLetterRoute     = "mqb.dlq.route"
	metaLetterPartition = "mqb.dlq.partition"
	metaLetterOrdinal   = "mqb.dlq.ordinal"
	metaLetterPlace     = "mqb.dlq.place"
	metaLetterID        = "mqb.dlq.message_id" // the record's own business id, if it has one
)

// Letters that wait for a commit are carried out early from here on: they are
// copies, and a source of nothing but bad records would pile them up.
const lettersBytes = 1 << 20

// gathers is how many messages a buffer gathers before they are written. Where there is
// a dlq, each of them may become a letter, and their verdicts have one record.
func (r *run) gathers() int {
	if r.DeadLetters != nil {
		return min(r.Sending.Buffer.Messages, txnRows)
	}
	return r.Sending.Buffer.Messages
}

// DeadLetters takes a run's dead letters. The reader's come through Reject, the
// others from the loops; the committer writes them before the position moves over
// them, so that none is lost, and under the id of their record, so that one that is
// written again is known as the same.
type DeadLetters struct {
	// Open makes the writer, at the first letter: a route without bad records does
	// not depend on the endpoint that would take them.
	Open func(ctx context.Context) (connectors.PlainWriter, error)

	mu     sync.Mutex
	read   []letter // by the reader, since take
	writer connectors.PlainWriter
	batch  *message.Batch
}

// letter is a record that cannot be handled, as a copy.
type letter struct {
	ordinal int64
	place   string
	cause   string
	// verdict: the record might not be refused the next time, so the decision is
	// committed first.
	verdict bool
	// record holds the record alone, payload, key and metadata.
	record *message.Batch
}

func (l *letter) size() int { return l.record.Bytes() + len(l.cause) + len(l.place) + 256 }

// Reject is a Claim's Reject: it keeps the letter of a record that the reader
// cannot hand on until the batch around it is read.
func (d *DeadLetters) Reject(_ context.Context, bad connectors.BadRecord) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := letter{ordinal: bad.Ordinal, place: bad.Place, cause: bad.Err.Error(), record: message.NewBatch()}
	l.record.Append(bad.Payload, bad.Ordinal, bad.Ordinal+1)
	d.read = append(d.read, l)
	return nil
}

// take returns the letters of the reader since the last call. A nil d has none.
func (d *DeadLetters) take() []letter {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.read
	d.read = nil
	return l
}

// letterOf copies message i of b.
func (r *run) letterOf(b *message.Batch, i int, err error, verdict bool) letter {
	n := b.Msg(i).Ordinal
	l := letter{ordinal: n, place: r.placeOf(n), cause: err.Error(), verdict: verdict, record: message.NewBatch()}
	l.record.AppendFrom(b, i)
	return l
}

// fill makes the messages of letters, as their endpoint gets them. The batch is
// d's, and valid until the next call.
func (d *DeadLetters) fill(claim *connectors.Claim, letters []letter) *message.Batch {
	if d.batch == nil {
		d.batch = message.NewBatch()
	}
	b := d.batch
	b.Clear()
	for i := range letters {
		l := &letters[i]
		b.AppendFrom(l.record, 0)
		at := b.Len() - 1
		if own, ok := b.Meta(at, route.IDKey); ok {
			b.PutMeta(at, metaLetterID, own)
		}
		b.PutMeta(at, route.IDKey, fmt.Appendf(nil, "%s/%s/%s/%d", claim.RouteUID, claim.Series, claim.Partition.ID, l.ordinal))
		b.PutMeta(at, metaLetterError, []byte(l.cause))
		b.PutMeta(at, metaLetterRoute, []byte(claim.Route))
		b.PutMeta(at, metaLetterPartition, []byte(claim.Partition.ID))
		b.PutMeta(at, metaLetterOrdinal, strconv.AppendInt(nil, l.ordinal, 10))
		b.PutMeta(at, metaLetterPlace, []byte(l.place))
	}
	return b
}

// write returns when the letters are durable, as far as their endpoint makes them.
func (d *DeadLetters) write(ctx context.Context, claim *connectors.Claim, letters []letter) error {
	if d.writer == nil {
		w, err := d.Open(ctx)
		if err != nil {
			return fmt.Errorf("open dlq: %w", err)
		}
		d.writer = w
	}
	b := d.fill(claim, letters)
	if err := d.writer.Write(ctx, b, 0, b.Len()); err != nil {
		return dlqError(err)
	}
	return nil
}

// dlqError: a letter that is refused has nowhere to go, and the run must not go on
// over its record.
func dlqError(err error) error {
	if connectors.Classify(err) == connectors.ClassData {
		return connectors.Permanent(fmt.Errorf("dlq refuses a dead letter: %w", err), "mend the endpoint of the dlq; the records stay unread until then")
	}
	return fmt.Errorf("write to dlq: %w", err)
}

func (d *DeadLetters) close() {
	if d != nil && d.writer != nil {
		_ = d.writer.Close()
	}
}

// pending are dead letters that wait for the commit over them.
type pending struct {
	letters []letter
	bytes   int
}

func (p *pending) add(letters []letter) {
	for i := range letters {
		p.bytes += letters[i].size()
	}
	p.letters = append(p.letters, letters...)
}

func (p *pending) full() bool { return p.bytes >= lettersBytes }

// carryOut makes letters durable before the position moves over them. What a
// successor might decide otherwise is committed first (docs/protocol.md,
// verdicts): without it a run that dies behind the write leaves a record that is
// dead-lettered by one owner and written by the next.
func (c *record) carryOut(ctx context.Context, p *pending) error {
	if len(p.letters) == 0 {
		return nil
	}
	reason := ""
	for _, l := range p.letters {
		if l.verdict {
			if c.verdicts == nil {
				c.verdicts = map[int64]bool{}
			}
			if _, known := c.verdicts[l.ordinal]; !known {
				c.verdicts[l.ordinal] = false
				if reason == "" {
					reason = l.cause
				}
			}
		}
	}
	if reason != "" {
		next := c.held
		next.Verdicts = c.verdictsNow(reason)
		if err := c.commit(ctx, next); err != nil {
			return err
		}
		hook.At("dlq.verdicts-committed")
	}
	if err := c.r.Claim.Gate(); err != nil {
		return err
	}
	if err := c.r.DeadLetters.write(ctx, &c.r.Claim, p.letters); err != nil {
		return err
	}
	hook.At("dlq.written")
	c.carried(p)
	return nil
}

// carried notes that letters are written, or will be with the position.
func (c *record) carried(p *pending) {
	for _, l := range p.letters {
		if _, judged := c.verdicts[l.ordinal]; judged {
			c.verdicts[l.ordinal] = true
		}
	}
	*p = pending{}
}

// enclose puts letters into the transaction of their rows, where the dlq is in the
// same system: they become durable with the position, and need no verdict.
func (c *record) enclose(txn connectors.LetterTxn, p *pending) error {
	if len(p.letters) == 0 {
		return nil
	}
	b := c.r.DeadLetters.fill(&c.r.Claim, p.letters)
	if err := txn.AddLetters(b, 0, b.Len()); err != nil {
		return dlqError(err)
	}
	c.carried(p)
	return nil
}

// follow takes the records that an earlier owner judged out of b: they are dead
// letters, whatever the sink would say now.
func (c *record) follow(b *message.Batch, letters *[]letter) error {
	if len(c.inherited) == 0 {
		return nil
	}
	var rows []connectors.RowError
	for i := range b.Len() {
		if n := b.Msg(i).Ordinal; c.inherited[n] {
			delete(c.inherited, n)
			rows = append(rows, connectors.RowError{Index: i, Err: errJudged{c.reason}})
		}
	}
	if rows == nil {
		return nil
	}
	if c.r.DeadLetters == nil {
		return connectors.Permanent(fmt.Errorf("record %d was dead-lettered by the owner before, and the route has no dlq any more", b.Msg(rows[0].Index).Ordinal),
			"put the dlq back until its records are passed, or reset the checkpoint")
	}
	return c.r.refused(b, rows, letters, true)
}

// errJudged is the cause in a letter that follows a verdict.
type errJudged struct{ reason string }

func (e errJudged) Error() string {
	return "judged by the owner before, whose first record of these was: " + e.reason
}
