// Package postgres connects to PostgreSQL for stores and connectors: URLs and
// their masking, connection settings, the identity of a session and how it is
// ended, and what the server's errors mean.
//
// Connections are session-mode only. A transaction pooler (PgBouncer's
// "transaction" mode) gives each transaction another server session, so that the
// session named in a checkpoint record would be somebody else's; give the URL of
// the server itself.
package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are the settings of a connection. Zero values mean the defaults named.
type Options struct {
	// ApplicationName is shown in pg_stat_activity; "" is "mqb". One in the URL wins.
	ApplicationName string
	// ConnectTimeout bounds one attempt; 0 is 10 s. connect_timeout in the URL wins.
	ConnectTimeout time.Duration
	// LockTimeout and StatementTimeout are the server's settings for the session;
	// 0 is none.
	LockTimeout, StatementTimeout time.Duration
	// IdleInTransaction ends a session that is silent inside a transaction for so
	// long; 0 is never.
	IdleInTransaction time.Duration
	// TLS, if set, is how every connection is secured: without it nothing is sent,
	// and sslmode must not be in the URL. The server's name is filled in.
	TLS *tls.Config
	// Pool settings; 0 leaves pgxpool's own.
	MaxConns, MinConns       int32
	MaxIdle, MaxConnLifetime time.Duration
}

// Config is a parsed URL with its options. It never changes and is safe for
// concurrent use.
type Config struct {
	pool *pgxpool.Config
}

// Parse reads postgres:// and postgresql:// URLs. Its errors do not show the URL,
// which may hold a password (invariant 11).
func Parse(rawURL string, opt Options) (*Config, error) {
	scheme, _, found := strings.Cut(rawURL, "://")
	if !found || scheme != "postgres" && scheme != "postgresql" {
		return nil, errors.New("postgres: not a postgres:// URL")
	}
	if unescaped(rawURL) {
		return nil, errors.New("postgres: the URL cannot be used: in a user name or password, @ / ? # are written %40 %2F %3F %23")
	}
	pool, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		// The driver masks passwords only where it recognizes them.
		var cause *pgconn.ParseConfigError
		if u, parseErr := url.Parse(rawURL); parseErr == nil && errors.As(err, &cause) && errors.Unwrap(cause) != nil {
			if _, secret := u.User.Password(); !secret && u.Query().Get("password") == "" {
				return nil, fmt.Errorf("postgres: %s: %w", Mask(rawURL), errors.Unwrap(cause))
			}
		}
		return nil, fmt.Errorf("postgres: URL %s cannot be used", Mask(rawURL))
	}
	c := pool.ConnConfig
	if opt.TLS != nil {
		if err := secure(c, opt.TLS, rawURL); err != nil {
			return nil, fmt.Errorf("postgres: %s: %w", Mask(rawURL), err)
		}
	}
	set := func(name, value string) {
		if _, given := c.RuntimeParams[name]; !given {
			c.RuntimeParams[name] = value
		}
	}
	if opt.ApplicationName == "" {
		opt.ApplicationName = "mqb"
	}
	set("application_name", opt.ApplicationName)
	// A database's own default must not weaken either of these two: a commit that
	// is acknowledged is durable, and a conditional UPDATE that waited looks at
	// the row again instead of failing.
	c.RuntimeParams["synchronous_commit"] = "on"
	c.RuntimeParams["default_transaction_isolation"] = "read committed"
	// Text is sent and read as UTF-8, whatever the database keeps.
	c.RuntimeParams["client_encoding"] = "UTF8"
	set("lock_timeout", milliseconds(opt.LockTimeout))
	set("statement_timeout", milliseconds(opt.StatementTimeout))
	set("idle_in_transaction_session_timeout", milliseconds(opt.IdleInTransaction))
	// The server notices a machine that went away; a frozen process on a living
	// machine it does not, which is what EndSession is for.
	set("tcp_keepalives_idle", "10")
	set("tcp_keepalives_interval", "5")
	set("tcp_keepalives_count", "3")
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = opt.ConnectTimeout
		if c.ConnectTimeout == 0 {
			c.ConnectTimeout = 10 * time.Second
		}
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	c.DialFunc = dialer.DialContext
	if opt.MaxConns > 0 {
		pool.MaxConns = opt.MaxConns
	}
	pool.MinConns = min(opt.MinConns, pool.MaxConns)
	if opt.MaxIdle > 0 {
		pool.MaxConnIdleTime = opt.MaxIdle
	}
	if opt.MaxConnLifetime > 0 {
		pool.MaxConnLifetime = opt.MaxConnLifetime
	}
	pool.AfterConnect = watchClient
	return &Config{pool: pool}, nil
}

// secure makes every host of the URL be spoken to by TLS alone: the driver's
// fallbacks hold, for each, a try in the clear.
func secure(c *pgx.ConnConfig, settings *tls.Config, rawURL string) error {
	if u, err := url.Parse(rawURL); err == nil && u.Query().Has("sslmode") {
		return errors.New("sslmode in the URL and tls: keep one of them")
	}
	named := func(host string) *tls.Config {
		t := settings.Clone()
		t.ServerName = host
		return t
	}
	type address struct {
		host string
		port uint16
	}
	seen := map[address]bool{{c.Host, c.Port}: true}
	c.TLSConfig = named(c.Host)
	fallbacks := c.Fallbacks
	c.Fallbacks = nil
	for _, f := range fallbacks {
		if at := (address{f.Host, f.Port}); !seen[at] {
			seen[at] = true
			c.Fallbacks = append(c.Fallbacks, &pgconn.FallbackConfig{Host: f.Host, Port: f.Port, TLSConfig: named(f.Host)})
		}
	}
	for at := range seen {
		if strings.HasPrefix(at.host, "/") {
			return errors.New("a Unix socket has no TLS")
		}
	}
	return nil
}

// watchClient asks servers that can (14 and later) to notice within a second that
// the client of a waiting statement has closed its connection.
func watchClient(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SET client_connection_check_interval = '1s'", pgx.QueryExecModeSimpleProtocol)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return nil // an older server, or a platform without the means: it notices later
	}
	return err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Connect opens one connection. The caller closes it.
func (c *Config) Connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, c.pool.ConnConfig.Copy())
	if err != nil {
		return nil, fmt.Errorf("postgres: connect to %s: %w", c.Address(), err)
	}
	if err := watchClient(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("postgres: connect to %s: %w", c.Address(), err)
	}
	return conn, nil
}

// Pool opens a pool. It connects when it is first used; the caller closes it.
func (c *Config) Pool(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, c.pool.Copy())
	if err != nil {
		return nil, fmt.Errorf("postgres: pool for %s: %w", c.Address(), err)
	}
	return pool, nil
}

// Address is the server and the database, "host:5432/db", without secrets.
func (c *Config) Address() string {
	cc := c.pool.ConnConfig
	if strings.HasPrefix(cc.Host, "/") {
		return fmt.Sprintf("%s:%d/%s", cc.Host, cc.Port, cc.Database)
	}
	return net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port))) + "/" + cc.Database
}

// User is the role that connections log in as.
func (c *Config) User() string { return c.pool.ConnConfig.User }

// unescaped reports whether there is an @ where none belongs: a password that is
// not escaped was cut in two, and its rest stands where the host, the database or a
// parameter would be shown.
func unescaped(rawURL string) bool {
	_, rest, _ := strings.Cut(rawURL, "://")
	end := strings.IndexAny(rest+"/", "/?#")
	if n := strings.Count(rest[:end], "@"); n > 1 {
		return true
	}
	rest, fragment, _ := strings.Cut(rest[end:], "#")
	path, query, _ := strings.Cut(rest, "?")
	for parameter := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(parameter, "=") // values may: user=me@server
		path += name
	}
	return strings.Contains(path+fragment, "@")
}

// Mask returns the URL with its password replaced, for people.
func Mask(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || unescaped(rawURL) {
		return "postgres://…"
	}
	q := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if q.Has(name) {
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}
