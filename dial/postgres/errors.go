package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Class says what an error of the driver or the server means.
type Class int

const (
	// ClassOther: a lock or statement time-out, a deadlock, a full disk: trying
	// again may help.
	ClassOther Class = iota
	// ClassConnection: the way to the server, or the server is starting or full.
	ClassConnection
	// ClassData: the server refused a row for what is in it.
	ClassData
	// ClassPermanent: the statement, the schema, or the credentials.
	ClassPermanent
	// ClassSuspect: somebody ended our session.
	ClassSuspect
	// ClassStopped: our own context ended.
	ClassStopped
)

// The SQLSTATEs that are looked at one by one.
const (
	// CodeLockTimeout is the state of lock_timeout.
	CodeLockTimeout = "55P03"
	// CodeDivisionByZero is what a fence of no rows answers.
	CodeDivisionByZero = "22012"
	// CodeCardinality: a key came twice in an INSERT … ON CONFLICT DO UPDATE.
	CodeCardinality = "21000"
	// CodeProtocol is what a pooler (PgBouncer) answers to the settings of a session,
	// and to whatever else goes wrong on its side.
	CodeProtocol = "08P01"
	// CodeUndefinedTable: no such table.
	CodeUndefinedTable = "42P01"
)

// Code is the SQLSTATE of an error, "" if the server did not send it.
func Code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Plain returns err with the reason why the driver could not connect said once. The
// driver tries each address with and without TLS and names every attempt; what
// the server answered says more than that it has no TLS.
func Plain(err error) error {
	var c *pgconn.ConnectError
	if !errors.As(err, &c) {
		return err
	}
	return &plainError{text: strings.Replace(err.Error(), c.Error(), reason(c), 1), err: err}
}

type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }

func (e *plainError) Unwrap() error { return e.err }

func reason(c *pgconn.ConnectError) string {
	var pg *pgconn.PgError
	if errors.As(c, &pg) {
		return pg.Error()
	}
	var said []string
	for line := range strings.Lines(c.Unwrap().Error()) {
		line = strings.TrimSpace(line)
		if _, dial, ok := strings.Cut(line, ": dial error: "); ok {
			line = dial // which names the address itself
		}
		if line != "" && !strings.Contains(strings.Join(said, "\n"), line) {
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// Classify is the one place that knows SQLSTATEs and driver errors.
func Classify(err error) Class {
	if code := Code(err); len(code) == 5 {
		switch {
		case code == codePrivilege && ofPolicy(err):
			return ClassData
		case code == CodeProtocol && ofPooler(err):
			return ClassPermanent
		}
		return classifyCode(code)
	}
	var network net.Error
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, context.Canceled):
		return ClassStopped
	case errors.As(err, &connect), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, pgconn.ErrConnClosed), errors.Is(err, context.DeadlineExceeded):
		return ClassConnection
	}
	return ClassOther
}

func classifyCode(code string) Class {
	switch code {
	case "57P01": // admin_shutdown: pg_terminate_backend, and a server going down
		return ClassSuspect
	case "57P02", "57P03", "57P05", "25P03", "25P04", "53300":
		// crash, starting up, idle and transaction time-outs, too many connections
		return ClassConnection
	}
	switch class := code[:2]; class {
	case "08":
		return ClassConnection
	case "22", "23", "44": // data, constraints, WITH CHECK OPTION
		return ClassData
	case "54": // an index entry too large, JSON nested too deep
		return ClassData
	case "21", "38", "P0": // a trigger's query, its code in another language, its RAISE
		return ClassData
	case "0A", "28", "3D", "3F", "42":
		return ClassPermanent
	default:
		if !strings.Contains(ownClasses, class) {
			return ClassData // ERRCODE of a trigger's RAISE
		}
	}
	return ClassOther
}

// ownClasses are the classes of SQLSTATEs that the server has a use for; those of
// others were made up by whoever wrote a trigger.
const ownClasses = "00 01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX"

// codePrivilege is the state of what a role may not do, and of a row that a policy
// of the table (CREATE POLICY … WITH CHECK) refuses.
const codePrivilege = "42501"

// ofPolicy: the place in the server tells the two apart, whatever its language.
func ofPolicy(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Routine == "ExecWithCheckOptions"
}

// ofPooler: PgBouncer knows one state only, and has no other languages. What it does
// not say of settings, as that its server is gone, passes.
func ofPooler(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Message, "unsupported startup parameter")
}
