package route_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/route"
)

// uriTypes are endpoints with names that the grammar knows.
type uriTypes struct{ testTypes }

type pathConfig struct {
	Path   string `yaml:"path" required:"true"`
	Format string `yaml:"format" default:"normal"`
	NameBy string `yaml:"name_by"`
	CSV    struct {
		Separator string   `yaml:"separator"`
		Header    bool     `yaml:"header" default:"true"`
		Columns   []string `yaml:"columns"`
	} `yaml:"csv"`
}

type sqlConfig struct {
	URL      string `yaml:"url" required:"true"`
	Table    string `yaml:"table"`
	BulkCopy bool   `yaml:"bulk_copy"`
}

func (u uriTypes) Endpoint(name string) (route.EndpointType, bool) {
	t := route.EndpointType{Name: name, Source: source, Sink: sink}
	switch name {
	case "file":
		t.NewConfig = func() any { return new(pathConfig) }
	case "sqlx":
		t.NewConfig = func() any { return new(sqlConfig) }
		t.Reserved = []string{"columns"}
	default:
		return u.testTypes.Endpoint(name)
	}
	return t, true
}

func copySpec(source, destination string) (*route.Spec, error) {
	return route.Copy{Name: "copy", Source: source, Destination: destination, LookupEnv: func(name string) (string, bool) {
		return "geheim", name == "SECRET"
	}}.Spec(uriTypes{})
}

func TestURIsOfTheGrammar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ uri, want string }{
		{"in.csv", "file: path: in.csv format: csv"},
		{"data/*.csv.gz", `file: path: "data/*.csv.gz" format: csv`},
		{"./a:b.jsonl?format=json", `file: path: "./a:b.jsonl" format: json`},
		{"/in/a.TSV.zst", "file: path: /in/a.TSV.zst format: csv csv: separator: tab"},
		{"a.tsv?csv.separator=x&csv.header=false", "file: path: a.tsv format: csv csv: separator: x header: false"},
		{"file:a%3Fb%20c.csv", `file: path: "a?b c.csv" format: csv`},
		{"file:a%2520b.csv", `file: path: "a%20b.csv" format: csv`}, // decoded once: it is another file than "a b.csv"
		{"file:///a/b.txt", "file: path: /a/b.txt format: raw"},
		{`a.csv?csv={"columns": ["a", "b"], "header": false}`, "file: path: a.csv format: csv csv: header: false columns: - a - b"},
		{"a.csv?csv.columns=a,b", "file: path: a.csv format: csv csv: columns: - a - b"},
		{"-", `file: path: "-" format: raw`},
		{"kafka://a:1,b:2/t-1?max_bytes=1MiB", `kafka: url: "a:1,b:2" topic: t-1 max_bytes: 1MiB`},
		{"kafka:?url=a:1&topic=t", `kafka: url: "a:1" topic: t`},
		{"kafka://a:1/t?qos=1&consumer_options=[[\"a\",\"b\"]]&tls.required", `kafka: url: "a:1" topic: t consumer_options: - - a - b tls: required: true qos: 1`},
		{"postgres://u:p%20w@h/d?table=t&sslmode=require&bulk_copy=true&connect_timeout=3", `sqlx: url: "postgres://u:p%20w@h/d?sslmode=require&connect_timeout=3" table: t bulk_copy: true`},
		{"sqlx:?url=postgres://u:p@h/d?sslmode=x&table=t", `sqlx: url: "postgres://u:p@h/d?sslmode=x" table: t`},
		{"postgres://u:${SECRET}@h/d", `sqlx: url: "postgres://u:geheim@h/d"`},
		{"static:?body=a+b%26c", `static: body: "a+b&c"`},
		{"static:x", `static: body: x`},
		{"a.txt|filter?a == \"b|c\" || b > 1|filter?x", `file: path: a.txt format: raw middlewares: - filter: "a == \"b|c\" || b > 1" - filter: x`},
	} {
		s, err := copySpec(c.uri, "null:")
		if err != nil {
			t.Errorf("%s: %v", c.uri, err)
			continue
		}
		text, _, _ := strings.Cut(s.Normalized(), "output:")
		if got := strings.TrimPrefix(strings.Join(strings.Fields(text), " "), "input: "); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.uri, got, c.want)
		}
	}
	s, err := copySpec("a.csv", "out/")
	if err != nil || s.Output.Config.(*pathConfig).NameBy != "source_position" {
		t.Errorf("parts: %v", err)
	}
}

func TestWrongURIsAreRefusedWithTheNearestName(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"":                                "source: is empty",
		"kafak://h:1/t":                   `source: unknown scheme "kafak" (did you mean "kafka"?)`,
		"kafka://h:1/t?topic=x":           "topic: is there twice",
		"kafka://h:1/t?tpic=x":            "input.kafka.tpic: unknown key",
		"kafka://h:1":                     "input.kafka.topic: is required",
		"kafka://h:1/t?fromat=json":       `input.kafka.fromat: unknown key (did you mean "format"?)`,
		"kafka://h:1/t?qos=geheim":        "input.kafka.qos: must be an integer, not this value",
		"kafka://h:1/t?delayed_ack=true":  "",
		"postgres://u:geheim@h/d?tabel=x": `unknown key "tabel" (did you mean "table"?)`,
		"postgres://h/d?columns=auto":     "input.sqlx.columns: is not supported yet",
		"fanout:?to=x":                    "a nested endpoint (fanout) is not supported yet",
		"switch:?when=x":                  "a nested endpoint (switch) is not supported yet",
		"nats://h/x":                      `endpoint "nats" is not supported yet`,
		"s3://bucket/x":                   `endpoint "object_store" is not supported yet`,
		"a.csv|fliter?x":                  `unknown middleware (did you mean "filter"?)`,
		"a.csv?csv.x=1":                   "input.file.csv.x: unknown key",
		"postgres://h/d?table=${UNSET}":   "variable UNSET is not set and has no default",
		"null:x":                          `null: takes nothing before its query`,
		"null:":                           `"null" cannot be an input`,
	} {
		_, err := copySpec(uri, "null:")
		if err == nil && want == "" {
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "source: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	if _, err := copySpec("a.csv", "kafka://h:1/t?x=1"); err == nil || !strings.HasPrefix(err.Error(), "destination: output.kafka.x: unknown key") {
		t.Errorf("destination: %v", err)
	}
}

// The filter stands behind the input's own middlewares, so each sees what a URI says
// it sees.
func TestCopyFilterAndKeys(t *testing.T) {
	t.Parallel()
	s, err := route.Copy{Name: "c", Source: "a.csv|filter?x", Destination: "null:", Filter: "a > 1", Keys: map[string]string{"batch_size": "7"}}.Spec(uriTypes{})
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Input.Middlewares; len(m) != 2 || *m[1].Config.(*exprConfig) != "a > 1" || s.BatchSize != 7 {
		t.Errorf("%+v", s)
	}
	if _, err := (route.Copy{Name: "c", Source: "a.csv", Destination: "null:", Keys: map[string]string{"batch_size": "0"}}).Spec(uriTypes{}); err == nil || !strings.HasPrefix(err.Error(), "copy: batch_size: must be at least 1") {
		t.Errorf("%v", err)
	}
}

// A URI makes a route that reads back, or an error with a place; and what is shown
// of it never has the password.
func FuzzURI(f *testing.F) {
	for _, s := range []string{"in.csv", "-", "kafka://a:1,b:2/t?tls.required", "postgres://u:geheim@h/d?table=t&sslmode=x", "a|filter?x|y", `a.csv?csv={"columns":["a"]}`, "static:?body=%", "kafka:?url=${SECRET}&topic=${X:-y}", "a?path=b", "a?csv=[&csv.x=y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		s, err := copySpec(uri, "null:")
		if err != nil {
			if err.Error() == "" {
				t.Error("an empty error")
			}
			return
		}
		again, err := route.DecodeRoute("copy", s.Normalized(), uriTypes{})
		if err != nil {
			t.Fatalf("%q: %v\n%s", uri, err, s.Normalized())
		}
		if again.Normalized() != s.Normalized() {
			t.Errorf("%q: not stable:\n%s\n%s", uri, s.Normalized(), again.Normalized())
		}
	})
}
