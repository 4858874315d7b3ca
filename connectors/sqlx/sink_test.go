package sqlx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/connectors/sqlx"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(child(mode, os.Getenv(childURL)))
	}
	harness.Main(m)
}

// newSink builds a sink from a config, with the defaults of its tags.
func newSink(t testing.TB, cfg sqlx.Config) connectors.Sink {
	t.Helper()
	c := sqlx.Type().NewConfig().(*sqlx.Config)
	route.SetDefaults(c)
	c.URL, c.Table, c.InsertQuery, c.BulkCopy = cfg.URL, cfg.Table, cfg.InsertQuery, cfg.BulkCopy
	c.Columns, c.Key, c.ExtraColumn, c.AutoCreateTable, c.TLS = cfg.Columns, cfg.Key, cfg.ExtraColumn, cfg.AutoCreateTable, cfg.TLS
	if v, ok := any(c).(interface{ Validate(route.Side) []error }); ok {
		if err := errors.Join(v.Validate(route.Output)...); err != nil {
			t.Fatal(err)
		}
	}
	s, err := sqlx.Type().NewSink(c, &route.Spec{Name: "r"}, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The three ways of writing: COPY of fields, pipelined INSERTs, the whole payload.
var ways = map[string]struct {
	table string
	cfg   sqlx.Config
	rows  string
}{
	"copy": {
		"CREATE TABLE t (n serial, id int CHECK (id <> 666), text text)",
		sqlx.Config{InsertQuery: "INSERT INTO t (id, text) VALUES (${payload:id}, ${payload:text})", BulkCopy: true},
		`SELECT format('{"id":%s,"text":"%s"}', id, text) FROM t ORDER BY n`,
	},
	"insert": {
		"CREATE TABLE t (n serial, id int CHECK (id <> 666), text text)",
		sqlx.Config{InsertQuery: "INSERT INTO t (id, text) VALUES (${payload:id}, lower(upper(${payload:text}::text)))"},
		`SELECT format('{"id":%s,"text":"%s"}', id, text) FROM t ORDER BY n`,
	},
	"upsert": {
		"CREATE TABLE t (n serial, id int PRIMARY KEY CHECK (id <> 666), text text)",
		sqlx.Config{InsertQuery: "INSERT INTO t (id, text) VALUES (${payload:id}, ${payload:text}) ON CONFLICT (id) DO UPDATE SET text = excluded.text"},
		`SELECT format('{"id":%s,"text":"%s"}', id, text) FROM t ORDER BY n`,
	},
	"columns": {
		"CREATE TABLE t (n serial, id int CHECK (id <> 666), text text)",
		sqlx.Config{Table: "t", Columns: "auto"},
		`SELECT format('{"id":%s,"text":"%s"}', id, text) FROM t ORDER BY n`,
	},
	"columns with a key": {
		"CREATE TABLE t (n serial, id int PRIMARY KEY CHECK (id <> 666), text text)",
		sqlx.Config{Table: "t", Columns: "auto", Key: []string{"id"}},
		`SELECT format('{"id":%s,"text":"%s"}', id, text) FROM t ORDER BY n`,
	},
	"whole payload": {
		"CREATE TABLE t (n serial, payload text CHECK (payload NOT LIKE '%666%'))",
		sqlx.Config{Table: "t"},
		"SELECT payload FROM t ORDER BY n",
	},
}

func TestSink(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			url := harness.Postgres(t).NewDatabase(t)
			way.cfg.URL = url
			sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
				harness.PostgresExec(t, url, "DROP TABLE IF EXISTS t, "+ckpt.DefaultTable+"; "+way.table)
				return &sinktest.Subject{
					Open: func(t *testing.T) connectors.Sink { return newSink(t, way.cfg) },
					Rows: func(t *testing.T) [][]byte {
						rows, err := harness.PostgresConnect(t, url).Query(t.Context(), way.rows)
						if err != nil {
							t.Fatal(err)
						}
						var out [][]byte
						for rows.Next() {
							var s string
							if err := rows.Scan(&s); err != nil {
								t.Fatal(err)
							}
							out = append(out, []byte(s))
						}
						return out
					},
					Unencodable: func(i int) []byte { return fmt.Appendf(nil, "{\"id\":%d,\"text\":\"\\u0000\x00\"}", i) },
					Refused:     func(i int) []byte { return []byte(`{"id":666,"text":"no"}`) },
					Block: func(t *testing.T) func() {
						conn := harness.PostgresConnect(t, url)
						if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE t IN EXCLUSIVE MODE"); err != nil {
							t.Fatal(err)
						}
						return func() { _, _ = conn.Exec(context.Background(), "ROLLBACK") }
					},
					Freeze: func(t *testing.T) (string, func(string)) {
						conn := harness.PostgresConnect(t, url)
						session, err := dial.Session(t.Context(), conn)
						if err != nil {
							t.Fatal(err)
						}
						return session, func(key string) {
							if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
								t.Fatal(err)
							}
							if _, err := conn.Exec(t.Context(), "SELECT FROM "+ckpt.DefaultTable+" WHERE key = $1 FOR UPDATE", key); err != nil {
								t.Fatal(err)
							}
						}
					},
				}
			}})
		})
	}
}
