package pipeline

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/connectors"
)

// CallBounds are the upper bounds of the durations that Calls counts apart, in
// seconds: from a write into the page cache to one that a slow broker holds up.
var CallBounds = [...]float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30}

// Calls measures the calls of one partition to its input or its output, over all
// its runs, where the middleware metrics asks for it. Counted once per call, not
// per message. Written by a run's loops, read by anyone.
type Calls struct {
	asked                    atomic.Bool
	messages, failed, errors atomic.Int64
	nanoseconds              atomic.Int64
	buckets                  [len(CallBounds) + 1]atomic.Int64
}

// CallCounts is what Calls has counted.
type CallCounts struct {
	// Messages that were read or written, and those that were not: refused, or in
	// a call that failed.
	Messages, Failed int64
	// Errors counts calls that failed as a whole.
	Errors int64
	// Calls, and the time that they took together.
	Calls uint64
	Took  time.Duration
	// Within counts the calls that took at most each of CallBounds.
	Within map[float64]uint64
}

// Counts returns a snapshot, nil if nobody asks for it.
func (c *Calls) Counts() *CallCounts {
	if !c.asked.Load() {
		return nil
	}
	out := &CallCounts{
		Messages: c.messages.Load(), Failed: c.failed.Load(), Errors: c.errors.Load(),
		Took: time.Duration(c.nanoseconds.Load()), Within: make(map[float64]uint64, len(CallBounds)),
	}
	for i := range c.buckets {
		out.Calls += uint64(c.buckets[i].Load())
		if i < len(CallBounds) {
			out.Within[CallBounds[i]] = out.Calls
		}
	}
	return out
}

// begin is the start of a call; zero where it is not measured.
func (c *Calls) begin() time.Time {
	if !c.asked.Load() {
		return time.Time{}
	}
	return time.Now()
}

// end counts a call of n messages. The end of the input and being told to stop
// are no failures. whole: a writer that refuses rows has written none of the
// others, which come again with the next call.
func (c *Calls) end(began time.Time, n int, err error, whole bool) {
	if began.IsZero() {
		return
	}
	var rows *connectors.RowsError
	switch {
	case errors.As(err, &rows):
		c.failed.Add(int64(len(rows.Rows)))
		if !whole {
			c.messages.Add(int64(n - len(rows.Rows)))
		}
	case errors.Is(err, context.Canceled), errors.Is(err, connectors.ErrEndOfInput):
		return
	case err != nil:
		c.errors.Add(1)
		c.failed.Add(int64(n))
	default:
		c.messages.Add(int64(n))
	}
	took := time.Since(began)
	c.nanoseconds.Add(int64(took))
	i := 0
	for i < len(CallBounds) && took.Seconds() > CallBounds[i] {
		i++
	}
	c.buckets[i].Add(1)
}
