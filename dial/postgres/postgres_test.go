package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func connect(t *testing.T, url string, opt postgres.Options) *pgx.Conn {
	t.Helper()
	c, err := postgres.Parse(url, opt)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func session(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	s, err := postgres.Session(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, `ALTER ROLE postgres IN DATABASE `+url[strings.LastIndex(url, "/")+1:]+` SET synchronous_commit = off`)
	conn := connect(t, url, postgres.Options{LockTimeout: time.Second, StatementTimeout: 5 * time.Second})
	for name, want := range map[string]string{
		"lock_timeout": "1s", "statement_timeout": "5s", "synchronous_commit": "on", "application_name": "mqb",
		"default_transaction_isolation": "read committed", "client_connection_check_interval": "1s", "tcp_keepalives_idle": "10",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "SHOW "+name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestEndSessionFreesTheLocksOfTheSession(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	holder := connect(t, url, postgres.Options{})
	if _, err := holder.Exec(t.Context(), "BEGIN; UPDATE t SET a = 2"); err != nil {
		t.Fatal(err)
	}
	other := connect(t, url, postgres.Options{LockTimeout: 10 * time.Millisecond})
	if err := postgres.EndSession(t.Context(), other, session(t, holder)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), "UPDATE t SET a = 3"); err != nil {
		t.Fatalf("the lock is still there: %v", err)
	}
	_, err := holder.Exec(t.Context(), "COMMIT")
	if c := postgres.Classify(err); c != postgres.ClassSuspect {
		t.Fatalf("the ended session got class %d: %v", c, err)
	}
	if err := postgres.EndSession(t.Context(), other, session(t, other)); err != nil {
		t.Fatalf("own session: %v", err)
	}
}

func TestEndSessionSparesAReusedProcessID(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	newer, other := connect(t, url, postgres.Options{}), connect(t, url, postgres.Options{})
	pid, start, _ := strings.Cut(session(t, newer), ":")
	older := pid + ":2001" + start[4:]
	if err := postgres.EndSession(t.Context(), other, older); err != nil {
		t.Fatal(err)
	}
	if err := newer.Ping(t.Context()); err != nil {
		t.Fatalf("a session was ended for its process id alone: %v", err)
	}
	for _, bad := range []string{"", "1", "1:", ":1", "1; DROP TABLE t:2"} {
		if err := postgres.EndSession(t.Context(), other, bad); err == nil {
			t.Errorf("%q was taken for a session", bad)
		}
	}
}

func TestClassesOfRealErrors(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	conn := connect(t, url, postgres.Options{})
	if _, err := conn.Exec(t.Context(), "CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]postgres.Class{
		"SELECT 'x'::int":                postgres.ClassData,
		"INSERT INTO t VALUES (1, NULL)": postgres.ClassData,
		"SELECT * FROM missing":          postgres.ClassPermanent,
		"SELEC 1":                        postgres.ClassPermanent,
		"SET LOCAL statement_timeout = 20; SELECT pg_sleep(10)":               postgres.ClassOther,
		"DO $$BEGIN RAISE 'no'; END$$":                                        postgres.ClassData,
		"DO $$BEGIN RAISE 'no' USING ERRCODE = 'MY001'; END$$":                postgres.ClassData,
		"DO $$BEGIN ASSERT false; END$$":                                      postgres.ClassData,
		"DO $$DECLARE i int; BEGIN SELECT 1 INTO STRICT i WHERE false; END$$": postgres.ClassData,
		"SELECT (SELECT i FROM generate_series(1, 2) i)":                      postgres.ClassData,
		"SELECT repeat('[', 100000)::jsonb":                                   postgres.ClassData,
		"SET ROLE pg_read_all_data; INSERT INTO t VALUES (2, '')":             postgres.ClassPermanent,
		"CREATE ROLE guarded; CREATE TABLE p (a int); ALTER TABLE p ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON p FOR INSERT WITH CHECK (a > 0); GRANT INSERT ON p TO guarded; SET ROLE guarded; INSERT INTO p VALUES (0)": postgres.ClassData,
		"BEGIN; SET TRANSACTION READ ONLY; CREATE TABLE u (a int)": postgres.ClassOther,
		"INSERT INTO t SELECT 1, repeat('\x01', 3) FROM missing":   postgres.ClassPermanent,
	} {
		_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		if got := postgres.Classify(err); got != want {
			t.Errorf("%s: class %d, want %d (%v)", sql, got, want, err)
		}
		if _, err := conn.PgConn().Exec(t.Context(), "ROLLBACK").ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"/nosuchdb", "/"} {
		c, err := postgres.Parse("postgres://nobody@"+strings.TrimPrefix(url[:strings.LastIndex(url, "/")], "postgres://postgres@")+bad, postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Connect(t.Context())
		if got := postgres.Classify(err); got != postgres.ClassPermanent {
			t.Errorf("unknown role or database: class %d (%v)", got, err)
		}
	}
	c, err := postgres.Parse("postgres://u@127.0.0.1:1/db", postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Connect(t.Context())
	if got := postgres.Classify(err); got != postgres.ClassConnection {
		t.Errorf("no server: class %d (%v)", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := postgres.Classify(conn.Ping(ctx)); got != postgres.ClassStopped {
		t.Errorf("cancelled: class %d", got)
	}
	// As PgBouncer 1.18 answers; trying again for ever would say that nothing is wrong.
	if got := postgres.Classify(&pgconn.PgError{Severity: "FATAL", Code: postgres.CodeProtocol, Message: "unsupported startup parameter: lock_timeout"}); got != postgres.ClassPermanent {
		t.Errorf("a pooler: class %d", got)
	}
	if got := postgres.Classify(&pgconn.PgError{Severity: "FATAL", Code: postgres.CodeProtocol, Message: "query_wait_timeout"}); got != postgres.ClassConnection {
		t.Errorf("a pooler whose server is away: class %d", got)
	}
	if got := postgres.Classify(errors.New("?")); got != postgres.ClassOther {
		t.Errorf("unknown: class %d", got)
	}
}

// A password with a character that ends it early is shown as what stands behind it.
func TestAPasswordThatIsNotEscapedIsShownNowhere(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:12@hunter2@127.0.0.1:1/db", "postgres://u:12/hunter2@127.0.0.1:1/db", "postgres://u:12?hunter2@127.0.0.1:1/db",
		"postgres://u:12#hunter2@127.0.0.1:1/db", "postgres://u:12/?hunter2@127.0.0.1/db?sslmode=disable",
	} {
		_, err := postgres.Parse(url, postgres.Options{})
		if err == nil || !strings.Contains(err.Error(), "%40") || strings.Contains(err.Error()+postgres.Mask(url), "hunter2") {
			t.Errorf("%s: %v", postgres.Mask(url), err)
		}
	}
	for _, url := range []string{"postgres://u%40server:p%40@h/db", "postgres://h/db?user=me@server&password=p", "postgres://me@h"} {
		if _, err := postgres.Parse(url, postgres.Options{}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestNoSecretInErrorsOrAddresses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:hunter2@127.0.0.1:1/db", "postgres://u@127.0.0.1:1/db?password=hunter2",
		"postgres://u:hunter2@127.0.0.1:1/db?sslmode=nonsense", "postgres://u:hunter2@127.0.0.1:port/db",
		"mysql://u:hunter2@h/db", "postgres://u:hunter2@[::1/db", "postgres://u@127.0.0.1:1/db?password=hunter2&sslmode=x",
	} {
		if s := postgres.Mask(url); strings.Contains(s, "hunter2") {
			t.Errorf("mask: %s", s)
		}
		c, err := postgres.Parse(url, postgres.Options{})
		if err == nil {
			if strings.Contains(c.Address(), "hunter2") {
				t.Errorf("address: %s", c.Address())
			}
			_, err = c.Connect(t.Context())
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error: %v", err)
		}
	}
}
