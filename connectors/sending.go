package connectors

import (
	"time"

	"github.com/mqbridge/mqb/route"
)

// Sending is what the middlewares of an output ask of whoever writes: they are no
// stages that a batch passes, but rules for the write itself. The zero value asks
// for nothing.
type Sending struct {
	// Retry repeats a write; nil: an error ends the run, which begins again.
	Retry *Retry
	// AttemptTimeout bounds one write, Timeout all attempts of it together; 0 is
	// unbounded. A write that expired counts as retryable.
	AttemptTimeout, Timeout time.Duration
	// Buffer gathers messages before they are written; nil: what comes is written.
	Buffer *Buffer
	// DeadLetters is the endpoint of the dlq; nil if there is none.
	DeadLetters *route.Endpoint
	// MeasureInput and MeasureOutput ask for counters and durations of the calls to
	// the reader and to the writer.
	MeasureInput, MeasureOutput bool
}

// Retry says how a write is repeated: at most Attempts in all, with pauses from
// Initial on, each Multiplier times the one before and at most Max.
type Retry struct {
	Attempts     int
	Initial, Max time.Duration
	Multiplier   float64
}

// Buffer says how much is gathered, and for how long after the first message.
type Buffer struct {
	Messages int
	Delay    time.Duration
}
