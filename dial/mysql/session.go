package mysql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// lockName is the user-level lock by which a session is known: its name is
// random, one session holds it and it goes with the session.
func lockName(token string) string { return "mqb:" + token }

// Session marks the server session behind a connection and returns its identity,
// "connection id:token". Connection ids begin anew with each start of the server,
// so the token, the name of a lock that the session holds as long as it lives,
// tells it from a later one. Call it once for each connection that a record names.
func Session(ctx context.Context, conn *sql.Conn) (string, error) {
	token := rand.Text()
	var got sql.NullInt64
	var id, holder uint64
	err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, 0)`, lockName(token)).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("GET_LOCK was refused")
	}
	if err == nil {
		// A statement of its own: behind a proxy it may come to another session.
		err = conn.QueryRowContext(ctx, `SELECT CONNECTION_ID(), COALESCE(IS_USED_LOCK(?), 0)`, lockName(token)).Scan(&id, &holder)
	}
	if err == nil && id != holder {
		err = errors.New("statements of one connection reach different sessions: a proxy is in between; give the address of the server itself")
	}
	if err != nil {
		return "", fmt.Errorf("mysql: session identity: %w", err)
	}
	return fmt.Sprintf("%d:%s", id, token), nil
}

// EndSession kills the session and returns when it is gone, and with it its
// transaction and its locks. One that no longer exists is no error, and a session
// that got the same connection id later is left alone. The sessions of other users
// can be ended with the privilege CONNECTION_ADMIN (MySQL: also SUPER) only.
func EndSession(ctx context.Context, db Querier, session string) error {
	id, token, ok := strings.Cut(session, ":")
	if !ok || id == "" || token == "" || strings.Trim(id, "0123456789") != "" {
		return fmt.Errorf("mysql: %q is not a session", session)
	}
	poll := backoff.NewExponentialBackOff()
	poll.InitialInterval, poll.MaxInterval = 2*time.Millisecond, 100*time.Millisecond
	// Asked again until it is gone: KILL is only a request, and rolling back takes
	// its time. The session gives its lock back after its transaction.
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		var holder sql.NullString
		err := db.QueryRowContext(ctx, `SELECT IS_USED_LOCK(?)`, lockName(token)).Scan(&holder)
		switch {
		case err != nil:
			return struct{}{}, backoff.Permanent(err)
		case !holder.Valid || holder.String != id:
			return struct{}{}, nil
		}
		// Ids are not used again while the server lives, so this is still the
		// session that held the lock a moment ago.
		if _, err := db.ExecContext(ctx, `KILL CONNECTION `+id); err != nil && Code(err) != codeNoSuchThread {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, errStillThere
	}, backoff.WithBackOff(poll), backoff.WithMaxElapsedTime(endWithin))
	if err != nil {
		return fmt.Errorf("mysql: end session %s: %w", session, err)
	}
	return nil
}

// endWithin bounds the wait for a session that was told to end.
const endWithin = 10 * time.Second

var errStillThere = errors.New("still there after KILL")
