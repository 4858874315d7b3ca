// Package mysql keeps checkpoint records in a table of MySQL or MariaDB, one row a
// record. Conditional UPDATEs compare and write in one step.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	dial "github.com/mqbridge/mqb/dial/mysql"
)

// DefaultTable is the table of the records.
const DefaultTable = "mqb_checkpoints"

// LockTimeout is how long a call waits for a record that another session has
// locked before it returns checkpoint.ErrLocked. The server's own 50 s would be
// the pause of a failover.
const LockTimeout = time.Second

// replyTimeout bounds a call whose server hangs; every one is a single row.
const replyTimeout = 10 * time.Second

// Store implements checkpoint.Store and checkpoint.SessionEnder.
type Store struct {
	db       *sql.DB
	identity string

	load, peek, insert, update, exists, list string
}

var (
	_ checkpoint.Store        = (*Store)(nil)
	_ checkpoint.SessionEnder = (*Store)(nil)
)

// Open connects to mysql://user:password@host:port/database[/table], creates the
// table if it is not there, and refuses a table or server that could forget a
// record: another engine than InnoDB, or settings that lose commits in a crash.
// The user needs SELECT, INSERT and UPDATE on the table, and CREATE where it is
// absent. The URL must lead to the server itself, not to a pooler of sessions. The
// caller closes the store.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	rawURL, table := splitTable(rawURL)
	cfg, err := dial.Parse(rawURL, dial.Options{LockTimeout: LockTimeout, ReplyTimeout: replyTimeout, MaxConns: 4})
	if err != nil {
		return nil, fmt.Errorf("checkpoint store: %w", err)
	}
	db, err := cfg.Pool()
	if err != nil {
		return nil, fmt.Errorf("checkpoint store: %w", err)
	}
	if err := prepare(ctx, db, table); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("checkpoint table %s in mysql://%s: %w", table, cfg.Address(), err)
	}
	name := quoted(table)
	// The comparison is part of the write (invariant 1).
	comparison := "version = ?"
	if !checkpoint.Fenced {
		comparison = "? IS NOT NULL" // takes the parameter, compares nothing
	}
	return &Store{
		db:       db,
		identity: "mysql://" + cfg.Address() + "/" + table,
		// A plain read may see the version before a commit that is still pending;
		// this one waits for its outcome, also for that of a row being created.
		load:   "SELECT record FROM " + name + " WHERE `key` = ? FOR UPDATE",
		peek:   "SELECT record FROM " + name + " WHERE `key` = ?",
		insert: "INSERT INTO " + name + " (epoch, run, version, record, `key`) VALUES (?, ?, ?, ?, ?)",
		update: "UPDATE " + name + " SET epoch = ?, run = ?, version = ?, record = ? WHERE `key` = ? AND " + comparison,
		exists: "SELECT COUNT(*) FROM " + name + " WHERE `key` = ?",
		list:   "SELECT `key`, record FROM " + name + " WHERE LEFT(`key`, ?) = ? ORDER BY `key`",
	}, nil
}

// splitTable takes the table off a URL's path.
func splitTable(rawURL string) (withoutTable, table string) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL, DefaultTable
	}
	db, table, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if !ok || table == "" {
		return rawURL, DefaultTable
	}
	u.Path, u.RawPath = "/"+db, ""
	return u.String(), table
}

func quoted(table string) string { return "`" + strings.ReplaceAll(table, "`", "``") + "`" }

func prepare(ctx context.Context, db *sql.DB, table string) error {
	if err := dial.Durable(ctx, db); err != nil {
		return err
	}
	// Asked first: where the table is made by an administrator, the user may not
	// be allowed to create one.
	_, err := db.ExecContext(ctx, "SELECT 1 FROM "+quoted(table)+" LIMIT 0")
	if dial.Code(err) == dial.CodeNoSuchTable {
		// Binary keys: a collation would take "a", "A" and "a " for one key.
		_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+quoted(table)+" ("+
			"`key`   VARBINARY(2048) PRIMARY KEY,"+
			"epoch   BIGINT UNSIGNED NOT NULL,"+
			"run     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,"+
			"version BIGINT UNSIGNED NOT NULL,"+
			"record  MEDIUMBLOB NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC")
	}
	if err != nil {
		return err
	}
	var engine string
	err = db.QueryRowContext(ctx, `SELECT COALESCE(engine, '') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?`, table).Scan(&engine)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errors.New("information_schema does not show the table")
	case err != nil:
		return err
	case engine != "InnoDB":
		return fmt.Errorf("its engine is %q, which keeps no record safe: ALTER TABLE %s ENGINE = InnoDB", engine, quoted(table))
	}
	return nil
}

// Load implements checkpoint.Store with a locking read. A commit that stays
// pending for longer than LockTimeout is a *checkpoint.LockedError.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	body, err := s.lockedRead(ctx, key)
	switch {
	case err == nil:
		return checkpoint.Decode(body)
	case errors.Is(err, sql.ErrNoRows):
		return checkpoint.Record{}, checkpoint.ErrNotFound
	case dial.Code(err) == dial.CodeLockTimeout:
		return checkpoint.Record{}, s.locked(ctx, key)
	}
	return checkpoint.Record{}, failed("load", key, err)
}

// lockedRead reads in a transaction of its own, since outside of one the server
// need not lock. It always ends the whole of it: a lock time-out undoes one
// statement only.
func (s *Store) lockedRead(ctx context.Context, key string) ([]byte, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	var body []byte
	err = tx.QueryRowContext(ctx, s.load, []byte(key)).Scan(&body)
	return body, errors.Join(err, tx.Rollback())
}

// locked adds the record as last committed, whose session is the one to blame.
func (s *Store) locked(ctx context.Context, key string) error {
	var body []byte
	if s.db.QueryRowContext(ctx, s.peek, []byte(key)).Scan(&body) == nil {
		if rec, err := checkpoint.Decode(body); err == nil {
			return fmt.Errorf("load: %w", &checkpoint.LockedError{Key: key, Committed: rec})
		}
	}
	return fmt.Errorf("load %s: %w", key, checkpoint.ErrLocked)
}

// deadlockTries bounds how often a statement is repeated that a deadlock undid:
// two creators of a record may meet in one when a third gives up.
const deadlockTries = 8

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 {
		return fmt.Errorf("swap %s: version %d cannot follow version %d", key, rec.Version, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	statement := s.insert
	args := []any{rec.Epoch, rec.Run, rec.Version, body, []byte(key)}
	if expected > 0 {
		statement, args = s.update, append(args, expected)
	}
	var res sql.Result
	for range deadlockTries {
		if res, err = s.db.ExecContext(ctx, statement, args...); dial.Code(err) != dial.CodeDeadlock {
			break
		}
	}
	switch {
	case expected == 0 && dial.Code(err) == dial.CodeDuplicate:
		return checkpoint.ErrConflict
	case err != nil:
		return failed("swap", key, err)
	}
	// The rows that matched (clientFoundRows), also those that were the same before.
	n, err := res.RowsAffected()
	if err != nil {
		return failed("swap", key, err)
	}
	if n > 0 {
		return nil
	}
	if err := s.db.QueryRowContext(ctx, s.exists, []byte(key)).Scan(&n); err != nil {
		return failed("swap", key, err)
	}
	if n == 0 {
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	}
	return checkpoint.ErrConflict
}

// List implements checkpoint.Store. It is a plain read: what is committed.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	rows, err := s.db.QueryContext(ctx, s.list, len(prefix), []byte(prefix))
	if err != nil {
		return nil, failed("list", prefix, err)
	}
	defer rows.Close()
	var out []checkpoint.Entry
	for rows.Next() {
		var e checkpoint.Entry
		var body []byte
		if err := rows.Scan(&e.Key, &body); err != nil {
			return nil, failed("list", prefix, err)
		}
		e.Record, e.Err = checkpoint.Decode(body)
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, failed("list", prefix, err)
	}
	return out, nil
}

// EndSession implements checkpoint.SessionEnder for sessions named by
// dial/mysql.Session.
func (s *Store) EndSession(ctx context.Context, session string) error {
	return dial.EndSession(ctx, s.db, session)
}

// Identity implements checkpoint.Store.
func (s *Store) Identity() string { return s.identity }

// Close ends the pool's connections.
func (s *Store) Close() error { return s.db.Close() }

func failed(op, key string, err error) error {
	if dial.Code(err) == dial.CodeLockTimeout {
		return fmt.Errorf("%s %s: %w", op, key, checkpoint.ErrLocked)
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}
