package sqlite_test

import (
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/sqlite"
	"github.com/mqbridge/mqb/checkpoint/storetest"
)

func TestStore(t *testing.T) {
	for _, mode := range []string{"delete", "wal"} {
		t.Run(mode, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				// Each step waits for the disk, one after the other.
				Histories: 5000, Steps: 6, Workers: 2,
				New: func(t *testing.T) *storetest.Subject {
					path := filepath.Join(t.TempDir(), "c.db")
					exec(t, path, "PRAGMA journal_mode = "+mode)
					return &storetest.Subject{
						Open:   func(t *testing.T) checkpoint.Store { return openStore(t, path) },
						Tamper: func(t *testing.T, key string, change func([]byte) []byte) { tamper(t, path, key, change) },
					}
				},
			})
		})
	}
}

func openStore(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "sqlite://"+path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func database(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	return db
}

func exec(t *testing.T, path, query string, args ...any) {
	t.Helper()
	db := database(t, path)
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
}

func tamper(t *testing.T, path, key string, change func([]byte) []byte) {
	t.Helper()
	db := database(t, path)
	var old []byte
	if err := db.QueryRow(`SELECT record FROM mqb_checkpoints WHERE key = ?`, key).Scan(&old); err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	_ = db.Close()
	body := change(slices.Clone(old))
	if slices.Equal(body, old) {
		return
	}
	if body == nil {
		exec(t, path, `DELETE FROM mqb_checkpoints WHERE key = ?`, key)
		return
	}
	rec, err := checkpoint.Decode(body)
	if err != nil { // torn: the columns beside it are whole
		rec, _ = checkpoint.Decode(old)
	}
	exec(t, path, `REPLACE INTO mqb_checkpoints (key, epoch, run, version, record) VALUES (?, ?, ?, ?, ?)`,
		key, int64(rec.Epoch), rec.Run, int64(rec.Version), body)
}
