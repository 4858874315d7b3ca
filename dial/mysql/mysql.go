// Package mysql connects to MySQL and MariaDB for stores and connectors: URLs and
// their masking, session settings, the identity of a session and how it is ended,
// and the error numbers that decide something.
//
// Connections are session-mode only. A proxy that shares server sessions between
// clients (ProxySQL's multiplexing, MaxScale) would make the session named in a
// checkpoint record somebody else's; give the address of the server itself.
package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Options are the settings of a connection. Zero values mean the defaults named.
type Options struct {
	// ConnectTimeout bounds one attempt; 0 is 10 s.
	ConnectTimeout time.Duration
	// LockTimeout is how long a statement waits for a row or for a table that is
	// being altered, in whole seconds, at least one; 0 leaves the server's, which
	// for rows is 50 s.
	LockTimeout time.Duration
	// ReplyTimeout is how long the server may take for one reply before the
	// connection counts as lost; 0 is for ever.
	ReplyTimeout time.Duration
	// MaxConns bounds the pool; 0 is unbounded.
	MaxConns int
}

// Config is a parsed URL with its options. It never changes and is safe for
// concurrent use.
type Config struct {
	cfg      *mysql.Config
	maxConns int
}

// Parse reads mysql:// and mariadb:// URLs, "mysql://user:password@host:3306/db".
// Query keys are those of the dialect: ssl-mode (disabled, preferred, required,
// verify_ca, verify_identity; the default is preferred) and ssl-ca, a PEM file.
// Errors do not show the URL's password (invariant 11).
func Parse(rawURL string, opt Options) (*Config, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("mysql: this is no URL") // the cause quotes it
	}
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, errors.New("mysql: not a mysql:// URL")
	}
	fail := func(format string, args ...any) (*Config, error) {
		return nil, fmt.Errorf("mysql: %s: %w", Mask(rawURL), fmt.Errorf(format, args...))
	}
	c := mysql.NewConfig()
	c.Net, c.User = "tcp", u.User.Username()
	c.Passwd, _ = u.User.Password()
	port := u.Port()
	if port == "" {
		port = "3306"
	}
	c.Addr = net.JoinHostPort(u.Hostname(), port)
	c.DBName = strings.TrimPrefix(u.Path, "/")
	switch {
	case u.Hostname() == "":
		return fail("no host")
	case c.DBName == "" || strings.Contains(c.DBName, "/"):
		return fail("the path must be the name of a database")
	}
	if err := setTLS(c, u); err != nil {
		return fail("%w", err)
	}
	c.Timeout = opt.ConnectTimeout
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	c.ReadTimeout, c.WriteTimeout = opt.ReplyTimeout, opt.ReplyTimeout
	// Rows matched, not rows changed: an UPDATE that writes what is there already
	// would count 0 and look like a fence.
	c.ClientFoundRows = true
	c.InterpolateParams = true // one round trip a statement
	c.ParseTime = true
	c.Loc = time.UTC
	if err := c.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return fail("%w", err)
	}
	c.ConnectionAttributes = "program_name:mqb"
	c.Params = map[string]string{
		// Data that does not fit is refused, never cut.
		"sql_mode":   "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE'",
		"autocommit": "1",
		"time_zone":  "'+00:00'",
	}
	if opt.LockTimeout > 0 {
		seconds := strconv.FormatInt(max(1, int64(opt.LockTimeout/time.Second)), 10)
		c.Params["innodb_lock_wait_timeout"], c.Params["lock_wait_timeout"] = seconds, seconds
	}
	c.Logger = silent{} // what it logs, it returns too
	return &Config{cfg: c, maxConns: opt.MaxConns}, nil
}

type silent struct{}

func (silent) Print(...any) {}

func setTLS(c *mysql.Config, u *url.URL) error {
	q := u.Query()
	for key := range q {
		if !slices.Contains([]string{"ssl-mode", "ssl-ca"}, key) {
			return fmt.Errorf("unknown setting %q: ssl-mode and ssl-ca are known", key)
		}
	}
	var roots *x509.CertPool
	if file := q.Get("ssl-ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("ssl-ca: %w", err)
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ssl-ca: no certificate in %s", file)
		}
	}
	switch mode := strings.ToLower(q.Get("ssl-mode")); mode {
	case "", "preferred":
		c.TLSConfig = "preferred"
	case "disabled":
	case "required":
		c.TLSConfig = "skip-verify"
	case "verify_ca", "verify_identity":
		// The name is looked at in both: a certificate of somebody else under the
		// same authority is no proof.
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: u.Hostname()}
	default:
		return fmt.Errorf("ssl-mode %q: disabled, preferred, required, verify_ca or verify_identity", mode)
	}
	return nil
}

// Pool opens a pool, which connects when it is first used. A connection is
// thrown away after an error that leaves its state in doubt. The caller closes it.
func (c *Config) Pool() (*sql.DB, error) {
	connector, err := mysql.NewConnector(c.cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql: pool for %s: %w", c.Address(), err)
	}
	db := sql.OpenDB(readCommitted{connector})
	db.SetMaxOpenConns(c.maxConns)
	db.SetMaxIdleConns(max(2, c.maxConns))
	// Below the server's wait_timeout and the memory of firewalls.
	db.SetConnMaxIdleTime(time.Minute)
	return db, nil
}

// readCommitted sets the isolation level of each new session, whose variable has
// other names in MySQL and MariaDB. At this level a locking read of a row that is
// not there locks no gap, in which two sessions that both create it would deadlock.
type readCommitted struct{ driver.Connector }

func (c readCommitted) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.(driver.ExecerContext).ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Address is the server and the database, "host:3306/db", without secrets.
func (c *Config) Address() string { return c.cfg.Addr + "/" + c.cfg.DBName }

// Database is the name of the database.
func (c *Config) Database() string { return c.cfg.DBName }

// Mask returns the URL with its password replaced, for people.
func Mask(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "mysql://…"
	}
	return u.Redacted()
}

// Error numbers that are looked at one by one.
const (
	// CodeDuplicate: a key is there already.
	CodeDuplicate = 1062
	// CodeLockTimeout: innodb_lock_wait_timeout or lock_wait_timeout. It undoes
	// the statement only; the transaction must be rolled back as a whole.
	CodeLockTimeout = 1205
	// CodeDeadlock: the transaction was rolled back, nothing of it is left.
	CodeDeadlock = 1213
	// CodeNoSuchTable: no such table.
	CodeNoSuchTable = 1146
	// codeNoSuchThread: KILL of a session that is gone.
	codeNoSuchThread = 1094
)

// Code is the number of an error, 0 if the server did not send it.
func Code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Durable returns an error when the server may forget, in a crash, a commit that
// it acknowledged. The settings are the server's own, a session cannot raise them.
func Durable(ctx context.Context, db Querier) error {
	var flush, binlog, sync int
	err := db.QueryRowContext(ctx, `SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog`).Scan(&flush, &binlog, &sync)
	switch {
	case err != nil:
		return fmt.Errorf("mysql: durability settings: %w", err)
	case flush != 1:
		return fmt.Errorf("mysql: the server may lose acknowledged commits in a crash: innodb_flush_log_at_trx_commit is %d, set it to 1", flush)
	case binlog != 0 && sync != 1:
		// Recovery rolls back what is prepared and not in the binary log.
		return fmt.Errorf("mysql: the server may lose acknowledged commits in a power cut: it writes a binary log and sync_binlog is %d, set it to 1", sync)
	}
	return nil
}
