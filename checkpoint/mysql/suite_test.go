package mysql_test

import (
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mysql"
	"github.com/mqbridge/mqb/checkpoint/storetest"
	dial "github.com/mqbridge/mqb/dial/mysql"
	"github.com/mqbridge/mqb/test/harness"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		// Each step is a commit in two logs on disk.
		Histories: 10_000, Steps: 6, Workers: 8,
		New: func(t *testing.T) *storetest.Subject {
			server := harness.MariaDB(t)
			db := server.NewDatabase(t)
			return &storetest.Subject{
				Open: func(t *testing.T) checkpoint.Store { return openStore(t, server.URL(db)) },
				Tamper: func(t *testing.T, key string, change func([]byte) []byte) {
					tamper(t, server.Connect(t, db), key, change)
				},
				LockRecord: func(t *testing.T) (string, func(string)) { return lockRecord(t, server.Connect(t, db)) },
			}
		},
	})
}

func openStore(t *testing.T, url string) *mysql.Store {
	t.Helper()
	s, err := mysql.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tamper(t *testing.T, conn *sql.Conn, key string, change func([]byte) []byte) {
	t.Helper()
	var old []byte
	err := conn.QueryRowContext(t.Context(), "SELECT record FROM mqb_checkpoints WHERE `key` = ?", key).Scan(&old)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	body := change(slices.Clone(old))
	if slices.Equal(body, old) {
		return
	}
	if body == nil {
		harness.MariaDBExec(t, conn, "DELETE FROM mqb_checkpoints WHERE `key` = ?", key)
		return
	}
	rec, err := checkpoint.Decode(body)
	if err != nil { // torn: the columns beside it are whole
		rec, _ = checkpoint.Decode(old)
	}
	harness.MariaDBExec(t, conn, "REPLACE INTO mqb_checkpoints (`key`, epoch, run, version, record) VALUES (?, ?, ?, ?, ?)",
		key, rec.Epoch, rec.Run, rec.Version, body)
}

// lockRecord is a session that locks a record and never speaks again.
func lockRecord(t *testing.T, conn *sql.Conn) (string, func(string)) {
	session, err := dial.Session(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return session, func(key string) {
		harness.MariaDBExec(t, conn, "BEGIN")
		harness.MariaDBExec(t, conn, "SELECT 1 FROM mqb_checkpoints WHERE `key` = ? FOR UPDATE", key)
	}
}
