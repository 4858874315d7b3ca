package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/checkpoint/storetest"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/test/harness"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		// Each step is a commit on disk.
		Histories: 400, Workers: 8,
		New: func(t *testing.T) *storetest.Subject {
			url := harness.Postgres(t).NewDatabase(t)
			return &storetest.Subject{
				Open:       func(t *testing.T) checkpoint.Store { return openStore(t, url) },
				Tamper:     func(t *testing.T, key string, change func([]byte) []byte) { tamper(t, url, key, change) },
				LockRecord: func(t *testing.T) (string, func(string)) { return lockRecord(t, url) },
			}
		},
	})
}

func openStore(t *testing.T, url string) checkpoint.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tamper(t *testing.T, url, key string, change func([]byte) []byte) {
	t.Helper()
	conn := harness.PostgresConnect(t, url)
	ctx := context.Background()
	var old []byte
	if err := conn.QueryRow(ctx, `SELECT record FROM mqb_checkpoints WHERE key = $1`, key).Scan(&old); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	body := change(old)
	if _, err := conn.Exec(ctx, `DELETE FROM mqb_checkpoints WHERE key = $1`, key); err != nil {
		t.Fatal(err)
	}
	if body == nil {
		return
	}
	rec, err := checkpoint.Decode(body)
	if err != nil { // torn: the columns beside it are whole
		rec, _ = checkpoint.Decode(old)
	}
	if _, err := conn.Exec(ctx, `INSERT INTO mqb_checkpoints (key, epoch, run, version, record) VALUES ($1, $2, $3, $4, $5)`,
		key, int64(rec.Epoch), rec.Run, int64(rec.Version), string(body)); err != nil {
		t.Fatal(err)
	}
}

// lockRecord is a session that locks a record and never speaks again.
func lockRecord(t *testing.T, url string) (string, func(string)) {
	conn := harness.PostgresConnect(t, url)
	session, err := dial.Session(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return session, func(key string) {
		if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT FROM mqb_checkpoints WHERE key = $1 FOR UPDATE", key); err != nil {
			t.Fatal(err)
		}
	}
}
