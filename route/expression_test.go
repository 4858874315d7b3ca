package route_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mqbridge/mqb/route"
)

func TestExpression(t *testing.T) {
	t.Parallel()
	payload := `{"id":"17","name":" Ada ","big":1234567890123456789,"f":1.10,"huge":1e400,"z":null,"ok":true,"a":{"b":"x","c.d":1},"l":[1,2],"j":"{\"k\":[1.50]}","k.x":2,"max":9223372036854775807}`
	b := one(payload, "kind", "test")
	for expression, want := range map[string]string{
		`{id: number(id), name: trim(name)}`:                                           `{"id":17,"name":"Ada"}`,
		`{big: big, f: f, huge: huge, z: z, ok: ok, a: a, l: l}`:                       `{"big":1234567890123456789,"f":1.10,"huge":1e400,"z":null,"ok":true,"a":{"b":"x","c.d":1},"l":[1,2]}`,
		`{next: big + 1, less: big - 1, neg: -big, half: f / 2}`:                       `{"next":1234567890123456790,"less":1234567890123456788,"neg":-1234567890123456789,"half":0.55}`,
		`{f: number(f), s: string(f), t: string(ok), n: string(z)}`:                    `{"f":1.10,"s":"1.10","t":"true","n":null}`,
		`{a: max + 1, b: max * 2, c: max - -1, d: max % 10}`:                           `{"a":9223372036854776000,"b":18446744073709552000,"c":9223372036854776000,"d":7}`,
		`{none: none, more: none + 1}`:                                                 `{"none":null,"more":null}`,
		`{d: none ?? "d", e: a.b ?? "d", n: z ?? id ?? 1}`:                             `{"d":"d","e":"x","n":"17"}`,
		`{v: ok && f > 1 ? upper(a.b) : "no", w: id > 20 ? 1 : 2}`:                     `{"v":"X","w":2}`,
		`{list: [id, meta.kind, {x: 1}], dotted: a["c.d"], root: $env["k.x"]}`:         `{"list":["17","test",{"x":1}],"dotted":1,"root":2}`,
		`{j: json(j), k: json(name), len: len(name), n: len(l)}`:                       `{"j":{"k":[1.50]},"k":null,"len":5,"n":2}`,
		`{c: concat(id, "-", f, "-", ok), r: replace(id, "1", "x"), m: concat(id, z)}`: `{"c":"17-1.10-true","r":"x7","m":null}`,
		`{a: abs(-5), f: floor(-1.5), c: ceil(1.2), r: round(2.5), same: round(big)}`:  `{"a":5,"f":-2,"c":2,"r":3,"same":1234567890123456789}`,
		`{"quoted \"name\"": "a\tb<é"}`:                                                `{"quoted \"name\"":"a\tb<é"}`,
		`a`:                                                                            `{"b":"x","c.d":1}`,
		`ok ? a : {}`:                                                                  `{"b":"x","c.d":1}`,
		`{c: country == "DE", n: not ok, e: f == 1.1, m: meta.none}`:                   `{"c":false,"n":false,"e":true,"m":null}`,
		`name | trim() == "Ada" ? {a: 1} : {a: 2}`:                                     `{"a":1}`,
		`{}`: `{}`,
	} {
		x, err := route.CompileExpression(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		got, err := x.Append([]byte("#"), []byte(payload), b, 0)
		if err != nil || string(got) != "#"+want {
			t.Errorf("%s: %v\ngot  %s\nwant #%s", expression, err, got, want)
		}
		if x.UsesPayload() && want == `{}` {
			t.Errorf("%s uses the payload?", expression)
		}
	}
}

func TestExpressionRefuses(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		`5`:                   "must make an object",
		`[1]`:                 "must make an object",
		`not a`:               "must make an object",
		`{a: 1, a: 2}`:        "stands twice",
		`{(a): 1}`:            "a name must be fixed",
		`{a: meta}`:           "needs a name",
		`{a: l[0]}`:           "places in a list",
		`{a: trimm(b)}`:       "no function trimm",
		`{a: now()}`:          "no function now",
		`{a: json(b, c)}`:     "takes 1",
		`{a: map(l, # + 1)}`:  "no function map",
		`{a: 1`:               "character",
		`{a: b matches "("}`:  "error parsing regexp",
		`{a: {b: meta.x[1]}}`: "places in a list",
	} {
		if _, err := route.CompileExpression(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expression, err, want)
		}
	}
	b := one(`{"n":5,"l":[1],"huge":1e400}`)
	for expression, want := range map[string]string{
		`n`:                   "made Number, not an object",
		`l`:                   "not an object",
		`none`:                "made Null",
		`{a: n ? 1 : 2}`:      "is not true or false",
		`{a: huge + 1}`:       "field huge holds no number that can be calculated with",
		`n > 4 ? "x" : {a:1}`: "made String",
	} {
		x, err := route.CompileExpression(expression)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := x.Append(nil, b.Payload(0), b, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %s, %v, want %q", expression, got, err, want)
		}
	}
	x, _ := route.CompileExpression("{a: a}")
	if _, err := x.Append(nil, []byte("[1]"), b, 0); err == nil {
		t.Error("a list passed for an object")
	}
}

// Whatever an expression makes of valid JSON is valid JSON.
func FuzzExpression(f *testing.F) {
	for _, s := range []string{`{a: x, b: number(y) + 1, c: [meta.k, json(z)]}`, `x ?? {a: -y}`, `{a: concat(x, "<\u0001>") , b: y % 3, c: y / 7}`, `{a: len(x) > 1 ? lower(x) : $env["a.b"]}`} {
		f.Add(s, `{"x":"A","y":17,"z":"[1]","a.b":1e3}`)
	}
	f.Fuzz(func(t *testing.T, s, payload string) {
		x, err := route.CompileExpression(s)
		if err != nil || !json.Valid([]byte(payload)) {
			return
		}
		got, err := x.Append(nil, []byte(payload), one(payload, "k", "v\xff"), 0)
		if err == nil && (!json.Valid(got) || got[0] != '{' || utf8.ValidString(payload) && !utf8.Valid(got)) {
			t.Errorf("%q of %q made %q", s, payload, got)
		}
	})
}

// The value of a header may be any bytes; a payload that holds them as they are is no
// JSON to anybody.
func TestBinaryMetadataDoesNotMakeJSONThatNobodyReads(t *testing.T) {
	t.Parallel()
	b := one(`{}`, "bin", "\xffa\xc3", "nul", "\x00\b")
	for expression, want := range map[string]string{
		`{k: meta.bin}`: `{"k":"` + "\ufffda\ufffd" + `"}`,
		`{k: concat(meta.bin, "x"), l: trim(meta.bin)}`: `{"k":"` + "\ufffda\ufffdx" + `","l":"` + "\ufffda\ufffd" + `"}`,
		`{k: meta.nul}`:       `{"k":"\u0000\b"}`,
		`{k: json(meta.bin)}`: `{"k":null}`,
	} {
		x, err := route.CompileExpression(expression)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Append(nil, []byte(`{}`), b, 0)
		if err != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%s: %q, %v", expression, got, err)
		}
	}
	template, err := route.CompileTemplate(`{"k":"${metadata:bin}"}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := template.Append(nil, b, 0, route.RenderOptions{JSON: true}); string(got) != `{"k":"`+"\ufffda\ufffd"+`"}` {
		t.Errorf("template: %q", got)
	}
}

// Regression: the check behind json() recursed, and the stack of a process has an end
// that nothing recovers from.
func TestATextOfNothingButBracketsDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	x, err := route.CompileExpression(`{k: json(x)}`)
	if err != nil {
		t.Fatal(err)
	}
	payload := []byte(`{"x":"` + strings.Repeat("[", 16<<20) + `"}`)
	if got, err := x.Append(nil, payload, one(string(payload)), 0); string(got) != `{"k":null}` || err != nil {
		t.Errorf("%.40s, %v", got, err)
	}
}
