package harness

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// MariaDBServer is a MariaDB server with a data directory of its own. It keeps
// its port and its data when it is stopped or killed and started again. Safe for
// concurrent use.
type MariaDBServer struct {
	// Port is the loopback port.
	Port int

	dir       string
	databases atomic.Int64

	mu   sync.Mutex
	proc *Process
}

// MariaDBPassword is that of the user mqb, who may do everything.
const MariaDBPassword = "mqb-test-secret"

var sharedMariaDB struct {
	once   sync.Once
	server *MariaDBServer
	err    error
}

// MariaDB returns the MariaDB server that the tests of this binary share; use
// NewDatabase for a place of one's own. A test that stops, kills or freezes a
// server, or changes its settings, starts its own with StartMariaDB. Main ends the
// shared one.
func MariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	s := &sharedMariaDB
	s.once.Do(func() {
		s.err = errors.New("its first user failed before it was started")
		Install(t, "mariadb-server")
		s.server, s.err = startMariaDB()
		if s.err == nil {
			atEnd(s.server.remove)
		}
	})
	if s.err != nil {
		t.Fatalf("harness: %v", s.err)
	}
	return s.server
}

// StartMariaDB starts a MariaDB server that ends with the test.
func StartMariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	Install(t, "mariadb-server")
	s, err := startMariaDB()
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last output of mariadbd:\n%s", s.Process().Log())
		}
		s.remove()
	})
	return s
}

func startMariaDB() (*MariaDBServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	// /tmp rather than TempDir: a socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "mqb-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &MariaDBServer{Port: port, dir: dir}
	if err := s.initialize(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *MariaDBServer) initialize() error {
	c, err := credential("mysql")
	if err != nil {
		return err
	}
	if err := os.Chown(s.dir, int(c.Uid), int(c.Gid)); err != nil {
		return err
	}
	init, err := start(context.Background(), Spec{
		Path: "mariadb-install-db", Dir: s.dir,
		Args: []string{
			"--no-defaults", "--user=mysql", "--datadir=" + s.data(),
			"--auth-root-authentication-method=normal", "--skip-test-db",
		},
	})
	if err != nil {
		return err
	}
	if err := init.Wait(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w\n%s", err, init.Log())
	}
	user := "CREATE USER IF NOT EXISTS mqb@'%' IDENTIFIED BY '" + MariaDBPassword + "';\nGRANT ALL ON *.* TO mqb@'%' WITH GRANT OPTION;\n"
	if err := os.WriteFile(s.initFile(), []byte(user), 0o644); err != nil {
		return err
	}
	return s.start()
}

func (s *MariaDBServer) data() string     { return filepath.Join(s.dir, "data") }
func (s *MariaDBServer) initFile() string { return filepath.Join(s.dir, "init.sql") }

// start starts the server on its data. Durability is real, also that of the
// binary log, which decides after a crash what was committed; the memory is small.
func (s *MariaDBServer) start() error {
	p, err := start(context.Background(), Spec{
		Name: "mariadbd", Path: "mariadbd", User: "mysql", Dir: s.dir,
		Args: []string{
			"--no-defaults", "--datadir=" + s.data(), "--socket=" + filepath.Join(s.dir, "sock"), "--pid-file=" + filepath.Join(s.dir, "pid"),
			"--port=" + strconv.Itoa(s.Port), "--bind-address=127.0.0.1", "--skip-name-resolve", "--init-file=" + s.initFile(),
			"--log-bin=bin", "--binlog-format=ROW", "--server-id=1", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1",
			"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=48M", "--performance-schema=OFF", "--max-connections=100",
		},
		Ready: func(ctx context.Context) error {
			db, err := s.pool("mysql")
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
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

func (s *MariaDBServer) remove() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

// Process is the current life of the server.
func (s *MariaDBServer) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Stop ends the server in order and all its sessions at once.
func (s *MariaDBServer) Stop() { s.Process().Stop() }

// Kill ends the server at once, like a power cut that spares the disk's cache.
func (s *MariaDBServer) Kill() { s.Process().Kill() }

// Restart starts a server that was stopped or killed, on the same port and data.
func (s *MariaDBServer) Restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// URL is the connection URL of a database.
func (s *MariaDBServer) URL(db string) string {
	return fmt.Sprintf("mysql://mqb:%s@127.0.0.1:%d/%s", MariaDBPassword, s.Port, db)
}

// pool opens a pool for a database, with the server's own settings.
func (s *MariaDBServer) pool(db string) (*sql.DB, error) {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.Net, c.Addr, c.DBName = "mqb", MariaDBPassword, "tcp", fmt.Sprintf("127.0.0.1:%d", s.Port), db
	c.MultiStatements, c.InterpolateParams = true, true
	c.Logger = silent{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// silent is a logger of the driver, which logs the attempts before a server is up.
type silent struct{}

func (silent) Print(...any) {}

// NewDatabase creates an empty database and returns its name.
func (s *MariaDBServer) NewDatabase(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d", s.databases.Add(1))
	MariaDBExec(t, s.Connect(t, "mysql"), "CREATE DATABASE "+name)
	return name
}

// Connect opens one session, with the server's own settings, that ends with the test.
func (s *MariaDBServer) Connect(t testing.TB, db string) *sql.Conn {
	t.Helper()
	pool, err := s.pool(db)
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	conn, err := pool.Conn(context.Background())
	if err != nil {
		_ = pool.Close()
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = pool.Close()
	})
	return conn
}

// MariaDBExec runs SQL statements, separated by semicolons.
func MariaDBExec(t testing.TB, conn *sql.Conn, query string, args ...any) {
	t.Helper()
	if _, err := conn.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("harness: %s: %v", query, err)
	}
}

// MariaDBValue is the one value that a query returns.
func MariaDBValue[T any](t testing.TB, conn *sql.Conn, query string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("harness: %s: %v", query, err)
	}
	return v
}
