// Package postgres keeps checkpoint records in a PostgreSQL table, one row a
// record. Conditional UPDATEs compare and write in one step; the same table
// serves the transactions of a sink in the same database (FenceSQL).
package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mqbridge/mqb/checkpoint"
	dial "github.com/mqbridge/mqb/dial/postgres"
)

// DefaultTable is the table of the records, in the first schema of the search path.
const DefaultTable = "mqb_checkpoints"

// LockTimeout is how long a call waits for a record that another session has
// locked before it returns checkpoint.ErrLocked.
const LockTimeout = time.Second

// statementTimeout bounds a call whose server hangs; every one is a single row.
const statementTimeout = 10 * time.Second

// Store implements checkpoint.Store and checkpoint.SessionEnder.
type Store struct {
	pool     *pgxpool.Pool
	identity string

	load, peek, insert, update, probe, list string
}

var (
	_ checkpoint.Store        = (*Store)(nil)
	_ checkpoint.SessionEnder = (*Store)(nil)
)

// Open connects and creates the table if it is not there; "" is DefaultTable.
// The role needs SELECT, INSERT and UPDATE on it, and CREATE on the schema where
// the table is absent. The URL must lead to the server itself, not to a
// transaction pooler. The caller closes the store.
func Open(ctx context.Context, url, table string) (*Store, error) {
	return OpenWith(ctx, url, table, dial.Options{MaxConns: 4})
}

// OpenWith is Open with pool settings; the time-outs of statements are the store's.
func OpenWith(ctx context.Context, url, table string, opt dial.Options) (*Store, error) {
	if table == "" {
		table = DefaultTable
	}
	opt.ApplicationName = "mqb checkpoints"
	opt.LockTimeout, opt.StatementTimeout = LockTimeout, statementTimeout
	cfg, err := dial.Parse(url, opt)
	if err != nil {
		return nil, err
	}
	pool, err := cfg.Pool(ctx)
	if err != nil {
		return nil, err
	}
	if err := create(ctx, pool, table); err != nil {
		pool.Close()
		return nil, fmt.Errorf("checkpoint table %s in %s: %w", table, cfg.Address(), err)
	}
	name := quoted(table)
	return &Store{
		pool:     pool,
		identity: "postgres://" + cfg.Address() + "/" + table,
		// A plain read may see the version before a commit that is still pending;
		// this one waits for its outcome.
		load: `SELECT record FROM ` + name + ` WHERE key = $1 FOR SHARE`,
		peek: `SELECT record FROM ` + name + ` WHERE key = $1`,
		insert: `INSERT INTO ` + name + ` (key, epoch, run, version, record) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (key) DO NOTHING`,
		update: `WITH u AS (` + update(name) + ` RETURNING 1)
			SELECT (SELECT count(*) FROM u) > 0, EXISTS (SELECT FROM ` + name + ` WHERE key = $1)`,
		// Waits for whoever is about to create the record. Always rolled back.
		probe: `INSERT INTO ` + name + ` (key, epoch, run, version, record) VALUES ($1, 0, '', 0, '')
			ON CONFLICT (key) DO NOTHING`,
		list: `SELECT key, record FROM ` + name + ` WHERE starts_with(key, $1) ORDER BY key`,
	}, nil
}

// update is the conditional UPDATE: $1 key, $2 expected version, $3 epoch, $4
// run, $5 version, $6 record. The comparison is part of the write (invariant 1).
func update(name string) string {
	const set = ` SET epoch = $3::bigint, run = $4::text, version = $5::bigint, record = $6::text WHERE key = $1::text`
	if !checkpoint.Fenced {
		// $2 stays in the statement, compares nothing.
		return `UPDATE ` + name + set + ` AND $2::bigint IS NOT NULL`
	}
	return `UPDATE ` + name + set + ` AND version = $2::bigint`
}

// FenceSQL is the statement with which a transaction in the same database swaps a
// record; its parameters are those of FenceArgs. When the record is not at the
// expected version it fails (SQLSTATE 22012, division by zero), so that the COMMIT
// sent behind it in the same flight cannot commit; an UPDATE of no rows would not
// stop it.
func FenceSQL(table string) string {
	if table == "" {
		table = DefaultTable
	}
	return `WITH u AS (` + update(quoted(table)) + ` RETURNING 1) SELECT 1/count(*) FROM u`
}

// FenceArgs are the parameters of FenceSQL in text format: key, expected version,
// epoch, run, version, record.
func FenceArgs(key string, expected uint64, rec checkpoint.Record) ([][]byte, error) {
	body, err := encode(expected, rec)
	if err != nil {
		return nil, err
	}
	return [][]byte{
		[]byte(key), fmt.Append(nil, expected), fmt.Append(nil, rec.Epoch), []byte(rec.Run), fmt.Append(nil, rec.Version), body,
	}, nil
}

// quoted quotes "table" or "schema.table".
func quoted(table string) string {
	return pgx.Identifier(strings.SplitN(table, ".", 2)).Sanitize()
}

func encode(expected uint64, rec checkpoint.Record) ([]byte, error) {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 || rec.Epoch > math.MaxInt64 {
		return nil, fmt.Errorf("checkpoint: version %d, epoch %d cannot follow version %d", rec.Version, rec.Epoch, expected)
	}
	return checkpoint.Encode(rec)
}

// createLock is the advisory lock under which the table is created, since CREATE
// TABLE IF NOT EXISTS fails when two sessions do it at once.
const createLock = 0x6d71625f636b7074

func create(ctx context.Context, pool *pgxpool.Pool, table string) error {
	name := quoted(table)
	// Asked first: where the table is made by an administrator, the role may not
	// be allowed to create one.
	_, err := pool.Exec(ctx, `SELECT FROM `+name+` LIMIT 0`)
	if dial.Code(err) != dial.CodeUndefinedTable {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(createLock)); err != nil {
			return err
		}
		// The "C" collation gives List the byte order. Free space in the pages
		// keeps updates on their page (HOT); an update changes no indexed column.
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+name+` (
			key     text COLLATE "C" PRIMARY KEY,
			epoch   bigint NOT NULL,
			run     text NOT NULL,
			version bigint NOT NULL,
			record  text NOT NULL
		) WITH (fillfactor = 50)`)
		return err
	})
}

// Load implements checkpoint.Store with a locking read. A commit that stays pending
// for longer than LockTimeout is a *checkpoint.LockedError.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	for {
		var body []byte
		err := s.pool.QueryRow(ctx, s.load, key).Scan(&body)
		if err == nil {
			return checkpoint.Decode(body)
		}
		if dial.Code(err) == dial.CodeLockTimeout {
			return checkpoint.Record{}, s.locked(ctx, key, err)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return checkpoint.Record{}, failed("load", key, err)
		}
		absent, err := s.absent(ctx, key)
		if err != nil {
			return checkpoint.Record{}, failed("load", key, err)
		}
		if absent {
			return checkpoint.Record{}, checkpoint.ErrNotFound
		}
	}
}

// locked adds the record as last committed, whose session is the one to blame.
func (s *Store) locked(ctx context.Context, key string, err error) error {
	var body []byte
	if s.pool.QueryRow(ctx, s.peek, key).Scan(&body) == nil {
		if rec, decodeErr := checkpoint.Decode(body); decodeErr == nil {
			return fmt.Errorf("load: %w", &checkpoint.LockedError{Key: key, Committed: rec})
		}
	}
	return failed("load", key, err)
}

// absent says for sure that there is no record: one that is being created cannot
// be seen or locked by a read, but it makes a second insert wait.
func (s *Store) absent(ctx context.Context, key string) (bool, error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	tag, err := tx.Exec(ctx, s.probe, key)
	return tag.RowsAffected() == 1, err
}

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	body, err := encode(expected, rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	if expected == 0 {
		tag, err := s.pool.Exec(ctx, s.insert, key, int64(rec.Epoch), rec.Run, int64(rec.Version), string(body))
		switch {
		case err != nil:
			return failed("create", key, err)
		case tag.RowsAffected() == 0:
			return checkpoint.ErrConflict
		}
		return nil
	}
	var swapped, exists bool
	err = s.pool.QueryRow(ctx, s.update, key, int64(expected), int64(rec.Epoch), rec.Run, int64(rec.Version), string(body)).Scan(&swapped, &exists)
	switch {
	case err != nil:
		return failed("swap", key, err)
	case swapped:
		return nil
	case !exists:
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	}
	return checkpoint.ErrConflict
}

// List implements checkpoint.Store. It is a plain read: what is committed.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	rows, err := s.pool.Query(ctx, s.list, prefix)
	if err != nil {
		return nil, failed("list", prefix, err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (checkpoint.Entry, error) {
		var e checkpoint.Entry
		var body []byte
		if err := row.Scan(&e.Key, &body); err != nil {
			return e, err
		}
		e.Record, e.Err = checkpoint.Decode(body)
		return e, nil
	})
	if err != nil {
		return nil, failed("list", prefix, err)
	}
	return entries, nil
}

// EndSession implements checkpoint.SessionEnder for sessions named by
// dial/postgres.Session.
func (s *Store) EndSession(ctx context.Context, session string) error {
	return dial.EndSession(ctx, s.pool, session)
}

// Identity implements checkpoint.Store.
func (s *Store) Identity() string { return s.identity }

// Close ends the pool's connections and waits for calls under way.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

func failed(op, key string, err error) error {
	if dial.Code(err) == dial.CodeLockTimeout {
		return fmt.Errorf("%s %s: %w", op, key, checkpoint.ErrLocked)
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}
