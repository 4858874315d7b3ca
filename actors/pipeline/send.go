package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// send writes messages [i, j) of b by the rules of the output's middlewares. A
// *RowsError names messages that the route's rule has to judge: all others are
// written. Any other error ends the run.
//
// What was written in one attempt is not written again by the next, and a message
// whose write failed for a reason outside of it is never judged: it is written
// again, by this run or by the next one, unless a retry gave up on it.
func (c *after) send(ctx context.Context, b *message.Batch, i, j int) error {
	s, life := &c.r.Sending, ctx
	if s.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Timeout)
		defer cancel()
	}
	var refused []connectors.RowError
	rest := []rowRange{{i, j}}
	var pace *backoff.ExponentialBackOff
	for attempt := 1; ; attempt++ {
		var failed []connectors.RowError // may be written again
		for k, sp := range rest {
			err := c.attempt(ctx, b, sp)
			var rows *connectors.RowsError
			switch {
			case errors.As(err, &rows):
				for _, row := range rows.Rows {
					if again(row.Err) {
						failed = append(failed, row)
					} else {
						refused = append(refused, row)
					}
				}
			case err != nil:
				// Of the whole call: nothing is known of any of its messages, nor of
				// those that were not tried.
				if !again(err) && connectors.Classify(err) != connectors.ClassRetryable {
					return err
				}
				for _, left := range rest[k:] {
					for n := left.from; n < left.to; n++ {
						failed = append(failed, connectors.RowError{Index: n, Err: err})
					}
				}
			}
			if err != nil && rows == nil {
				break
			}
		}
		if len(failed) == 0 {
			return rowsError(refused)
		}
		cause := failed[0].Err
		if ctx.Err() != nil {
			return expired(life, s.Timeout, cause)
		}
		if s.Retry == nil || attempt >= s.Retry.Attempts {
			return c.spent(failed, refused, attempt)
		}
		if pace == nil {
			pace = &backoff.ExponentialBackOff{InitialInterval: s.Retry.Initial, MaxInterval: s.Retry.Max, Multiplier: s.Retry.Multiplier, RandomizationFactor: backoff.DefaultRandomizationFactor}
			pace.Reset()
		}
		c.r.Claim.Log.Warn("write failed, trying again", "attempt", attempt, "messages", len(failed), "error", cause)
		t := time.NewTimer(pace.NextBackOff())
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return expired(life, s.Timeout, cause)
		}
		if err := c.r.Claim.Gate(); err != nil {
			return err
		}
		rest = rangesOf(failed)
	}
}

// attempt is one write.
func (c *after) attempt(ctx context.Context, b *message.Batch, s rowRange) (err error) {
	began := c.r.Stats.Output.begin()
	defer func() { c.r.Stats.Output.end(began, s.to-s.from, err, c.sw != nil) }()
	d := c.r.Sending.AttemptTimeout
	if d == 0 {
		return c.w.Write(ctx, b, s.from, s.to)
	}
	try, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err = c.w.Write(try, b, s.from, s.to)
	if err != nil && try.Err() != nil && ctx.Err() == nil {
		var rows *connectors.RowsError
		if errors.As(err, &rows) {
			return err
		}
		return retryable(fmt.Errorf("timeout of %v: %w", d, err))
	}
	return err
}

// limited is ctx for a transaction or a part, which are one attempt each.
func (r *run) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	d := r.Sending.AttemptTimeout
	if t := r.Sending.Timeout; t > 0 && (d == 0 || t < d) {
		d = t
	}
	if d == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// spent decides on messages that failed to the last attempt. With a retry and a
// dlq they are dead letters; a connection error passes to the route all the same,
// since the message has no part in it.
func (c *after) spent(failed, refused []connectors.RowError, attempts int) error {
	for _, row := range failed {
		if connectors.Classify(row.Err) == connectors.ClassConnection || c.r.Sending.Retry == nil || c.r.DeadLetters == nil {
			return row.Err
		}
	}
	for i := range failed {
		failed[i].Err = fmt.Errorf("after %d attempts: %w", attempts, failed[i].Err)
	}
	return rowsError(append(failed, refused...))
}

// again reports whether an error leaves the message itself without blame.
func again(err error) bool {
	var e *connectors.Error
	return errors.As(err, &e) && (e.Class == connectors.ClassConnection || e.Class == connectors.ClassRetryable)
}

// expired is the error of a write whose time is over: that of the run, or else the
// time limit d.
func expired(life context.Context, d time.Duration, cause error) error {
	if life.Err() != nil {
		return life.Err()
	}
	return retryable(fmt.Errorf("timeout of %v: %w", d, cause))
}

func retryable(err error) error {
	return &connectors.Error{Class: connectors.ClassRetryable, Err: err}
}

func rowsError(rows []connectors.RowError) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b connectors.RowError) int { return a.Index - b.Index })
	return &connectors.RowsError{Rows: rows}
}

// rowRange is messages [from, to) of a batch.
type rowRange struct{ from, to int }

// rangesOf puts rows, in rising order, together to as few ranges as they are.
func rangesOf(rows []connectors.RowError) []rowRange {
	var out []rowRange
	for _, row := range rows {
		if n := len(out); n > 0 && out[n-1].to == row.Index {
			out[n-1].to++
		} else {
			out = append(out, rowRange{row.Index, row.Index + 1})
		}
	}
	return out
}
