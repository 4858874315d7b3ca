package postgres_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/postgres"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func record(epoch, version uint64) checkpoint.Record {
	return checkpoint.Record{ClusterUID: "c", Epoch: epoch, Run: "r", Version: version}
}

func TestCreatingTheTableAtOnceIsNoError(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := postgres.Open(t.Context(), url, "")
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
		})
	}
	wg.Wait()
}

func TestTableOfAnAdministratorInItsOwnSchema(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	url := server.NewDatabase(t)
	s, err := postgres.Open(t.Context(), url, "Mixed Case")
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	role := "limited_" + url[len(url)-2:]
	harness.PostgresExec(t, url, `CREATE ROLE `+role+` LOGIN; CREATE SCHEMA ops;
		ALTER TABLE "Mixed Case" SET SCHEMA ops; GRANT USAGE ON SCHEMA ops TO `+role+`;
		GRANT SELECT, INSERT, UPDATE ON ops."Mixed Case" TO `+role)
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	limited := "postgres://" + role + "@" + cc.Host + ":" + url[len("postgres://postgres@127.0.0.1:"):]
	s, err = postgres.Open(t.Context(), limited, "ops.Mixed Case")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
	if err := s.Swap(t.Context(), "k", 0, record(1, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestOneOfManySwapsWins(t *testing.T) {
	t.Parallel()
	s := open(t, harness.Postgres(t).NewDatabase(t))
	for version := range uint64(20) {
		var won atomic.Int32
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				switch err := s.Swap(t.Context(), "k", version, record(1, version+1)); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, checkpoint.ErrConflict) && !errors.Is(err, checkpoint.ErrLocked):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d swaps of version %d succeeded", won.Load(), version)
		}
	}
	if err := s.Swap(t.Context(), "k", 21, record(1, 21)); err == nil {
		t.Fatal("a version that does not follow was written")
	}
}

func TestGoneRecordIsRegressedNotCreated(t *testing.T) {
	t.Parallel()
	s := open(t, harness.Postgres(t).NewDatabase(t))
	if err := s.Swap(t.Context(), "k", 3, record(1, 4)); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
}

// A read that does not lock would answer with the version before a commit whose
// reply was lost, and the run would write it again.
func TestLoadWaitsForAPendingCommit(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	s := open(t, url)
	other := harness.PostgresConnect(t, url)
	ctx := context.Background()

	pending := func(sql string, key string, expected uint64) pgx.Tx {
		tx, err := other.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		body, err := checkpoint.Encode(record(2, expected+1))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, sql, key, int64(expected+1), string(body)); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	const insert = `INSERT INTO mqb_checkpoints VALUES ($1, 2, 'r', $2, $3)`
	const update = `UPDATE mqb_checkpoints SET epoch = 2, version = $2, record = $3 WHERE key = $1`

	for _, c := range []struct {
		name, sql string
		expected  uint64
	}{{"created", insert, 0}, {"changed", update, 1}} {
		tx := pending(c.sql, "k", c.expected)
		if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrLocked) {
			t.Fatalf("record being %s: %v", c.name, err)
		}
		if err := s.Swap(t.Context(), "k", c.expected, record(3, c.expected+1)); !errors.Is(err, checkpoint.ErrLocked) {
			t.Fatalf("swap over a record being %s: %v", c.name, err)
		}
		got := make(chan checkpoint.Record, 1)
		go func() {
			rec, err := s.Load(t.Context(), "k")
			for errors.Is(err, checkpoint.ErrLocked) { // a busy machine
				rec, err = s.Load(t.Context(), "k")
			}
			if err != nil {
				t.Error(err)
			}
			got <- rec
		}()
		harness.Eventually(t, waitLimit, func() error { return waiting(t, url) })
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if rec := <-got; rec.Version != c.expected+1 {
			t.Fatalf("record being %s: read version %d", c.name, rec.Version)
		}
	}
}

func TestTornRecordIsRegressed(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	s := open(t, url)
	for _, key := range []string{"a/1", "a/2", "b/1"} {
		if err := s.Swap(t.Context(), key, 0, record(1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	harness.PostgresExec(t, url, `UPDATE mqb_checkpoints SET record = left(record, 20) WHERE key = 'a/1'`)
	if _, err := s.Load(t.Context(), "a/1"); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), "a/")
	if err != nil || len(list) != 2 || list[0].Key != "a/1" || !errors.Is(list[0].Err, checkpoint.ErrRegressed) || list[1].Err != nil {
		t.Fatalf("%+v, %v", list, err)
	}
}

// An UPDATE of no rows lets a COMMIT behind it through.
func TestFenceStatementAbortsTheTransaction(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	s := open(t, url)
	if err := s.Swap(t.Context(), "k", 0, record(5, 1)); err != nil {
		t.Fatal(err)
	}
	harness.PostgresExec(t, url, "CREATE TABLE t (a int)")
	conn := harness.PostgresConnect(t, url)
	swap := func(expected uint64) error {
		args, err := postgres.FenceArgs("k", expected, record(5, expected+1))
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		if _, err := conn.Exec(ctx, "BEGIN; INSERT INTO t VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = conn.Exec(ctx, "ROLLBACK") }()
		res := conn.PgConn().ExecParams(ctx, postgres.FenceSQL(""), args, nil, nil, nil).Read()
		if res.Err != nil {
			return res.Err
		}
		_, err = conn.Exec(ctx, "COMMIT")
		return err
	}
	if err := swap(1); err != nil {
		t.Fatal(err)
	}
	for _, expected := range []uint64{0, 1, 3} {
		if err := swap(expected); dial.Code(err) != dial.CodeDivisionByZero {
			t.Fatalf("expected version %d, stored 2: %v", expected, err)
		}
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t"); n != 1 {
		t.Fatalf("%d rows", n)
	}
}

const waitLimit = time.Minute

// waiting returns nil once some session of this database waits for a lock.
func waiting(t *testing.T, url string) error {
	n := harness.PostgresValue[int](t, url, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	if n == 0 {
		return errors.New("nobody waits for a lock")
	}
	return nil
}
