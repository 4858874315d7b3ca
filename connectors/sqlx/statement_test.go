package sqlx

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/route"
)

func TestStatementForms(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]struct{ sql, copyTo, two string }{
		"INSERT INTO t (a, b) VALUES (${payload:a}, ${metadata:b});": {
			"INSERT INTO t (a, b) VALUES ($1, $2)", "t (a, b)", "INSERT INTO t (a, b) VALUES ($1, $2),($3, $4)",
		},
		`insert into "S".t values(${payload:a})`: {
			`insert into "S".t values($1)`, `"S".t`, `insert into "S".t values($1),($2)`,
		},
		"INSERT INTO t (a) VALUES (upper(${payload:a})::text) ON CONFLICT DO NOTHING -- ${x": {
			"INSERT INTO t (a) VALUES (upper($1)::text) ON CONFLICT DO NOTHING -- ${x", "",
			"INSERT INTO t (a) VALUES (upper($1)::text),(upper($2)::text) ON CONFLICT DO NOTHING -- ${x",
		},
		"INSERT INTO t (a, b) VALUES (${payload:a}, ')')": {
			"INSERT INTO t (a, b) VALUES ($1, ')')", "", "INSERT INTO t (a, b) VALUES ($1, ')'),($2, ')')",
		},
		"INSERT INTO t (a) VALUES (${payload:a}) ON CONFLICT (a) DO UPDATE SET a = excluded.a": {
			"INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = excluded.a", "",
			"INSERT INTO t (a) VALUES ($1),($2) ON CONFLICT (a) DO UPDATE SET a = excluded.a",
		},
		"INSERT INTO t (a) VALUES (${payload:a}) ON CONFLICT (a) DO UPDATE SET a = (SELECT max(a) FROM t)": {
			"INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = (SELECT max(a) FROM t)", "", "",
		},
		"INSERT INTO t (a) VALUES ((SELECT max(a) FROM t) + ${payload:a})": {
			"INSERT INTO t (a) VALUES ((SELECT max(a) FROM t) + $1)", "", "",
		},
		"INSERT INTO t (a) VALUES (${payload:a}), (${payload:b})":           {"INSERT INTO t (a) VALUES ($1), ($2)", "", ""},
		"INSERT INTO t (a) SELECT ${payload:a} WHERE true":                  {"INSERT INTO t (a) SELECT $1 WHERE true", "", ""},
		"UPDATE t SET a = ${payload:a} WHERE b IN (${payload:b})":           {"UPDATE t SET a = $1 WHERE b IN ($2)", "", ""},
		"INSERT INTO t AS x (a) VALUES (${payload:a})":                      {"INSERT INTO t AS x (a) VALUES ($1)", "", "INSERT INTO t AS x (a) VALUES ($1),($2)"},
		"INSERT INTO t (a) VALUES (${payload:a}) RETURNING a":               {"INSERT INTO t (a) VALUES ($1) RETURNING a", "", "INSERT INTO t (a) VALUES ($1),($2) RETURNING a"},
		"/* VALUES (1) */ INSERT INTO t (\"values\") VALUES (${payload:a})": {"/* VALUES (1) */ INSERT INTO t (\"values\") VALUES ($1)", "t (\"values\")", "/* VALUES (1) */ INSERT INTO t (\"values\") VALUES ($1),($2)"},
	} {
		s, err := parseStatement(query)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		if s.sql != want.sql || s.copyTo != want.copyTo {
			t.Errorf("%s: %q, COPY %q", query, s.sql, s.copyTo)
		}
		two := ""
		if s.rows() > 1 {
			two = s.sqlOf(2)
		}
		if two != want.two {
			t.Errorf("%s: for two rows %q, want %q", query, two, want.two)
		}
	}
}

func TestValidateSaysWhatToDo(t *testing.T) {
	t.Parallel()
	const good = "INSERT INTO t (a) VALUES (${payload:a})"
	for want, cfg := range map[string]Config{
		"mysql is not supported yet":  {URL: "mysql://h/db", Table: "t"},
		"must begin with postgres://": {URL: "oracle://h/db", Table: "t"},
		"table: is needed":            {URL: "postgres://h/db"},
		"no token":                    {URL: "postgres://h/db", InsertQuery: "INSERT INTO t DEFAULT VALUES"},
		"inside quotes":               {URL: "postgres://h/db", InsertQuery: "INSERT INTO t (a, b) VALUES ('${payload:a}', ${payload:b})"},
		"one statement only":          {URL: "postgres://h/db", InsertQuery: good + "; DROP TABLE t"},
		"bulk_copy: needs":            {URL: "postgres://h/db", InsertQuery: good + " ON CONFLICT DO NOTHING", BulkCopy: true},
		"table: public.a.b: want":     {URL: "postgres://h/db", Table: "public.a.b"},
		"key: goes with columns":      {URL: "postgres://h/db", Table: "t", Key: []string{"id"}},
		"extra_column: goes with":     {URL: "postgres://h/db", Table: "t", ExtraColumn: "x"},
		"auto_create_table: goes":     {URL: "postgres://h/db", InsertQuery: good, AutoCreateTable: true},
		"columns: does not go with":   {URL: "postgres://h/db", Table: "t", InsertQuery: good, Columns: "auto"},
		"bulk_copy: does not go":      {URL: "postgres://h/db", Table: "t", Columns: "auto", Key: []string{"id"}, BulkCopy: true},
		`key: "a" is no column`:       {URL: "postgres://h/db", Table: "t", Columns: "auto", Key: []string{"a", "a"}},
		"keep one of them":            {URL: "postgres://h/db?sslmode=disable", Table: "t", TLS: tlsconfig.Config{Required: true}},
		"tls.cert_file: missing":      {URL: "postgres://h/db", Table: "t", TLS: tlsconfig.Config{KeyFile: "k"}},
		"postgres://u:xxxxx@h":        {URL: "postgres://u:secret@h/db?sslmode=sure", Table: "t"},
	} {
		errs := cfg.Validate(route.Output)
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) || strings.Contains(errs[0].Error(), "secret") {
			t.Errorf("want %q: %v", want, errs)
		}
	}
	if errs := (&Config{}).Validate(route.Input); len(errs) != 1 || !strings.Contains(errs[0].Error(), "not supported yet") {
		t.Errorf("as an input: %v", errs)
	}
	if errs := (&Config{URL: "postgresql://h/db", InsertQuery: good, BulkCopy: true}).Validate(route.Output); errs != nil {
		t.Errorf("good: %v", errs)
	}
}

func FuzzParseStatement(f *testing.F) {
	f.Add("INSERT INTO t (a) VALUES (${payload:a}) -- x")
	f.Add("INSERT INTO t VALUES ($$ ${payload:a} $$, E'\\'', \"x\"\"y\", ${message:id})")
	f.Add("/* /* */ */ INSERT INTO a.b (c) VALUES (((${metadata:k})))")
	f.Fuzz(func(t *testing.T, query string) {
		s, err := parseStatement(query)
		if err != nil {
			return
		}
		if n := s.rows(); n > 1 {
			if s.head+s.group+s.tail != s.sql || len(s.params) != s.width() {
				t.Fatalf("%q is cut into %q %q %q", s.sql, s.head, s.group, s.tail)
			}
			_ = s.sqlOf(n)
		}
	})
}
