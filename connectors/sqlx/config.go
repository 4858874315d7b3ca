// Package sqlx is the endpoint of SQL databases. Now: a sink for PostgreSQL, tier
// 1: rows, position and fence in one transaction.
package sqlx

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/route"
)

// Config is the configuration of the endpoint.
type Config struct {
	URL         string `yaml:"url" required:"true" doc:"postgres://user:password@host:5432/database. The server itself, not a transaction pooler."`
	Table       string `yaml:"table" doc:"\"orders\" or \"sales.orders\", as the catalogue spells it; a part with a point in its name stands in double quotes. With neither columns nor insert_query the whole payload goes into its column payload. For a dlq without these two the letter goes into those of the columns id, route, partition, payload, metadata that the table has (docs/sql.md)."`
	InsertQuery string `yaml:"insert_query" doc:"An INSERT whose values hold ${payload:field}, ${metadata:key} or ${message:id}. Each is a typed parameter; casts, functions and ON CONFLICT stay as they are; what a message does not have is NULL."`
	BulkCopy    bool   `yaml:"bulk_copy" default:"false" doc:"With insert_query: write by COPY, the fastest way; needs INSERT INTO t (a, b) VALUES (${payload:a}, ${payload:b}) with nothing around the tokens, and no ON CONFLICT. columns: auto and the whole payload are always written so."`

	Columns         string   `yaml:"columns" enum:"auto" doc:"auto: each field at the top of a JSON payload goes into the column of that name. A missing field gives the column's default, or NULL; with a key, a column that has a default and is not in the message stays as it is."`
	Key             []string `yaml:"key" scalar:"true" doc:"With columns: auto. One column, or a list of them, under a unique index: a row that is there already is updated with what the message has. The last message of a key wins."`
	ExtraColumn     string   `yaml:"extra_column" doc:"With columns: auto. A json, jsonb or text column that takes the fields without a column, as one object. Without it they are left out, and each name is logged once."`
	AutoCreateTable bool     `yaml:"auto_create_table" default:"false" doc:"With columns: auto. A table that is missing is created from the first transaction: bigint, numeric, double precision, boolean, jsonb, else text; key becomes the primary key."`

	TLS tlsconfig.Config `yaml:"tls" doc:"How to speak TLS; instead of sslmode and its like in url."`

	MaxConnections    int32         `yaml:"max_connections" default:"10" min:"1" max:"1000" doc:"The most connections for checkpoint records. Each running partition has one of its own besides."`
	MinConnections    int32         `yaml:"min_connections" default:"0" min:"0" max:"1000" doc:"Connections for checkpoint records that are kept open."`
	AcquireTimeout    time.Duration `yaml:"acquire_timeout_ms" default:"30000" min:"1ms" doc:"How long one attempt to connect may take."`
	IdleTimeout       time.Duration `yaml:"idle_timeout_ms" default:"600000" min:"1ms" doc:"A pooled connection is closed after this time without use."`
	MaxLifetime       time.Duration `yaml:"max_lifetime_ms" default:"1800000" min:"1ms" doc:"A pooled connection is closed after this time."`
	TestBeforeAcquire bool          `yaml:"test_before_acquire" default:"false" doc:"Accepted for compatibility: pooled connections that were idle are always tested."`

	stmt  *statement // nil with columns: auto
	table tableName  // "" parts with an insert_query
}

// reserved are keys of the dialect that are not built yet.
var reserved = []string{
	"lookup_query", "shared",
	"cursor_column", "cursor_id", "select_query", "polling_interval_ms", "max_polling_interval_ms",
	"delete_after_read", "timestamps", "publication", "report_outcome",
}

// Type is the endpoint type "sqlx".
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "sqlx",
			NewConfig: func() any { return &Config{} },
			Sink:      func(config any) route.SinkCapabilities { return config.(*Config).capabilities() },
			Reserved:  reserved,
		},
		NewSink: newSink,
	}
}

func (c *Config) capabilities() route.SinkCapabilities {
	return route.SinkCapabilities{
		Tier: route.TierTransactional, Durable: true, Locality: route.Shared, System: c.system(),
		// Their table must have a unique id, or rows are found by a key of the user's.
		LettersOnce: c.InsertQuery == "" && (c.Columns == "" || c.Key != nil),
		Why:         "rows, position and fence are one PostgreSQL transaction with synchronous_commit on",
	}
}

// system names the database and who we are in it; "" if the URL cannot be used.
func (c *Config) system() string {
	d, err := dial.Parse(c.URL, dial.Options{})
	if err != nil {
		return ""
	}
	return "postgres://" + d.User() + "@" + d.Address()
}

var errNoSource = errors.New("sqlx as an input is not supported yet")

// Validate implements the decoder's check.
func (c *Config) Validate(side route.Side) []error {
	if side == route.Input {
		return []error{errNoSource}
	}
	var errs []error
	switch scheme, _, _ := strings.Cut(c.URL, ":"); scheme {
	case "postgres", "postgresql":
		var opt dial.Options
		if c.TLS.Given() {
			opt.TLS = &tls.Config{} // the files are read on the node that runs the route
		}
		if _, err := dial.Parse(c.URL, opt); err != nil {
			errs = append(errs, &route.ConfigError{Field: "url", Msg: err.Error()})
		}
	case "mysql", "mariadb", "sqlite":
		errs = append(errs, &route.ConfigError{Field: "url", Msg: scheme + " is not supported yet", Hint: "only postgres is"})
	default:
		errs = append(errs, &route.ConfigError{Field: "url", Msg: "must begin with postgres://"})
	}
	errs = append(errs, c.TLS.Validate()...)
	if err := c.prepare(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// prepare parses what is to be written. Its errors are *route.ConfigError.
func (c *Config) prepare() error {
	if c.InsertQuery == "" {
		if c.Table == "" {
			return &route.ConfigError{Field: "table", Msg: "is needed where there is no insert_query"}
		}
		name, err := parseTableName(c.Table)
		if err != nil {
			return &route.ConfigError{Field: "table", Msg: err.Error()}
		}
		c.table = name
	}
	if c.Columns == "auto" {
		return c.prepareAuto()
	}
	for _, k := range []struct {
		name  string
		given bool
	}{{"key", c.Key != nil}, {"extra_column", c.ExtraColumn != ""}, {"auto_create_table", c.AutoCreateTable}} {
		if k.given {
			return &route.ConfigError{Field: k.name, Msg: "goes with columns: auto", Hint: "add columns: auto"}
		}
	}
	if c.InsertQuery == "" {
		c.stmt = wholePayload(c.table)
		return nil
	}
	s, err := parseStatement(c.InsertQuery)
	if err != nil {
		return &route.ConfigError{Field: "insert_query", Msg: err.Error()}
	}
	if c.BulkCopy && s.copyTo == "" {
		return &route.ConfigError{
			Field: "bulk_copy", Msg: "needs an insert_query with only tokens as values and nothing behind them",
			Hint: "INSERT INTO t (a, b) VALUES (${payload:a}, ${payload:b})",
		}
	}
	c.stmt = s
	return nil
}

func (c *Config) prepareAuto() error {
	seen := map[string]bool{}
	for _, k := range c.Key {
		if k == "" || seen[k] || k == c.ExtraColumn {
			return &route.ConfigError{Field: "key", Msg: fmt.Sprintf("%q is no column to find a row by, or stands there twice", k)}
		}
		seen[k] = true
	}
	switch {
	case c.InsertQuery != "":
		return &route.ConfigError{Field: "columns", Msg: "does not go with insert_query", Hint: "keep one of them"}
	case c.BulkCopy && c.Key != nil:
		return &route.ConfigError{Field: "bulk_copy", Msg: "does not go with key: COPY knows no conflict", Hint: "remove bulk_copy: rows with a key go by COPY into a temporary table anyway"}
	}
	return nil
}

// useCopy: the default has no key and nothing to compute, so COPY writes the same.
func (c *Config) useCopy() bool { return c.BulkCopy || c.InsertQuery == "" }
