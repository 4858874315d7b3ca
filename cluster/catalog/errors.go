package catalog

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound: no route, or no checkpoint, of this name.
	ErrNotFound = errors.New("not found")
	// ErrContended: others kept changing the same route; nothing was written.
	ErrContended = errors.New("the route is being changed by others")
)

// Refusal is a request that is understood and not done, because doing it would
// lose, repeat or weaken something. It names the way out.
type Refusal struct {
	Route  string
	Reason string
	// Hint is what to do, as an operator would type it.
	Hint string
}

func (e *Refusal) Error() string {
	s := e.Reason
	if e.Route != "" {
		s = fmt.Sprintf("route %s: %s", e.Route, e.Reason)
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Invalid is a file that cannot be applied; Problems has every error in it, each
// with its place.
type Invalid struct{ Problems []error }

func (e *Invalid) Error() string {
	switch len(e.Problems) {
	case 0:
		return "invalid configuration"
	case 1:
		return e.Problems[0].Error()
	}
	return fmt.Sprintf("%v, and %d more errors", e.Problems[0], len(e.Problems)-1)
}

func (e *Invalid) Unwrap() []error { return e.Problems }
