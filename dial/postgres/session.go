package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
)

// Querier is a connection or a pool.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// startFormat writes backend_start to the microsecond, whatever time zone and
// date style the session has.
const startFormat = `to_char(backend_start AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS')`

// Session returns the identity of the server session behind a connection,
// "pid:backend_start". Process ids are reused, pairs are not.
func Session(ctx context.Context, conn *pgx.Conn) (string, error) {
	var s string
	err := conn.QueryRow(ctx, `SELECT pid || ':' || `+startFormat+` FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&s)
	if err != nil {
		return "", fmt.Errorf("postgres: session identity: %w", err)
	}
	return s, nil
}

// EndSession terminates the session and returns when it is gone, and with it its
// transaction and its locks. One that no longer exists is no error, and a session
// that got the same process id later is left alone. The sessions of other roles
// can be ended by members of pg_signal_backend only.
func EndSession(ctx context.Context, db Querier, session string) error {
	pid, start, ok := strings.Cut(session, ":")
	if !ok || pid == "" || start == "" || strings.Trim(pid+start, "0123456789") != "" {
		return fmt.Errorf("postgres: %q is not a session", session)
	}
	poll := backoff.NewExponentialBackOff()
	poll.InitialInterval, poll.MaxInterval = 2*time.Millisecond, 100*time.Millisecond
	// A terminated session is asked again until it is gone: the signal is only a
	// request, and rolling back takes its time.
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		var signalled bool
		err := db.QueryRow(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid = $1::text::int AND `+startFormat+` = $2 AND pid <> pg_backend_pid()`, pid, start).Scan(&signalled)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, errStillThere
	}, backoff.WithBackOff(poll), backoff.WithMaxElapsedTime(endWithin))
	if err != nil {
		return fmt.Errorf("postgres: end session %s: %w", session, err)
	}
	return nil
}

// endWithin bounds the wait for a session that was told to end.
const endWithin = 10 * time.Second

var errStillThere = errors.New("still there after pg_terminate_backend")
