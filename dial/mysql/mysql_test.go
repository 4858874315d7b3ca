package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/dial/mysql"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func connect(t *testing.T, url string, opt mysql.Options) *sql.Conn {
	t.Helper()
	c, err := mysql.Parse(url, opt)
	if err != nil {
		t.Fatal(err)
	}
	db, err := c.Pool()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = db.Close()
	})
	return conn
}

func session(t *testing.T, conn *sql.Conn) string {
	t.Helper()
	s, err := mysql.Session(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	conn := connect(t, server.URL(server.NewDatabase(t)), mysql.Options{LockTimeout: time.Second})
	for name, want := range map[string]string{
		"innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1", "tx_isolation": "READ-COMMITTED", "autocommit": "1",
		"character_set_client": "utf8mb4", "collation_connection": "utf8mb4_bin", "time_zone": "+00:00",
	} {
		if got := harness.MariaDBValue[string](t, conn, "SELECT @@"+name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if mode := harness.MariaDBValue[string](t, conn, "SELECT @@sql_mode"); !strings.Contains(mode, "STRICT_ALL_TABLES") {
		t.Errorf("sql_mode = %q", mode)
	}
}

// Without clientFoundRows an UPDATE that writes what is there counts 0, which
// looks like a record that somebody else has changed.
func TestUnchangedRowIsCounted(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	conn := connect(t, server.URL(server.NewDatabase(t)), mysql.Options{})
	harness.MariaDBExec(t, conn, "CREATE TABLE t (a INT)")
	harness.MariaDBExec(t, conn, "INSERT INTO t VALUES (1)")
	res, err := conn.ExecContext(t.Context(), "UPDATE t SET a = 1")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestEndSessionFreesTheLocksOfTheSession(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	url := server.URL(server.NewDatabase(t))
	holder := connect(t, url, mysql.Options{})
	harness.MariaDBExec(t, holder, "CREATE TABLE t (a INT)")
	// Many rows: rolling them back takes its time, and the lock stays until then.
	harness.MariaDBExec(t, holder, "INSERT INTO t SELECT 1 FROM information_schema.collations a, information_schema.collations b LIMIT 50000")
	harness.MariaDBExec(t, holder, "BEGIN")
	harness.MariaDBExec(t, holder, "UPDATE t SET a = 2")
	name := session(t, holder)
	other := connect(t, url, mysql.Options{LockTimeout: time.Second})
	if err := mysql.EndSession(t.Context(), other, name); err != nil {
		t.Fatal(err)
	}
	harness.MariaDBExec(t, other, "SET innodb_lock_wait_timeout = 0")
	if _, err := other.ExecContext(t.Context(), "UPDATE t SET a = 3 LIMIT 1"); err != nil {
		t.Fatalf("the lock is still there: %v", err)
	}
	if _, err := holder.ExecContext(t.Context(), "COMMIT"); err == nil {
		t.Fatal("the ended session committed")
	}
	for _, s := range []string{name, session(t, other)} {
		if err := mysql.EndSession(context.WithoutCancel(t.Context()), connect(t, url, mysql.Options{}), s); err != nil {
			t.Fatalf("session %s: %v", s, err)
		}
	}
}

// Connection ids begin anew when the server does: the session of a record must not
// be taken for the one that has its number now.
func TestEndSessionSparesAReusedConnectionID(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	url := server.URL(server.NewDatabase(t))
	newer, other := connect(t, url, mysql.Options{}), connect(t, url, mysql.Options{})
	id, _, _ := strings.Cut(session(t, newer), ":")
	if err := mysql.EndSession(t.Context(), other, id+":ANOTHERTOKEN"); err != nil {
		t.Fatal(err)
	}
	if err := newer.PingContext(t.Context()); err != nil {
		t.Fatalf("a session was ended for its id alone: %v", err)
	}
	for _, bad := range []string{"", "1", "1:", ":x", "1; DROP TABLE t:2"} {
		if err := mysql.EndSession(t.Context(), other, bad); err == nil {
			t.Errorf("%q was taken for a session", bad)
		}
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"mysql://u:p%40ss@h/db":                               "h:3306/db",
		"mariadb://u@[::1]:3307/db?ssl-mode=VERIFY_IDENTITY":  "[::1]:3307/db",
		"mysql://h:1/db?ssl-mode=disabled":                    "h:1/db",
		"mysql://u:hunter2@h/db?ssl-mode=nonsense":            "",
		"mysql://u:hunter2@h/db?ssl-ca=/nosuchfile":           "",
		"mysql://u:hunter2@h/db?allowCleartextPasswords=true": "",
		"mysql://u:hunter2@h":                                 "",
		"mysql://u:hunter2@h/a/b":                             "",
		"mysql://u:hunter2@/db":                               "",
		"mysql://u:hunter2@h:port/db":                         "",
		"postgres://u:hunter2@h/db":                           "",
	} {
		c, err := mysql.Parse(url, mysql.Options{})
		switch {
		case want == "" && err == nil:
			t.Errorf("%s was accepted", url)
		case want == "" && strings.Contains(err.Error(), "hunter2"), strings.Contains(mysql.Mask(url), "hunter2"):
			t.Errorf("secret in %v or %s (invariant 11)", err, mysql.Mask(url))
		case want != "" && (err != nil || c.Address() != want):
			t.Errorf("%s: %v, %v", url, c, err)
		}
	}
}

func TestNoSecretInErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	server := harness.MariaDB(t)
	for _, url := range []string{
		fmt.Sprintf("mysql://mqb:hunter2@127.0.0.1:%d/mysql", server.Port),
		server.URL("nosuchdatabase"), "mysql://u:hunter2@127.0.0.1:1/db",
	} {
		c, err := mysql.Parse(url, mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		db, err := c.Pool()
		if err != nil {
			t.Fatal(err)
		}
		err = db.PingContext(t.Context())
		_ = db.Close()
		if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), harness.MariaDBPassword) {
			t.Errorf("%v", err)
		}
	}
}
