// Package sqlite keeps checkpoint records in a table of a SQLite database, one row
// a record. Conditional UPDATEs compare and write in one step.
//
// A database that is new has a rollback journal, one that is in WAL mode stays in
// it. The journal is the better one for records: other machines that mount the
// directory may open the database (WAL needs memory that they share), a file that
// was replaced beneath an open connection is noticed by the next write, and a
// record is written so seldom that one flush more does not count. Either way a
// commit is on the disk, and so is the end of its journal, before it is
// acknowledged (synchronous = EXTRA).
//
// SQLite locks the whole file, and no session can be ended from outside: a process
// that freezes inside of a commit blocks the others until it dies. On one machine
// that is the node itself. With shared_storage, file:// has no such lock.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/mqbridge/mqb/checkpoint"
)

// DefaultTable is the table of the records.
const DefaultTable = "mqb_checkpoints"

// LockTimeout is how long a call waits for a database that another process writes
// to before it returns checkpoint.ErrLocked.
const LockTimeout = time.Second

// Store implements checkpoint.Store.
type Store struct {
	db       *sql.DB
	identity string

	load, insert, update, exists, list string
}

var _ checkpoint.Store = (*Store)(nil)

// Open opens sqlite:///path/file.db[/table] and creates the file, but not its
// directory, and the table if they are not there. The caller closes the store.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	path, table, err := splitURL(rawURL)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("checkpoint store sqlite://%s: %w", path, err)
	}
	// One connection: the calls of this store queue here, in order, and only other
	// processes are waited for by polling.
	db.SetMaxOpenConns(1)
	name := `"` + strings.ReplaceAll(table, `"`, `""`) + `"`
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+name+` (
		key     TEXT PRIMARY KEY NOT NULL,
		epoch   INTEGER NOT NULL,
		run     TEXT NOT NULL,
		version INTEGER NOT NULL,
		record  BLOB NOT NULL
	)`)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("checkpoint table %s in sqlite://%s: %w", table, path, classified(err))
	}
	// The comparison is part of the write (invariant 1).
	comparison := `version = ?`
	if !checkpoint.Fenced {
		comparison = `? IS NOT NULL` // takes the parameter, compares nothing
	}
	return &Store{
		db:       db,
		identity: "sqlite://" + path + "/" + table,
		load:     `SELECT record FROM ` + name + ` WHERE key = ?`,
		insert: `INSERT INTO ` + name + ` (epoch, run, version, record, key) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (key) DO NOTHING`,
		update: `UPDATE ` + name + ` SET epoch = ?, run = ?, version = ?, record = ? WHERE key = ? AND ` + comparison,
		exists: `SELECT EXISTS (SELECT 1 FROM ` + name + ` WHERE key = ?)`,
		list:   `SELECT key, record FROM ` + name + ` WHERE key >= ? ORDER BY key`,
	}, nil
}

// suffixes of the database's file, behind which a URL may name a table.
var suffixes = []string{".db", ".db3", ".sqlite", ".sqlite3"}

func splitURL(rawURL string) (path, table string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "sqlite" {
		return "", "", errors.New("checkpoint store: not a sqlite:// URL")
	}
	path = filepath.Clean(u.Path)
	if u.Host != "" || !filepath.IsAbs(path) || path == "/" {
		return "", "", fmt.Errorf("checkpoint store %s: the path of the database must be absolute: sqlite:///var/lib/mqb/checkpoints.db", u.Redacted())
	}
	dir, last := filepath.Split(path)
	for _, s := range suffixes {
		if strings.HasSuffix(filepath.Clean(dir), s) {
			return filepath.Clean(dir), last, nil
		}
	}
	return path, DefaultTable, nil
}

func dsn(path string) string {
	q := url.Values{}
	q.Add("_pragma", "busy_timeout("+strconv.FormatInt(LockTimeout.Milliseconds(), 10)+")")
	// EXTRA flushes the directory too: after a power cut a journal that was removed
	// and is there again would undo the commit.
	q.Add("_pragma", "synchronous(EXTRA)")
	// A transaction locks when it begins, so that one which reads first does too.
	q.Set("_txlock", "immediate")
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	return u.String()
}

// Load implements checkpoint.Store. In WAL mode a plain read would see the version
// before a commit that is still pending; the read of a writer waits for it.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	body, err := s.lockedRead(ctx, key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return checkpoint.Record{}, checkpoint.ErrNotFound
	case err != nil:
		return checkpoint.Record{}, fmt.Errorf("load %s: %w", key, classified(err))
	}
	return checkpoint.Decode(body)
}

func (s *Store) lockedRead(ctx context.Context, key string) ([]byte, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	var body []byte
	err = tx.QueryRowContext(ctx, s.load, key).Scan(&body)
	return body, errors.Join(err, tx.Rollback())
}

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 || rec.Epoch > math.MaxInt64 {
		return fmt.Errorf("swap %s: version %d, epoch %d cannot follow version %d", key, rec.Version, rec.Epoch, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	statement := s.insert
	args := []any{int64(rec.Epoch), rec.Run, int64(rec.Version), body, key}
	if expected > 0 {
		statement, args = s.update, append(args, int64(expected))
	}
	swapped, exists := false, true
	res, err := s.db.ExecContext(ctx, statement, args...)
	if err == nil {
		var n int64
		n, err = res.RowsAffected()
		swapped = n > 0
	}
	if err == nil && !swapped && expected > 0 {
		err = s.db.QueryRowContext(ctx, s.exists, key).Scan(&exists)
	}
	switch {
	case err != nil:
		return fmt.Errorf("swap %s: %w", key, classified(err))
	case swapped:
		return nil
	case !exists:
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	}
	return checkpoint.ErrConflict
}

// List implements checkpoint.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	entries, err := s.entries(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, classified(err))
	}
	return entries, nil
}

func (s *Store) entries(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	rows, err := s.db.QueryContext(ctx, s.list, prefix)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []checkpoint.Entry
	for rows.Next() {
		var e checkpoint.Entry
		var body []byte
		if err := rows.Scan(&e.Key, &body); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(e.Key, prefix) {
			break // keys come in order
		}
		e.Record, e.Err = checkpoint.Decode(body)
		out = append(out, e)
	}
	return out, rows.Err()
}

// Identity implements checkpoint.Store.
func (s *Store) Identity() string { return s.identity }

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// classified gives the results of SQLite that decide something their sentinel.
func classified(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch code := e.Code(); {
	case code == lib.SQLITE_READONLY_DBMOVED:
		return fmt.Errorf("%w: the database file was replaced or removed while it was open: %w", checkpoint.ErrRegressed, err)
	case code&0xff == lib.SQLITE_BUSY, code&0xff == lib.SQLITE_LOCKED:
		return fmt.Errorf("%w: another process writes to the database: %w", checkpoint.ErrLocked, err)
	case code&0xff == lib.SQLITE_CORRUPT, code&0xff == lib.SQLITE_NOTADB:
		return fmt.Errorf("%w: the database is damaged: %w", checkpoint.ErrRegressed, err)
	}
	return err
}
