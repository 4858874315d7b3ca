package connectors

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
)

var (
	// ErrEndOfInput: the source has an end and it was reached, for now.
	ErrEndOfInput = errors.New("end of input")
	// ErrGap: the source lost data that we had not read, or was replaced.
	ErrGap = errors.New("gap in the source")
	// ErrGateClosed: this node cannot prove its lease; writes are cancelled.
	ErrGateClosed = lease.ErrGateClosed
	// ErrSuspect: the sink says another writer may have taken over (killed
	// session, lost slot); the coordinator decides.
	ErrSuspect = errors.New("writer may have been taken over")
)

// Class decides what happens to a run that ended with an error.
type Class string

const (
	// ClassConnection: back off and try again; ownership is kept for give_up_after.
	ClassConnection Class = "connection"
	// ClassRetryable: the same, without blaming the network.
	ClassRetryable Class = "retryable"
	// ClassData: one record cannot be handled and the route's rule is to stop.
	ClassData Class = "data"
	// ClassPermanent: configuration; the partition stops until the route changes.
	ClassPermanent Class = "permanent"
	// ClassGap, ClassRegressed, ClassForeign stop the partition loudly.
	ClassGap       Class = "gap"
	ClassRegressed Class = "regressed"
	ClassForeign   Class = "foreign"
	// ClassFenced and ClassSuspect: ask the coordinator who owns it.
	ClassFenced  Class = "fenced"
	ClassSuspect Class = "suspect"
	// ClassSuspended: the gate closed; a new run starts when the lease is proven.
	ClassSuspended Class = "suspended"
	// ClassStopped: we asked for it.
	ClassStopped Class = "stopped"
	// ClassBug: a panic; restarts are limited.
	ClassBug Class = "bug"
)

// Error gives an error its class and a hint for the person who reads it.
type Error struct {
	Class Class
	Err   error
	// Hint says what to do, in words; "" if the error says it itself.
	Hint string
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + " (" + e.Hint + ")"
}

func (e *Error) Unwrap() error { return e.Err }

// Permanent marks an error that trying again cannot cure.
func Permanent(err error, hint string) error {
	return &Error{Class: ClassPermanent, Err: err, Hint: hint}
}

// Connection marks an error of the way to the system.
func Connection(err error) error { return &Error{Class: ClassConnection, Err: err} }

// RowError is one refused message. Err of class connection or retryable means
// that the message itself is fine and may be written again (middleware retry);
// anything else blames the message.
type RowError struct {
	Index int
	Err   error
}

// RowsError names messages that were refused, in rising order of Index.
type RowsError struct{ Rows []RowError }

func (e *RowsError) Error() string {
	s := make([]string, 0, 3)
	for _, r := range e.Rows {
		if len(s) == cap(s) {
			s = append(s, "…")
			break
		}
		s = append(s, fmt.Sprintf("row %d: %v", r.Index, r.Err))
	}
	return fmt.Sprintf("%d records refused: %s", len(e.Rows), strings.Join(s, "; "))
}

// Classify is the one place that decides what an error means. An *Error says it
// itself; the sentinels come next; what is unknown is retryable, since stopping
// for good on something we do not understand would need a person at night.
func Classify(err error) Class {
	var e *Error
	var rows *RowsError
	switch {
	case err == nil:
		return ClassStopped
	case errors.Is(err, checkpoint.ErrFenced):
		return ClassFenced
	case errors.Is(err, ErrGateClosed):
		return ClassSuspended
	case errors.Is(err, ErrSuspect):
		return ClassSuspect
	case errors.Is(err, ErrGap):
		return ClassGap
	case errors.Is(err, checkpoint.ErrRegressed):
		return ClassRegressed
	case errors.Is(err, checkpoint.ErrForeign):
		return ClassForeign
	case errors.Is(err, checkpoint.ErrTooLarge), errors.Is(err, checkpoint.ErrMoved):
		return ClassPermanent
	case errors.As(err, &e):
		return e.Class
	case errors.As(err, &rows):
		return ClassData
	case errors.Is(err, context.Canceled):
		return ClassStopped
	}
	return ClassRetryable
}
