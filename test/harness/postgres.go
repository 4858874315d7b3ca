package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresServer is a PostgreSQL server with a data directory of its own. It
// keeps its port and its data when it is stopped or killed and started again.
// Safe for concurrent use.
type PostgresServer struct {
	// Port is the loopback port.
	Port int

	dir       string
	databases atomic.Int64

	mu   sync.Mutex
	proc *Process
}

// postgresProgram is the path of a program of the newest PostgreSQL that Debian has
// installed.
func postgresProgram(name string) (string, error) {
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(paths) == 0 {
		return "", fmt.Errorf("no %s of PostgreSQL (Debian: postgresql)", name)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4])
		return n
	}
	return slices.MaxFunc(paths, func(a, b string) int { return version(a) - version(b) }), nil
}

// installPostgres makes sure that there is some version.
func installPostgres(t testing.TB) {
	t.Helper()
	if _, err := postgresProgram("postgres"); err != nil {
		Install(t, "postgresql")
	}
}

var sharedPostgres struct {
	once   sync.Once
	server *PostgresServer
	err    error
}

// Postgres returns the PostgreSQL server that the tests of this binary share; use
// NewDatabase for a place of one's own. A test that stops, kills or freezes a
// server starts its own with StartPostgres. Main ends the shared one.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	s := &sharedPostgres
	s.once.Do(func() {
		s.err = errors.New("its first user failed before it was started")
		installPostgres(t)
		s.server, s.err = startPostgres()
		if s.err == nil {
			atEnd(s.server.remove)
		}
	})
	if s.err != nil {
		t.Fatalf("harness: %v", s.err)
	}
	return s.server
}

// StartPostgres starts a PostgreSQL server that ends with the test.
func StartPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	installPostgres(t)
	s, err := startPostgres()
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of postgres:\n%s", s.Process().Log())
		}
		s.remove()
	})
	return s
}

func startPostgres() (*PostgresServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	// /tmp rather than TempDir: a socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "mqb-postgres-")
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{Port: port, dir: dir}
	if err := s.initialize(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *PostgresServer) initialize() error {
	c, err := credential("postgres")
	if err != nil {
		return err
	}
	if err := os.Chown(s.dir, int(c.Uid), int(c.Gid)); err != nil {
		return err
	}
	program, err := postgresProgram("initdb")
	if err != nil {
		return err
	}
	initdb, err := start(context.Background(), Spec{
		Name: "initdb", Path: program, User: "postgres", Dir: s.dir,
		Args: []string{"-D", s.data(), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"},
	})
	if err != nil {
		return err
	}
	if err := initdb.Wait(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, initdb.Log())
	}
	return s.start()
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

// start starts the server on its data. Durability is real (fsync stays on), the
// memory is small.
func (s *PostgresServer) start() error {
	settings := []string{
		"port=" + strconv.Itoa(s.Port), "listen_addresses=127.0.0.1", "unix_socket_directories=" + s.dir,
		"shared_buffers=32MB", "max_connections=100", "max_wal_size=512MB", "wal_level=logical",
		"max_prepared_transactions=10", "log_min_messages=warning",
	}
	args := []string{"-D", s.data()}
	for _, v := range settings {
		args = append(args, "-c", v)
	}
	program, err := postgresProgram("postgres")
	if err != nil {
		return err
	}
	p, err := start(context.Background(), Spec{
		Name: "postgres", Path: program, Args: args, User: "postgres", Dir: s.dir,
		// Fast shutdown: sessions are ended, not waited for.
		StopSignal: 2, // SIGINT
		Ready: func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, s.URL("postgres"))
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

func (s *PostgresServer) remove() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

// Process is the current life of the server, the postmaster.
func (s *PostgresServer) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Stop ends the server in order and all its sessions at once.
func (s *PostgresServer) Stop() { s.Process().Stop() }

// Kill ends the postmaster and all its children at once, like a power cut that
// spares the disk's cache.
func (s *PostgresServer) Kill() {
	// Backends are leaders of their own groups, so the group of the postmaster
	// is not all of it. Collected before it dies, as they are reparented then.
	children := children(s.Process().Pid())
	s.Process().Kill()
	for _, pid := range children {
		killAndWait(pid)
	}
}

// Restart starts a server that was stopped or killed, on the same port and data.
func (s *PostgresServer) Restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// URL is the connection URL of a database, for the superuser.
func (s *PostgresServer) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s", s.Port, db)
}

// NewDatabase creates an empty database and returns its URL.
func (s *PostgresServer) NewDatabase(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d", s.databases.Add(1))
	PostgresExec(t, s.URL("postgres"), "CREATE DATABASE "+name)
	return s.URL(name)
}

// PostgresExec runs SQL statements, separated by semicolons, on a connection of
// their own.
func PostgresExec(t testing.TB, url, sql string) {
	t.Helper()
	conn := PostgresConnect(t, url)
	if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		t.Fatalf("harness: %s: %v", sql, err)
	}
	_ = conn.Close(context.Background())
}

// PostgresConnect opens a connection that ends with the test.
func PostgresConnect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// PostgresValue is the one value that a query returns.
func PostgresValue[T any](t testing.TB, url, sql string, args ...any) T {
	t.Helper()
	conn := PostgresConnect(t, url)
	var v T
	if err := conn.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("harness: %s: %v", sql, err)
	}
	_ = conn.Close(context.Background())
	return v
}

// children lists the child processes of pid.
func children(pid int) []int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// killAndWait kills a process that is not our child and waits until it is gone.
func killAndWait(pid int) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	_ = p.Kill()
	for range 500 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// A zombie holds no memory and no lock any more.
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}
