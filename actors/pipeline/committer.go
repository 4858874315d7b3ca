package pipeline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
)

// committer makes batches durable together with their position. take, tick,
// flush, timer, inheritedDone and finish belong to the writer loop; background
// is a goroutine of its own in the same group; abandon runs after all of them.
type committer interface {
	// take owns b from here on. letters are the dead letters among its records.
	take(ctx context.Context, b *message.Batch, letters []letter) error
	// timer fires when tick is due; nil while nothing is.
	timer() <-chan time.Time
	tick(ctx context.Context) error
	// flush returns when everything taken is durable.
	flush(ctx context.Context) error
	// inheritedDone: no intent of an earlier run is left.
	inheritedDone() bool
	// finish says that the writer loop will not call any more.
	finish()
	background(ctx context.Context) error
	// abandon gives back to the source what did not become durable.
	abandon()
}

func (r *run) newCommitter() (committer, error) {
	rec := record{r: r, held: r.Claim.Record}
	judged, err := rec.held.Verdicts.Numbers()
	if err != nil {
		return nil, err
	}
	if len(judged) > 0 {
		rec.verdicts, rec.inherited, rec.reason = map[int64]bool{}, map[int64]bool{}, rec.held.Verdicts.Reason
		for _, n := range judged {
			rec.verdicts[n], rec.inherited[n] = false, true
		}
	}
	switch w := r.Writer.(type) {
	case connectors.TxWriter:
		return newInTxn(r, w, rec), nil
	case connectors.PartWriter:
		return newIntent(r, w, rec), nil
	case connectors.PlainWriter:
		return newAfter(r, w, rec), nil
	}
	return nil, ErrNoCommitter
}

// record is the checkpoint record as this run knows it: the version it holds is
// the one that its next commit must find.
type record struct {
	r    *run
	held checkpoint.Record
	// verdicts are the records that were judged and that no position has passed yet;
	// true once their letters are written.
	verdicts map[int64]bool
	// inherited are those of an earlier run that were not met yet; the writer
	// loop's. reason is what that run said of the first.
	inherited map[int64]bool
	reason    string
}

// verdictsNow is what a record says of verdicts whose position stays where it is:
// those of letters that are written already too, since their records are read again
// after a crash. reason is that of a new one, "" if there is none.
func (c *record) verdictsNow(reason string) *checkpoint.Verdicts {
	if c.held.Verdicts != nil {
		reason = c.held.Verdicts.Reason
	}
	return checkpoint.NewVerdicts(slices.Collect(maps.Keys(c.verdicts)), reason)
}

// verdictsBehind is what a record says that moves the position to end: nothing of
// the records that it passes. passed makes that so once it is committed.
func (c *record) verdictsBehind(end message.Position) *checkpoint.Verdicts {
	if len(c.verdicts) == 0 {
		return nil
	}
	left := maps.Clone(c.verdicts)
	maps.DeleteFunc(left, passedBy(end))
	if len(left) == 0 {
		return nil
	}
	return checkpoint.NewVerdicts(slices.Collect(maps.Keys(left)), c.held.Verdicts.Reason)
}

func (c *record) passed(end message.Position) { maps.DeleteFunc(c.verdicts, passedBy(end)) }

// passedBy: letters are written before the position moves over their records, so
// that its number says it all; a record that was judged may be filtered by now.
func passedBy(end message.Position) func(ordinal int64, carried bool) bool {
	n, numbered := end.Number()
	return func(ordinal int64, carried bool) bool { return numbered && ordinal < n || !numbered && carried }
}

// commit swaps next in and tells the settler. The store's unknown outcomes are
// resolved in checkpoint.Commit; what is left is an error of the run.
func (c *record) commit(ctx context.Context, next checkpoint.Record) error {
	if err := c.r.Claim.Gate(); err != nil {
		return err
	}
	// Between the check above and the write below a process can stop for as long
	// as it likes: only the comparison inside the write is a fence.
	hook.At("commit.before-write")
	rec, err := checkpoint.Commit(ctx, c.r.Store, c.r.Claim.Key, c.held, next)
	if err != nil && transient(err) {
		rec, err = c.again(ctx, next, rec, err)
	}
	if err != nil {
		return err
	}
	c.held = rec
	c.committed(rec)
	return nil
}

// The pace at which a commit is tried again while its store cannot be reached.
const commitRetry, commitRetryMax = 50 * time.Millisecond, time.Second

// transient: the store could not be asked; nothing says that we lost the record.
func transient(err error) bool {
	c := connectors.Classify(err)
	return c == connectors.ClassConnection || c == connectors.ClassRetryable
}

// again repeats a commit while the store is away (a coordinator that elects a
// leader, a database that restarts), for as long as the gate is open and the
// route's give_up_after: to end the run would cost its epoch, its spool and a
// second reading, and would not make the store come back. held is the record as
// the last try left it (checkpoint.Commit).
func (c *record) again(ctx context.Context, next, held checkpoint.Record, err error) (checkpoint.Record, error) {
	c.r.Claim.Log.Warn("record not written, trying again", "error", err)
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = commitRetry, commitRetryMax
	return backoff.Retry(ctx, func() (checkpoint.Record, error) {
		if err := c.r.Claim.Gate(); err != nil {
			return held, backoff.Permanent(err)
		}
		var err error
		held, err = checkpoint.Commit(ctx, c.r.Store, c.r.Claim.Key, held, next)
		if err != nil && !transient(err) {
			err = backoff.Permanent(err)
		}
		return held, err
	}, backoff.WithBackOff(pace), backoff.WithMaxElapsedTime(c.r.Claim.Spec.GiveUpAfter))
}

func (c *record) committed(rec checkpoint.Record) {
	c.r.Stats.Commits.Add(1)
	c.r.Stats.Stored(rec)
	c.r.settler.durable(rec.Position)
}

// alarm is a timer that is either set or off.
type alarm struct{ t *time.Timer }

func (a *alarm) set(d time.Duration) {
	if a.t != nil {
		a.t.Stop()
	}
	a.t = time.NewTimer(d)
}

func (a *alarm) off() {
	if a.t != nil {
		a.t.Stop()
		a.t = nil
	}
}

func (a *alarm) on() bool { return a.t != nil }

func (a *alarm) c() <-chan time.Time {
	if a.t == nil {
		return nil
	}
	return a.t.C
}
