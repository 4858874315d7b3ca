package sqlite_test

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/sqlite"
)

// lockerEnv turns this test binary into a process that locks a database and stops.
const lockerEnv = "MQB_TEST_SQLITE_LOCKER"

func TestMain(m *testing.M) {
	if path := os.Getenv(lockerEnv); path != "" {
		db, err := sql.Open("sqlite", path+"?_txlock=immediate")
		if err == nil {
			_, err = db.Begin()
		}
		fmt.Println("locked", err)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func record(version uint64) checkpoint.Record {
	return checkpoint.Record{ClusterUID: "c", Epoch: 1, Run: "r", Version: version}
}

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s := openStore(t, path)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func swap(t *testing.T, s *sqlite.Store, expected uint64) {
	t.Helper()
	if err := s.Swap(t.Context(), "k", expected, record(expected+1)); err != nil {
		t.Fatal(err)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for url, want := range map[string]string{
		"/c.db":                "/c.db/mqb_checkpoints",
		"/a%20b%3Fc%25.sqlite": "/a b?c%.sqlite/mqb_checkpoints",
		"/d.db3/po\"si":        "/d.db3/po\"si",
		"/plain":               "/plain/mqb_checkpoints",
	} {
		s, err := sqlite.Open(t.Context(), "sqlite://"+dir+url)
		if err != nil || s.Identity() != "sqlite://"+dir+want {
			t.Errorf("%s: %v, %v", url, s, err)
			continue
		}
		swap(t, s, 0)
		_ = s.Close()
	}
	for _, name := range []string{"c.db", "a b?c%.sqlite", "d.db3", "plain"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"sqlite://c.db", "sqlite:c.db", "sqlite::memory:", "sqlite:///", "file:///c.db", "sqlite://" + dir + "/none/c.db"} {
		if s, err := sqlite.Open(t.Context(), bad); err == nil {
			_ = s.Close()
			t.Errorf("%s was opened", bad)
		}
	}
}

// With FULL alone a journal whose removal was not flushed comes back after a power
// cut and undoes the commit. The mode of an existing database stays.
func TestCommitsAreFlushedTogetherWithTheirJournal(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"delete", "wal"} {
		path := filepath.Join(t.TempDir(), "c.db")
		if mode == "wal" {
			exec(t, path, "PRAGMA journal_mode = wal")
		}
		s := open(t, path)
		for name, want := range map[string]string{"synchronous": "3", "journal_mode": mode, "busy_timeout": "1000"} {
			if got, err := s.Pragma(t.Context(), name); got != want || err != nil {
				t.Errorf("%s: %s = %s, %v; want %s", mode, name, got, err, want)
			}
		}
	}
}

// In WAL mode a plain read answers beside a commit that is pending.
func TestLoadWaitsForAPendingCommit(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"delete", "wal"} {
		path := filepath.Join(t.TempDir(), "c.db")
		exec(t, path, "PRAGMA journal_mode = "+mode)
		s := open(t, path)
		swap(t, s, 0)
		other := database(t, path)
		tx, err := other.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(`UPDATE mqb_checkpoints SET epoch = 7`); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrLocked) {
			t.Errorf("%s: load: %v", mode, err)
		}
		if err := s.Swap(t.Context(), "k", 1, record(2)); !errors.Is(err, checkpoint.ErrLocked) {
			t.Errorf("%s: swap: %v", mode, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		swap(t, s, 1)
	}
}

// An open connection to a file that was moved away would go on with the old one,
// while everybody else reads the new one.
func TestReplacedDatabaseIsRegressed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.db")
	s := open(t, path)
	swap(t, s, 0)
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	swap(t, s, 1)
	if err := os.WriteFile(path+".new", backup, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := s.Swap(t.Context(), "k", 2, record(3)); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	if rec, err := open(t, path).Load(t.Context(), "k"); err != nil || rec.Version != 1 {
		t.Fatalf("%+v, %v", rec, err)
	}
}

func TestDamagedDatabaseIsNoEmptyOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.Open(t.Context(), "sqlite://"+path); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
}

// Nobody can end the session of a frozen process: the record stays locked, with an
// error that says so, until the process dies.
func TestFrozenProcessLocksUntilItDies(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.db")
	s := open(t, path)
	swap(t, s, 0)
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockerEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "locked <nil>\n" {
		t.Fatalf("the other process says %q", line)
	}
	started := time.Now()
	if err := s.Swap(t.Context(), "k", 1, record(2)); !errors.Is(err, checkpoint.ErrLocked) {
		t.Fatal(err)
	}
	if took := time.Since(started); took < sqlite.LockTimeout/2 {
		t.Errorf("gave up after %v", took)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	swap(t, s, 1)
}

func TestOpenedAndCreatedAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.db")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := sqlite.Open(t.Context(), "sqlite://"+path)
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
		})
	}
	wg.Wait()
}
