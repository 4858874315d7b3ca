package mysql_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mysql"
	"github.com/mqbridge/mqb/test/harness"
)

const waitLimit = time.Minute

func record(epoch, version uint64) checkpoint.Record {
	return checkpoint.Record{ClusterUID: "c", Epoch: epoch, Run: "r", Version: version}
}

func open(t *testing.T, url string) *mysql.Store {
	t.Helper()
	s := openStore(t, url)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestCreatingTheTableAtOnceIsNoError(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	url := server.URL(server.NewDatabase(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := mysql.Open(t.Context(), url)
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
		})
	}
	wg.Wait()
}

func TestTableOfAnAdministrator(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	db := server.NewDatabase(t)
	url := server.URL(db) + "/Mixed%20`Case"
	s := open(t, url)
	if want := "/" + db + "/Mixed `Case"; !strings.HasSuffix(s.Identity(), want) {
		t.Errorf("identity %s, want …%s", s.Identity(), want)
	}
	conn := server.Connect(t, db)
	harness.MariaDBExec(t, conn, "CREATE USER limited_"+db+"@'%' IDENTIFIED BY 'x'; GRANT SELECT, INSERT, UPDATE ON "+db+".* TO limited_"+db+"@'%'")
	limited := strings.Replace(url, "mqb:"+harness.MariaDBPassword, "limited_"+db+":x", 1)
	s = open(t, limited)
	if err := s.Swap(t.Context(), "k", 0, record(1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Swap(t.Context(), "k", 1, record(1, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

// MyISAM and Aria take part in no transaction, and forget.
func TestTableOfAnotherEngineIsRefused(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	db := server.NewDatabase(t)
	harness.MariaDBExec(t, server.Connect(t, db), "CREATE TABLE mqb_checkpoints (`key` VARBINARY(200) PRIMARY KEY, epoch BIGINT, run TEXT, version BIGINT, record BLOB) ENGINE = MyISAM")
	if _, err := mysql.Open(t.Context(), server.URL(db)); err == nil || !strings.Contains(err.Error(), "MyISAM") {
		t.Fatal(err)
	}
}

func TestServerThatForgetsCommitsIsRefused(t *testing.T) {
	t.Parallel()
	server := harness.StartMariaDB(t)
	db := server.NewDatabase(t)
	conn := server.Connect(t, db)
	for setting, value := range map[string]string{"innodb_flush_log_at_trx_commit": "2", "sync_binlog": "0"} {
		harness.MariaDBExec(t, conn, "SET GLOBAL "+setting+" = "+value)
		if _, err := mysql.Open(t.Context(), server.URL(db)); err == nil || !strings.Contains(err.Error(), setting+" is "+value) {
			t.Errorf("%s = %s: %v", setting, value, err)
		}
		harness.MariaDBExec(t, conn, "SET GLOBAL "+setting+" = 1")
	}
	open(t, server.URL(db))
}

func TestGoneRecordIsRegressedNotCreated(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	s := open(t, server.URL(server.NewDatabase(t)))
	if err := s.Swap(t.Context(), "k", 3, record(1, 4)); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
}

// The default collations of both servers take these for one key each.
func TestKeysThatACollationWouldTakeForOneAreApart(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	s := open(t, server.URL(server.NewDatabase(t)))
	keys := []string{"K", "k", "k ", "ss", "\u00df", "a", "\u00e4", "back\\slash", "quo'te"}
	for _, k := range keys {
		rec := record(1, 1)
		rec.Source = k
		if err := s.Swap(t.Context(), k, 0, rec); err != nil {
			t.Fatalf("%q: %v", k, err)
		}
	}
	for _, k := range keys {
		if rec, err := s.Load(t.Context(), k); err != nil || rec.Source != k {
			t.Errorf("%q holds the record of %q, %v", k, rec.Source, err)
		}
	}
}

// A key that does not fit is an error. Without the strict mode it would be cut,
// and two of them would share a record.
func TestKeyThatIsTooLongIsNotCut(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	s := open(t, server.URL(server.NewDatabase(t)))
	if err := s.Swap(t.Context(), strings.Repeat("k", 2049), 0, record(1, 1)); err == nil || errors.Is(err, checkpoint.ErrConflict) {
		t.Fatal(err)
	}
	if err := s.Swap(t.Context(), strings.Repeat("k", 2048), 0, record(1, 1)); err != nil {
		t.Fatal(err)
	}
}

// A read that does not lock would answer with the version before a commit whose
// reply was lost, and the run would write it again.
func TestLoadWaitsForAPendingCommit(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	db := server.NewDatabase(t)
	s := open(t, server.URL(db))
	other := server.Connect(t, db)
	watch := server.Connect(t, db)
	for _, c := range []struct {
		name, sql string
		expected  uint64
	}{
		{"created", "INSERT INTO mqb_checkpoints (epoch, run, version, record, `key`) VALUES (2, 'r', ?, ?, 'k')", 0},
		{"changed", "UPDATE mqb_checkpoints SET epoch = 2, version = ?, record = ? WHERE `key` = 'k'", 1},
	} {
		body, err := checkpoint.Encode(record(2, c.expected+1))
		if err != nil {
			t.Fatal(err)
		}
		harness.MariaDBExec(t, other, "BEGIN")
		harness.MariaDBExec(t, other, c.sql, c.expected+1, body)
		started := time.Now()
		_, err = s.Load(t.Context(), "k")
		if !errors.Is(err, checkpoint.ErrLocked) {
			t.Fatalf("record being %s: %v", c.name, err)
		}
		if took := time.Since(started); took > waitLimit {
			t.Errorf("the lock was waited for %v", took)
		}
		var locked *checkpoint.LockedError
		if seen := errors.As(err, &locked); seen != (c.expected > 0) || seen && locked.Committed.Version != c.expected {
			t.Errorf("record being %s: %+v", c.name, locked)
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
		harness.Eventually(t, waitLimit, func() error {
			// Not innodb_trx: that is a copy, which stays old while it is asked for.
			if harness.MariaDBValue[int](t, watch, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%FOR UPDATE' AND time_ms > 20") == 0 {
				return errors.New("nobody waits for the lock")
			}
			return nil
		})
		harness.MariaDBExec(t, other, "COMMIT")
		if rec := <-got; rec.Version != c.expected+1 {
			t.Fatalf("record being %s: read version %d", c.name, rec.Version)
		}
	}
}

// A time-out undoes the statement and keeps the transaction with its locks: the
// one that gave up must not be what the next one waits for.
func TestLockTimeoutLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	db := server.NewDatabase(t)
	s := open(t, server.URL(db))
	if err := s.Swap(t.Context(), "k", 0, record(1, 1)); err != nil {
		t.Fatal(err)
	}
	other := server.Connect(t, db)
	harness.MariaDBExec(t, other, "BEGIN; SELECT * FROM mqb_checkpoints FOR UPDATE")
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrLocked) {
		t.Fatal(err)
	}
	if err := s.Swap(t.Context(), "k", 1, record(1, 2)); !errors.Is(err, checkpoint.ErrLocked) {
		t.Fatal(err)
	}
	harness.MariaDBExec(t, other, "COMMIT")
	if n := s.InUse(); n != 0 {
		t.Fatalf("%d transactions are open", n)
	}
	harness.MariaDBExec(t, other, "SET innodb_lock_wait_timeout = 1; UPDATE mqb_checkpoints SET epoch = 2")
}

// Creators of one record that meet in a deadlock are told of a conflict.
func TestManyCreatorsOfOneRecord(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	db := server.NewDatabase(t)
	s := open(t, server.URL(db))
	other := server.Connect(t, db)
	for i := range 10 {
		key := strings.Repeat("k", i+1)
		// The first creator takes it back, so that the others race from a queue.
		harness.MariaDBExec(t, other, "BEGIN")
		harness.MariaDBExec(t, other, "INSERT INTO mqb_checkpoints (epoch, run, version, record, `key`) VALUES (1, '', 1, '', ?)", key)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for n := range errs {
			wg.Go(func() { errs[n] = s.Swap(context.WithoutCancel(t.Context()), key, 0, record(1, 1)) })
		}
		harness.Eventually(t, waitLimit, func() error {
			if harness.MariaDBValue[int](t, other, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT%'") < len(errs) {
				return errors.New("not all wait yet")
			}
			return nil
		})
		harness.MariaDBExec(t, other, "ROLLBACK")
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, checkpoint.ErrConflict):
				t.Error(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d of %d creators won: %v", won, len(errs), errs)
		}
	}
}

func TestNoSecretInIdentityOrErrors(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	url := server.URL(server.NewDatabase(t))
	if s := open(t, url); strings.Contains(s.Identity(), harness.MariaDBPassword) || strings.Contains(s.Identity(), "@") {
		t.Error(s.Identity())
	}
	for _, bad := range []string{url + "/t?x=y", strings.Replace(url, "mqb:", "nobody:", 1), strings.Replace(url, "mysql:", "pg:", 1)} {
		if _, err := mysql.Open(t.Context(), bad); err == nil || strings.Contains(err.Error(), harness.MariaDBPassword) {
			t.Errorf("%v", err)
		}
	}
}
