package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
)

// Code says what kind of failure an Error is. Codes are stable.
type Code string

const (
	CodeFailed      Code = "failed"
	CodeUsage       Code = "usage"
	CodeInvalid     Code = "invalid_configuration"
	CodeUnreachable Code = "unreachable"
	CodeRefused     Code = "refused"
	CodeNotFound    Code = "not_found"
	// CodeUnknownClient: no token or certificate that the node knows.
	CodeUnknownClient Code = "unauthenticated"
)

// Error is how every failure leaves the API, and what the client returns.
type Error struct {
	Message string   `json:"error"`
	Code    Code     `json:"code"`
	Hint    string   `json:"hint,omitempty"`
	Details []string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	for _, d := range e.Details {
		b.WriteString("\n  ")
		b.WriteString(d)
	}
	if e.Hint != "" {
		b.WriteString("\nhint: ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// ExitCode is the exit code of a command that failed with this error: 1 failed,
// 2 usage, 3 invalid configuration, 4 unreachable, 5 refused.
func (e *Error) ExitCode() int {
	switch e.Code {
	case CodeUsage:
		return 2
	case CodeInvalid:
		return 3
	case CodeUnreachable:
		return 4
	case CodeRefused, CodeUnknownClient:
		return 5
	}
	return 1
}

func (e *Error) status() int {
	switch e.Code {
	case CodeUsage:
		return http.StatusBadRequest
	case CodeInvalid:
		return http.StatusUnprocessableEntity
	case CodeUnreachable:
		return http.StatusServiceUnavailable
	case CodeRefused:
		return http.StatusConflict
	case CodeNotFound:
		return http.StatusNotFound
	case CodeUnknownClient:
		return http.StatusUnauthorized
	}
	return http.StatusInternalServerError
}

// AsError turns any error of the layers below into an Error.
func AsError(err error) *Error {
	var e *Error
	var invalid *catalog.Invalid
	var refusal *catalog.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.As(err, &invalid):
		if len(invalid.Problems) == 1 {
			return &Error{Message: invalid.Problems[0].Error(), Code: CodeInvalid}
		}
		out := &Error{
			Message: fmt.Sprintf("%d errors in the configuration", len(invalid.Problems)),
			Code:    CodeInvalid,
		}
		for _, p := range invalid.Problems {
			out.Details = append(out.Details, p.Error())
		}
		return out
	case errors.As(err, &refusal):
		plain := *refusal
		plain.Hint = ""
		return &Error{Message: plain.Error(), Code: CodeRefused, Hint: refusal.Hint}
	case errors.Is(err, catalog.ErrNotFound):
		return &Error{Message: err.Error(), Code: CodeNotFound}
	case errors.Is(err, lease.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return &Error{
			Message: err.Error(), Code: CodeUnreachable,
			Hint: "the cluster has no leader, or this node cannot reach it; see mqbctl nodes",
		}
	case connectors.Classify(err) == connectors.ClassConnection:
		return &Error{Message: err.Error(), Code: CodeUnreachable}
	}
	return &Error{Message: err.Error(), Code: CodeFailed}
}
