// Package sqlx is the endpoint of SQL databases. Now: a sink for PostgreSQL, tier
// 1: rows, position and fence in one transaction.
package sqlx

import (
	"errors"
	"strings"
	"time"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/route"
)

// Config is the configuration of the endpoint.
type Config struct {
	URL         string `yaml:"url" required:"true" doc:"postgres://user:password@host:5432/database. The server itself, not a transaction pooler."`
	Table       string `yaml:"table" doc:"Without insert_query: the whole payload goes into the column payload of this table."`
	InsertQuery string `yaml:"insert_query" doc:"An INSERT whose values hold ${payload:field}, ${metadata:key} or ${message:id}. Each is a typed parameter; casts, functions and ON CONFLICT stay as they are; what a message does not have is NULL."`
	BulkCopy    bool   `yaml:"bulk_copy" default:"false" doc:"Write by COPY, the fastest way: needs INSERT INTO t (a, b) VALUES (${payload:a}, ${payload:b}) with nothing around the tokens, and no ON CONFLICT."`

	MaxConnections    int32         `yaml:"max_connections" default:"10" min:"1" max:"1000" doc:"The most connections for checkpoint records. Each running partition has one of its own besides."`
	MinConnections    int32         `yaml:"min_connections" default:"0" min:"0" max:"1000" doc:"Connections for checkpoint records that are kept open."`
	AcquireTimeout    time.Duration `yaml:"acquire_timeout_ms" default:"30000" min:"1ms" doc:"How long one attempt to connect may take."`
	IdleTimeout       time.Duration `yaml:"idle_timeout_ms" default:"600000" min:"1ms" doc:"A pooled connection is closed after this time without use."`
	MaxLifetime       time.Duration `yaml:"max_lifetime_ms" default:"1800000" min:"1ms" doc:"A pooled connection is closed after this time."`
	TestBeforeAcquire bool          `yaml:"test_before_acquire" default:"false" doc:"Accepted for compatibility: pooled connections that were idle are always tested."`

	stmt *statement
}

// reserved are keys of the dialect that are not built yet.
var reserved = []string{
	"columns", "key", "auto_create_table", "extra_column", "lookup_query", "shared", "tls",
	"cursor_column", "cursor_id", "select_query", "polling_interval_ms", "max_polling_interval_ms",
	"delete_after_read", "timestamps", "publication", "report_outcome",
}

// Type is the endpoint type "sqlx".
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "sqlx",
			NewConfig: func() any { return &Config{} },
			Sink:      func(any) route.SinkCapabilities { return capabilities },
			Reserved:  reserved,
		},
		NewSink: newSink,
	}
}

var capabilities = route.SinkCapabilities{
	Tier: route.TierTransactional, Durable: true, Locality: route.Shared,
	Why: "rows, position and fence are one PostgreSQL transaction with synchronous_commit on",
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
		if _, err := dial.Parse(c.URL, dial.Options{}); err != nil {
			errs = append(errs, &route.ConfigError{Field: "url", Msg: err.Error()})
		}
	case "mysql", "mariadb", "sqlite":
		errs = append(errs, &route.ConfigError{Field: "url", Msg: scheme + " is not supported yet", Hint: "only postgres is"})
	default:
		errs = append(errs, &route.ConfigError{Field: "url", Msg: "must begin with postgres://"})
	}
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
		c.stmt = wholePayload(c.Table)
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

// useCopy: the default has no key and nothing to compute, so COPY writes the same.
func (c *Config) useCopy() bool { return c.BulkCopy || c.InsertQuery == "" }
