package route_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func one(payload string, meta ...string) *message.Batch {
	b := message.NewBatch()
	b.Append([]byte(payload), 7, 8)
	for i := 0; i < len(meta); i += 2 {
		b.AddMeta(meta[i], []byte(meta[i+1]))
	}
	return b
}

const order = `{"a":{"b":[10,{"c":"x"}]},"s":"q\"\n\u00e9","n":1.50,"t":true,"z":null,"we.ird":"w","o":{"k":1},"*":"star","":"e","q?":"mark"}`

func TestTemplateAppend(t *testing.T) {
	t.Parallel()
	b := one(order, "kind", "k1", "a.b", "dotted")
	for text, want := range map[string]struct {
		out string
		ok  bool
	}{
		"plain":                        {"plain", true},
		"${payload:a.b.0}":             {"10", true},
		"${payload:a.b.1.c}-":          {"x-", true},
		"<${payload:n}|${payload:t}>":  {"<1.50|true>", true},
		"${payload:s}":                 {"q\"\né", true},
		"${payload:o}":                 {`{"k":1}`, true},
		"${payload:*}":                 {"star", true},
		"${payload:q?}":                {"mark", true},
		"${payload:z}":                 {"", false},
		"${payload:nope}!":             {"!", false},
		"${payload:a.#}":               {"", false},
		"${payload:@this}":             {"", false},
		"${metadata:kind}":             {"k1", true},
		"${metadata:a.b}":              {"dotted", true},
		"${metadata:none}":             {"", false},
		"$${payload:n} $${x}":          {"${payload:n} ${x}", true},
		"${other:n} ${X} ${":           {"${other:n} ${X} ${", true},
		"${env:REGION}":                {"eu", true},
		"${ payload:n}":                {"${ payload:n}", true},
		"a${other:${payload:n}}":       {"a${other:1.50}", true},
		"${payload:n}${metadata:kind}": {"1.50k1", true},
	} {
		tpl, err := route.CompileTemplateEnv(text, env("REGION", "eu"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		out, ok := tpl.Append([]byte(">"), b, 0, route.RenderOptions{})
		if string(out) != ">"+want.out || ok != want.ok {
			t.Errorf("%s: got %q %v, want %q %v", text, out, ok, want.out, want.ok)
		}
	}
}

func TestTemplateInJSONBodies(t *testing.T) {
	t.Parallel()
	tpl, err := route.CompileTemplate(`{"s":"${payload:s}","o":${payload:o | raw},"m":"${metadata:m}"}`)
	if err != nil {
		t.Fatal(err)
	}
	out, ok := tpl.Append(nil, one(order, "m", "\x01\\"), 0, route.RenderOptions{JSON: true})
	var got struct {
		S, M string
		O    map[string]int
	}
	if err := json.Unmarshal(out, &got); err != nil || !ok || got.S != "q\"\né" || got.O["k"] != 1 || got.M != "\x01\\" {
		t.Errorf("%s: %+v %v", out, got, err)
	}
}

func TestTemplateRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"${payload:}":         "names nothing",
		"${payload:a..b}":     "part of the path is empty",
		"${payload:a | x}":    "the only thing behind a |",
		"${message:seq}":      "only an id",
		"${gen:uuid}":         "not supported yet",
		"${env:NOPE}":         "not set",
		"${payload:a":         "never closed",
		"x ${metadata: } ok ": "names nothing",
	} {
		if _, err := route.CompileTemplateEnv(text, env()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestTemplateSingleKeepsTheType(t *testing.T) {
	t.Parallel()
	tpl, _ := route.CompileTemplate("${payload:n}")
	if ns, sel, ok := tpl.Single(); !ok || ns != "payload" || sel != "n" {
		t.Errorf("%q %q %v", ns, sel, ok)
	}
	if v, ok := tpl.Value(one(order), 0, ""); !ok || v.Type != gjson.Number || v.Raw != "1.50" {
		t.Errorf("%+v %v", v, ok)
	}
	for _, s := range []string{"x${payload:n}", "${payload:n}${payload:n}", "", "x"} {
		tpl, _ := route.CompileTemplate(s)
		if _, _, ok := tpl.Single(); ok {
			t.Errorf("%q is no single token", s)
		}
	}
}

func TestMessageIDIsTheSameOnRereadAndDiffersElsewhere(t *testing.T) {
	t.Parallel()
	tpl, _ := route.CompileTemplate("${message:id}")
	render := func(b *message.Batch, identity string) string {
		out, ok := tpl.Append(nil, b, 0, route.RenderOptions{Identity: identity})
		if v, _ := tpl.Value(b, 0, identity); !ok || v.Str != string(out) {
			t.Errorf("value %q, text %q", v.Str, out)
		}
		return string(out)
	}
	id := render(one("x"), "kafka/orders/3")
	if len(id) != 32 || id != render(one("y"), "kafka/orders/3") {
		t.Errorf("id %q", id)
	}
	next := message.NewBatch()
	next.Append([]byte("x"), 8, 9)
	if id == render(one("x"), "kafka/orders/4") || id == render(next, "kafka/orders/3") {
		t.Error("two records share an id")
	}
	if got := render(one("x", route.IDKey, "mine"), "kafka/orders/3"); got != "mine" {
		t.Errorf("business id: %q", got)
	}
	if long := strings.Repeat("p", 1000); render(one("x"), long) == render(one("x"), long+"p") {
		t.Error("long identities are cut")
	}
}

func TestTemplateDoesNotAllocate(t *testing.T) {
	b := one(`{"id":5,"name":"some name","deep":{"x":[1,2,3]}}`, "k", "v")
	tpl, _ := route.CompileTemplate("${payload:id}-${payload:deep.x.2}-${payload:name}-${metadata:k}-${message:id}")
	buf := make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() {
		if out, ok := tpl.Append(buf, b, 0, route.RenderOptions{JSON: true, Identity: "kafka/orders/3"}); !ok || len(out) == 0 {
			t.Fatal("not rendered")
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

func TestParseSQL(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"INSERT INTO t VALUES (${payload:id}, ${metadata:k})": "INSERT INTO t VALUES ($1, $2)",
		"SELECT 1": "SELECT 1",
		"INSERT INTO t VALUES ('${payload:x}', ${payload:x}) -- ${payload:y}": "INSERT INTO t VALUES ('${payload:x}', $1) -- ${payload:y}",
		`SELECT "a${payload:b}", E'\'${payload:c}' || ${payload:d}`:           `SELECT "a${payload:b}", E'\'${payload:c}' || $1`,
		"SELECT 'it''s ${payload:c}', ${payload:d}":                           "SELECT 'it''s ${payload:c}', $1",
		"SELECT '\\', ${payload:d}":                                           "SELECT '\\', $1",
		"/* ${payload:a} /* nested */ ${payload:b} */ SELECT ${payload:d}":    "/* ${payload:a} /* nested */ ${payload:b} */ SELECT $1",
		"SELECT $$ ${payload:a} $$, $x$ $$ ${payload:a} $x$, ${payload:d}":    "SELECT $$ ${payload:a} $$, $x$ $$ ${payload:a} $x$, $1",
		"SELECT ${payload:a}0, ${payload:b}x":                                 "SELECT $1 0, $2x",
		"SELECT a$1 FROM t WHERE x=${payload:d}":                              "SELECT a$1 FROM t WHERE x=$1",
	} {
		q, err := route.ParseSQL(query)
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		if got := q.Text(); got != want {
			t.Errorf("%s: got %s", query, got)
		}
		if len(q.Segments) != len(q.Tokens)+1 {
			t.Errorf("%s: %d segments, %d tokens", query, len(q.Segments), len(q.Tokens))
		}
	}
}

// Regression (bug 26): casts and functions around tokens were dropped, so bytea
// and json could not be written.
func TestParseSQLKeepsCastsAndFunctionsAroundTokens(t *testing.T) {
	t.Parallel()
	q, err := route.ParseSQL("INSERT INTO t (a, b, c) VALUES (${payload:a}::bigint, decode(${payload:b}, 'base64'), coalesce(NULLIF(${metadata:c}, ''), 'none')::text) ON CONFLICT (a) DO UPDATE SET b = excluded.b")
	if err != nil {
		t.Fatal(err)
	}
	want := "INSERT INTO t (a, b, c) VALUES ($1::bigint, decode($2, 'base64'), coalesce(NULLIF($3, ''), 'none')::text) ON CONFLICT (a) DO UPDATE SET b = excluded.b"
	if q.Text() != want {
		t.Errorf("got %s", q.Text())
	}
	if q.Tokens[2].Namespace != "metadata" || q.Tokens[2].Selector != "c" {
		t.Errorf("%+v", q.Tokens)
	}
	if v, ok := q.Tokens[0].Value(one(`{"a":5}`), 0, ""); !ok || v.Type != gjson.Number {
		t.Errorf("%+v %v", v, ok)
	}
}

func TestParseSQLRefuses(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"SELECT ${payload:a | raw}":  "raw would put",
		"SELECT $1, ${payload:a}":    "parameters are written as",
		"SELECT 'a":                  "character 8: ' is never closed",
		"SELECT é, $q$ ${payload:a}": "character 11: $q$ is never closed",
		"/* /* */":                   "a comment is never closed",
		"SELECT ${paylod:a}":         "names no payload",
		"SELECT ${payload:a":         "never closed",
		"SELECT ${gen:now}":          "not supported yet",
	} {
		if _, err := route.ParseSQL(query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", query, err, want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"${payload:a.b}", "$${x} ${metadata:k | raw}", "${message:id}", "${", "${payload:*.#.@x}"} {
		f.Add(s, order)
	}
	f.Fuzz(func(t *testing.T, s, payload string) {
		tpl, err := route.CompileTemplateEnv(s, env())
		if err != nil {
			return
		}
		b := one(payload, "k", "v")
		out, _ := tpl.Append(nil, b, 0, route.RenderOptions{JSON: true})
		if len(tpl.Tokens()) == 0 && !strings.Contains(s, "$${") && string(out) != s {
			t.Errorf("a text without tokens changed: %q → %q", s, out)
		}
		if string(b.Payload(0)) != payload {
			t.Error("the payload changed")
		}
	})
}

func FuzzParseSQL(f *testing.F) {
	for _, s := range []string{"INSERT INTO t VALUES (${payload:a}::int, '${x}')", "$$ ${payload:a} $$", "E'\\'' -- x\n/* */", "${payload:a}${payload:b}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := route.ParseSQLEnv(s, env())
		if err != nil {
			return
		}
		if len(q.Segments) != len(q.Tokens)+1 {
			t.Fatal("segments")
		}
		if len(q.Tokens) == 0 && q.Text() != s {
			t.Errorf("a query without tokens changed: %q → %q", s, q.Text())
		}
		// Each token stands between its neighbours, in order.
		rest := s
		for i, seg := range q.Segments {
			if !strings.HasPrefix(rest, seg) {
				t.Fatalf("segment %d %q is not at %q", i, seg, rest)
			}
			rest = rest[len(seg):]
			if i < len(q.Tokens) {
				rest = rest[strings.IndexByte(rest, '}')+1:]
			}
		}
	})
}
