package middleware_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/null"
	"github.com/mqbridge/mqb/connectors/static"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/middleware"
	"github.com/mqbridge/mqb/route"
)

// transformed runs one transform over the payloads; bad are the indexes that it
// refused, with the errors' texts in said.
func transformed(t *testing.T, m connectors.Middleware, b *message.Batch) (bad []int, said string) {
	t.Helper()
	err := m.Process(t.Context(), b)
	var rows *connectors.RowsError
	if err != nil && !errors.As(err, &rows) {
		t.Fatal(err)
	}
	if rows != nil {
		for _, r := range rows.Rows {
			bad = append(bad, r.Index)
			said += r.Err.Error() + "\n"
		}
	}
	return bad, said
}

// The typed job that the peers publish figures for: what it makes is fixed here
// byte for byte.
func TestTransformTypesTheRowsOfTheBenchmark(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"content": `{properties: {id: {type: integer}, attributes: {type: string, contentMediaType: application/json}}, type: object}`,
		"type":    `{properties: {id: {type: integer}, attributes: {type: object}}, type: object}`,
	} {
		m := build(t, "transform: {schema: "+schema+"}", "stop")
		b := batch(
			`{"id":"1","first_name":"Ines","country":"JP","amount":"2232.88","created_at":"2020-01-01T00:01:22Z","active":"false","attributes":"{\"tier\":\"bronze\",\"score\":74.067,\"tags\":[\"new\"]}"}`,
			`{"id":"2","first_name":"Chloë","country":"FR","amount":"1.00","created_at":"2020-01-01T00:01:23Z","active":"true","attributes":"{\"tier\":\"gold\",\"score\":0.100,\"tags\":[\"vip\",\"bulk\"]}"}`)
		if bad, said := transformed(t, m, b); bad != nil {
			t.Fatal(name, said)
		}
		want := `{"id":1,"first_name":"Ines","country":"JP","amount":"2232.88","created_at":"2020-01-01T00:01:22Z","active":"false","attributes":{"tier":"bronze","score":74.067,"tags":["new"]}}
{"id":2,"first_name":"Chloë","country":"FR","amount":"1.00","created_at":"2020-01-01T00:01:23Z","active":"true","attributes":{"tier":"gold","score":0.100,"tags":["vip","bulk"]}}
`
		if got := string(b.Lines(0, 2)); got != want {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}

// Regression (bug 18 of the first list): a record that passes changes no digit of
// a number, as it would on its way through a float.
func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	numbers := []string{"1234567890123456789", "12345678901234567890123", "1e400", "-0", "-0.0", "1.10", "0.1000000000000000055511151231257827", "5e-324", "1E+2", "9007199254740993"}
	fields := make([]string, len(numbers))
	for i, n := range numbers {
		fields[i] = fmt.Sprintf(`"f%d":%s`, i, n)
	}
	payload := "{" + strings.Join(fields, ",") + "}"
	properties, mapping, expression := "", "", ""
	for i := range numbers {
		properties += fmt.Sprintf("f%d: {type: number}, ", i)
		mapping += fmt.Sprintf("f%d: \"${payload:f%d}\", ", i, i)
		expression += fmt.Sprintf("f%d: f%d, ", i, i)
	}
	for name, text := range map[string]string{
		"one pass":   "transform: {schema: {type: object, properties: {" + properties + "}}}",
		"any schema": "transform: {schema: {type: object, minProperties: 1, properties: {" + properties + "}}}",
		"mapping":    "transform: {mapping: {" + mapping + "}}",
		"expression": "transform: {expression: '{" + strings.TrimSuffix(expression, ", ") + "}'}",
		"all":        "transform: {mapping: {" + mapping + "}, expression: '{" + strings.TrimSuffix(expression, ", ") + "}', schema: {type: object, properties: {" + properties + "}}}",
	} {
		m := build(t, text, "stop")
		b := batch(payload)
		if bad, said := transformed(t, m, b); bad != nil || string(b.Payload(0)) != payload {
			t.Errorf("%s: %s\ngot  %s\nwant %s", name, said, b.Payload(0), payload)
		}
		// As text, coerced.
		if name == "one pass" || name == "any schema" {
			quoted := make([]string, len(numbers))
			for i, n := range numbers {
				quoted[i] = fmt.Sprintf(`"f%d":%q`, i, n)
			}
			b := batch("{" + strings.Join(quoted, ",") + "}")
			if bad, said := transformed(t, m, b); bad != nil || string(b.Payload(0)) != payload {
				t.Errorf("%s, of text: %s\ngot  %s\nwant %s", name, said, b.Payload(0), payload)
			}
		}
	}
}

// What would lose something is refused instead, and the error names the field and
// the kind of value, not the value.
func TestTransformRefusesWhatLosesSomethingAndShowsNoValue(t *testing.T) {
	t.Parallel()
	const schema = `{type: object, properties: {i: {type: integer}, n: {type: number}, b: {type: boolean}, s: {type: string}, o: {type: object}, j: {type: string, contentMediaType: application/json}, x: {type: [integer, "null"]}, r: {}}, required: [r], additionalProperties: false`
	for _, more := range []string{"}", ", maxProperties: 20}"} { // in one pass, and in memory
		m := build(t, "transform: {schema: "+schema+more+"}", "drop")
		for payload, want := range map[string]string{
			`{"r":1,"i":"secret"}`:  "field i",
			`{"r":1,"i":"1.5"}`:     "field i",
			`{"r":1,"i":"007"}`:     "field i",
			`{"r":1,"i":"+5"}`:      "field i",
			`{"r":1,"i":" 5"}`:      "field i",
			`{"r":1,"i":""}`:        "field i",
			`{"r":1,"i":7.25}`:      "field i",
			`{"r":1,"i":null}`:      "field i",
			`{"r":1,"i":true}`:      "field i",
			`{"r":1,"n":"1,5"}`:     "field n",
			`{"r":1,"n":"NaN"}`:     "field n",
			`{"r":1,"n":"0x10"}`:    "field n",
			`{"r":1,"b":"TRUE"}`:    "field b",
			`{"r":1,"b":"1"}`:       "field b",
			`{"r":1,"b":1}`:         "field b",
			`{"r":1,"s":null}`:      "field s",
			`{"r":1,"s":{}}`:        "field s",
			`{"r":1,"o":"[1]"}`:     "field o",
			`{"r":1,"o":"{secret"}`: "field o",
			`{"r":1,"j":"secret"}`:  "field j",
			`{"r":1,"j":{}}`:        "field j",
			`{"r":1,"x":""}`:        "field x",
			`{"i":1}`:               "field r is missing",
			`{"r":1,"more":1}`:      "field more is not part",
			`{"r":1,"i":1,"i":2}`:   "field i stands twice",
			`{"r":1,"i":1`:          "is no JSON",
			`{"r":1,"i":1,}`:        "is no JSON",
			`{"r":1 "i":1}`:         "is no JSON",
			`{"r":1} secret`:        "is no JSON",
			`{"r":tru}`:             "is no JSON",
			"{\"r\":\"\xff\"}":      "is no JSON",
			`secret`:                "is no JSON",
			``:                      "is no JSON",
			`["secret"]`:            "payload",
			`"secret"`:              "payload",
		} {
			b := batch(`{"r":0}`, payload, `{"r":2}`)
			bad, said := transformed(t, m, b)
			if fmt.Sprint(bad) != "[1]" || !strings.Contains(said, want) || strings.Contains(said, "secret") {
				t.Errorf("%s: bad %v, %s, want %q", payload, bad, said, want)
			}
			// Regression (bug 4): the neighbours of a bad message are not lost with it,
			// and the bad one is shown as it came.
			if got := payloads(b); got != `{"r":0} `+payload+` {"r":2}` {
				t.Errorf("%s: left %s", payload, got)
			}
		}
	}
}

// Regression (bug 4): healthy messages were lost behind one bad one.
func TestOneBadMessageDoesNotLoseItsHealthyNeighbours(t *testing.T) {
	t.Parallel()
	texts := []string{`{"n":"1"}`, `bad`, `{"n":"2"}`, `{"n":"x"}`, `{"n":"3"}`}
	for _, c := range []struct{ onError, own, bad, left string }{
		{"drop", "reject", "[1 3]", `{"n":1} bad {"n":2} {"n":"x"} {"n":3}`},
		// What stands behind the first bad record is read again.
		{"stop", "reject", "[1]", `{"n":1} bad {"n":"2"} {"n":"x"} {"n":"3"}`},
		{"stop", "pass_through", "[]", `{"n":1} bad {"n":2} {"n":"x"} {"n":3}`},
	} {
		m := build(t, "transform: {on_error: "+c.own+", schema: {type: object, properties: {n: {type: integer}}}}", c.onError)
		b := batch(texts...)
		b.PutMeta(4, "k", []byte("v"))
		bad, _ := transformed(t, m, b)
		if fmt.Sprint(bad) != c.bad || payloads(b) != c.left {
			t.Errorf("%s, %s: bad %v, left %s", c.onError, c.own, bad, payloads(b))
		}
		if v, _ := b.Meta(4, "k"); string(v) != "v" {
			t.Errorf("metadata %q", v)
		}
		if b.Lines(0, 5) == nil {
			t.Error("the batch is not framed")
		}
	}
}

func TestTransformSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ keys, in, want string }{
		{`schema: {type: object, properties: {a: {type: integer, default: 5}, b: {type: string, default: "x<"}, c: {type: integer}}}`, `{}`, `{"a":5,"b":"x\u003c"}`},
		{`schema: {type: object, properties: {a: {type: integer, default: 5}}, required: [a]}`, `{"z":1}`, `{"z":1,"a":5}`},
		{`schema: {type: object, properties: {a: {type: integer, default: 5}}}, apply_defaults: false`, `{"z":1}`, `{"z":1}`},
		{`schema: {type: object, properties: {a: {type: integer, default: "5"}, b: {type: string, default: 7}}}`, `{}`, `{"a":5,"b":"7"}`},
		{`schema: {type: object, properties: {a: {type: string}, b: {type: string}}}`, `{"a":1.50,"b":true}`, `{"a":"1.50","b":"true"}`},
		{`schema: {type: object, properties: {a: {type: [integer, "null"]}, b: {type: [string, "null"]}, c: {type: string}}}, coerce_empty_as_null: true`, `{"a":"","b":"","c":""}`, `{"a":null,"b":null,"c":""}`},
		{`schema: {type: object, properties: {a: {type: [integer, boolean, array]}}}`, `{"a":"[1, 2]"}`, `{"a":[1, 2]}`},
		{`schema: {type: object, properties: {a: {type: integer}}}`, "{\"a\":\"\\u0031\\u0032\"}", `{"a":12}`},
		{`schema: {type: object, properties: {a: {type: integer}}}`, ` { "\u0061" : "1" , "b" : [ 1 ] } `, `{ "\u0061" : 1 , "b" : [ 1 ] }`},
		{`schema: {type: object, properties: {a: {type: integer}}}, coerce: false`, `{"a":1e2}`, `{"a":1e2}`},
		{`schema: {type: object, properties: {a: {type: integer}}}`, "{\n  \"a\": \"1\",\r\n\t\"b\": \"\\n\"\n}\n", `{  "a": 1,	"b": "\n"}`},
		{`schema: {$schema: "http://json-schema.org/draft-07/schema#", type: object, properties: {a: {contentMediaType: application/json}}}`, `{"a":"[]"}`, `{"a":[]}`},
		{`schema: {$schema: "http://json-schema.org/draft-06/schema#", type: object, properties: {a: {contentMediaType: application/json}}}`, `{"a":"[]"}`, `{"a":"[]"}`},
		{`mapping: {a: "${payload:a}"}`, "{\"a\": [\n1,\n2]}", `{"a":[1,2]}`},
		{`schema: {type: object, properties: {a: {contentMediaType: application/json}}}, coerce: false`, `{"a":"[]"}`, `{"a":"[]"}`},
		// What needs the record in memory.
		{`schema: {type: object, properties: {l: {type: array, items: {type: integer}}, o: {$ref: "#/$defs/o"}}, $defs: {o: {type: object, properties: {x: {type: number, default: 1}}}}}`,
			`{"l":["1",2],"o":{"y":"z"},"p":null}`, `{"l":[1,2],"o":{"y":"z","x":1},"p":null}`},
		{`schema: {type: object, properties: {o: {type: object, properties: {n: {type: integer, minimum: 3}}}}}`, `{"o":"{\"n\":\"5\"}"}`, `{"o":{"n":5}}`},
		{`schema: {allOf: [{properties: {a: {type: integer}}}, {patternProperties: {"^b": {type: boolean}}, additionalProperties: {type: string}}]}`, `{"b1":"true","a":1}`, `{"b1":true,"a":"1"}`},
		{`schema: {type: array, prefixItems: [{type: integer}], items: {type: boolean}}`, `["1","true"]`, `[1,true]`},
		{`schema: {type: object, properties: {a: {type: integer, maximum: 10}}}`, `{"a":"7"}`, `{"a":7}`},
	} {
		b := batch(c.in)
		bad, said := transformed(t, build(t, "transform: {"+c.keys+"}", "stop"), b)
		if strings.Contains(c.keys, "allOf") {
			// a cannot be both; the second schema only ever asks for text.
			if bad == nil {
				t.Errorf("%s passed as %s", c.in, b.Payload(0))
			}
			continue
		}
		if bad != nil || string(b.Payload(0)) != c.want {
			t.Errorf("%s of %s: %s\ngot  %s\nwant %s", c.keys, c.in, said, b.Payload(0), c.want)
		}
	}
}

func TestTransformMapping(t *testing.T) {
	t.Parallel()
	in := `{"id":17,"name":"Ada \"A\"","big":1234567890123456789,"z":null,"o":{"x":[1,{"y":true}]},"a.b":1,"c[0]":2,"d\\e":3}`
	for _, c := range []struct{ mapping, want string }{
		{`{id: "${payload:id}", big: "${payload:big}", name: "${payload:name}"}`, `{"id":17,"big":1234567890123456789,"name":"Ada \"A\""}`},
		{`{id: "$.id", deep: "$.o.x.1.y", none: "$.none", price: "$5"}`, `{"id":17,"deep":true,"price":"$5"}`},
		{`{z: "${payload:z}", none: "${payload:none}", half: "x ${payload:none}", deep: "${payload:o.x.1.y}", o: "${payload:o}"}`, `{"z":null,"deep":true,"o":{"x":[1,{"y":true}]}}`},
		{`{text: "${payload:id}-${payload:name}", kind: "${metadata:kind}", raw: "$${payload:id}"}`, `{"text":"17-Ada \"A\"","kind":"k","raw":"${payload:id}"}`},
		{`{c: 1, f: 1.5, t: true, n: null, s: "x", nested: {list: ["${payload:id}", "${payload:none}", {a: "${payload:none}"}, []], empty: {}}}`, `{"c":1,"f":1.5,"t":true,"n":null,"s":"x","nested":{"list":[17,null,{},[]],"empty":{}}}`},
		{`{dot: "${payload:a\\.b}", bracket: "${payload:c[0]}", back: "${payload:d\\\\e}"}`, `{"dot":1,"bracket":2,"back":3}`},
	} {
		b := batch(in)
		b.PutMeta(0, "kind", []byte("k"))
		if bad, said := transformed(t, build(t, "transform: {mapping: "+c.mapping+"}", "stop"), b); bad != nil || string(b.Payload(0)) != c.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", c.mapping, said, b.Payload(0), c.want)
		}
	}
	for _, in := range []string{`[1]`, `{"id":tru}`, `x`} {
		if bad, _ := transformed(t, build(t, `transform: {mapping: {id: "${payload:id}"}}`, "stop"), batch(in)); bad == nil {
			t.Errorf("%s was taken for an object", in)
		}
	}
	b := batch("no JSON")
	b.PutMeta(0, "kind", []byte("k"))
	if bad, said := transformed(t, build(t, `transform: {mapping: {kind: "${metadata:kind}"}}`, "stop"), b); bad != nil || payloads(b) != `{"kind":"k"}` {
		t.Errorf("metadata alone: %s %s", said, payloads(b))
	}
}

// Hazard: a few bytes that cost gigabytes, or a panic, where they are compared.
func TestANumberOfHugeExponentIsRefusedWhereItWouldBeCompared(t *testing.T) {
	t.Parallel()
	m := build(t, "transform: {schema: {type: object, properties: {a: {type: number, minimum: 0}}}}", "drop")
	b := batch(`{"a":1e10000}`, `{"a":1e2000000}`, `{"a":"-1E-999999999999"}`)
	if bad, said := transformed(t, m, b); fmt.Sprint(bad) != "[1 2]" || !strings.Contains(said, "field a has an exponent too large") {
		t.Errorf("bad %v: %s", bad, said)
	}
}

// Regression: the validator took minutes for an integer of some millions of digits,
// and panicked where they were a fraction, so that the route could not even drop it.
func TestANumberOfAMillionDigitsIsRefusedWhereItWouldBeCompared(t *testing.T) {
	t.Parallel()
	m := build(t, "transform: {schema: {type: object, properties: {a: {type: number, multipleOf: 0.1}}}}", "drop")
	digits := strings.Repeat("1", 2_000_000)
	b := batch(`{"a":`+digits+`}`, `{"a":0.`+digits+`}`, `{"a":[0.`+digits+`]}`, `{"a":1.5}`, `{"b":`+strings.Repeat("1", 1000)+`}`)
	if bad, said := transformed(t, m, b); fmt.Sprint(bad) != "[0 1 2]" || strings.Count(said, "field a has too many digits to be compared") != 2 {
		t.Errorf("bad %v: %s", bad, said)
	}
}

// Regression: a number in the configuration went through a float, so that a constant,
// a default or a bound of a schema was another one than was written, and one with a
// leading zero was read as octal.
func TestNumbersOfTheConfigurationKeepTheirDigits(t *testing.T) {
	t.Parallel()
	const big, long, huge = "18446744073709551615", "0.1000000000000000055511151231257827", "1e400"
	m := build(t, "transform: {mapping: {a: "+big+", b: "+long+", c: ["+huge+", 1.10, -0, 7], d: {e: 12345678901234567890.5}, t: \"01234\", f: true, n: null}}", "drop")
	b := batch(`{}`)
	want := `{"a":` + big + `,"b":` + long + `,"c":[` + huge + `,1.10,-0,7],"d":{"e":12345678901234567890.5},"t":"01234","f":true,"n":null}`
	if bad, said := transformed(t, m, b); bad != nil || string(b.Payload(0)) != want {
		t.Errorf("%s %v %s", b.Payload(0), bad, said)
	}
	m = build(t, "transform: {schema: {type: object, default: null, properties: {a: {default: "+big+"}, c: {const: "+big+"}, m: {maximum: "+big+"}}}}", "drop")
	b = batch(`{}`, `{"a":1,"c":`+big+`,"m":`+big+`}`, `{"a":1,"c":18446744073709551614}`, `{"a":1,"m":18446744073709551616}`)
	if bad, said := transformed(t, m, b); fmt.Sprint(bad) != "[2 3]" || string(b.Payload(0)) != `{"a":`+big+`}` {
		t.Errorf("%s %v %s", b.Payload(0), bad, said)
	}
	for text, want := range map[string]string{"0x1F": "31", "0xFFFFFFFFFFFFFFFF": big, "+5": "5", "+5.10": "5.10", ".5": "0.5", "-.5": "-0.5", "5.": "5", "5.e3": "5e3", "+.5e-3": "0.5e-3", "+-5": `"+-5"`} {
		m := build(t, "transform: {mapping: {a: "+text+"}}", "drop")
		b := batch(`{}`)
		if bad, said := transformed(t, m, b); bad != nil || string(b.Payload(0)) != `{"a":`+want+`}` {
			t.Errorf("%s: %s %v %s", text, b.Payload(0), bad, said)
		}
	}
	for _, text := range []string{"01234", "1_000", "-0x1F", "0b11", "0o17", "nan", "Infinity", "[01]", "{x: 007}"} {
		for _, config := range []string{"mapping: {a: " + text + "}", "schema: {type: object, default: " + text + "}"} {
			if said := refused(t, "input", "transform: {"+config+"}"); !strings.Contains(said, "put it in quotes") {
				t.Errorf("%s: %s", config, said)
			}
		}
	}
}

// mapping, then expression, then schema.
func TestTransformOrder(t *testing.T) {
	t.Parallel()
	m := build(t, `transform: {schema: {type: object, properties: {c: {type: integer}}, required: [c]}, expression: "{c: string(b)}", mapping: {b: "${payload:a}"}}`, "drop")
	b := batch(`{"a":5}`, `{"a":"x"}`, `{"b":1}`)
	bad, said := transformed(t, m, b)
	if fmt.Sprint(bad) != "[1 2]" || string(b.Payload(0)) != `{"c":5}` {
		t.Errorf("%s, bad %v: %s", payloads(b), bad, said)
	}
}

func TestTransformSchemaFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "schema")
	for _, text := range []string{`{"type":"object","properties":{"a":{"type":"integer"}}}`, "type: object\nproperties:\n  a: {type: integer, maximum: 18446744073709551616}\n", "\ufeff{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		b := batch(`{"a":"1"}`)
		if bad, said := transformed(t, build(t, "transform: {schema_file: "+path+"}", "stop"), b); bad != nil || payloads(b) != `{"a":1}` {
			t.Errorf("%s: %s %s", text, said, payloads(b))
		}
	}
}

func TestTransformRefusesAtLoad(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		// Regression (bug 52): what does nothing is not accepted at start.
		`transform:`:                                          "has nothing to do",
		`transform: {}`:                                       "has nothing to do",
		`transform: {coerce: true}`:                           "has nothing to do",
		`transform: {mapping: {}}`:                            "has nothing to do",
		`transform: {maping: {a: 1}}`:                         `did you mean "mapping"?`,
		`transform: {mapping: x}`:                             "must be a mapping",
		`transform: {mapping: {a: {b: "${payload:x..y}"}}}`:   "mapping.a.b: template: ${payload:x..y}",
		`transform: {mapping: {a: "${message:id}"}}`:          "mqb.id",
		`transform: {expression: "{a: }"}`:                    "expression: character",
		`transform: {schema: {type: objekt}}`:                 "/type",
		`transform: {schema: {$ref: "http://x/y"}}`:           "outside of the schema",
		`transform: {schema: {$ref: "file:///etc/passwd"}}`:   "outside of the schema",
		`transform: {schema: {type: object}, schema_file: x}`: "has one schema",
		`transform: {schema: {type: object}, on_error: drop}`: "not one of reject, pass_through",
	} {
		if got := refused(t, "input", text); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", text, got, want)
		}
	}
}

// Hazard: workers of one route that write into each other's buffers. The race
// detector watches.
func TestWorkersOfOneMiddlewareShareNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`transform: {mapping: {id: "${payload:id}", text: "${payload:name}-${payload:id}"}, expression: "{id: id, text: upper(text)}", schema: {type: object, properties: {id: {type: integer}}}}`,
		`transform: {schema: {type: object, properties: {id: {type: integer, minimum: 0}}}}`,
		`filter: "id != null"`,
		`id: "${payload:id}"`,
		`compression: {algorithm: zstd}`,
		`compression: {algorithm: gzip}`,
		`compression: {algorithm: lz4}`,
	} {
		side := "input"
		if strings.HasPrefix(text, "compression") {
			side = "output"
		}
		worker := factory(t, side, text, "stop")
		rows := func() *message.Batch {
			b := message.NewBatch()
			for i := range 200 {
				b.Append(fmt.Appendf(nil, `{"id":"%d","name":"Ada \"%d\""}`, i, i), int64(i), int64(i+1))
			}
			return b
		}
		want := rows()
		if err := worker().Process(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 4 {
			m := worker()
			group.Go(func() {
				for range 5 {
					b := rows()
					if err := m.Process(t.Context(), b); err != nil || payloads(b) != payloads(want) {
						t.Errorf("%s: %v, other results than alone", text, err)
						return
					}
				}
			})
		}
		group.Wait()
	}
}

// Hazard: what a node reads back from the coordinator is another transform than
// the one that was written.
func TestTransformSurvivesNormalization(t *testing.T) {
	t.Parallel()
	registry := connectors.NewRegistry([]connectors.Type{static.Type(), null.Type()}, middleware.Types())
	text := `input:
  static: x
  middlewares:
    - transform:
        mapping: {z: "5", a: 5, f: 1.5, t: "true", n: null, l: ["${payload:x}", {b: "${payload:password}", a: ""}], e: {}, "k.e y": "${metadata:token}"}
        schema: {type: object, properties: {z: {type: [string, "null"], default: "7"}, password: {type: string, minLength: 3, maxLength: 1e1}}, required: [z]}
`
	spec, err := route.DecodeRoute("r", text, registry)
	if err != nil {
		t.Fatal(err)
	}
	again, err := route.DecodeRoute("r", spec.Normalized(), registry)
	if err != nil {
		t.Fatalf("%v\n%s", err, spec.Normalized())
	}
	if spec.Normalized() != again.Normalized() {
		t.Errorf("first\n%s\nthen\n%s", spec.Normalized(), again.Normalized())
	}
	for _, s := range []*route.Spec{spec, again} {
		factories, err := registry.Middlewares(s)
		if err != nil {
			t.Fatal(err)
		}
		b := batch(`{"x":1.10,"password":"p"}`)
		bad, said := transformed(t, factories[0](), b)
		if want := `{"z":"5","a":5,"f":1.5,"t":"true","n":null,"l":[1.10,{"b":"p","a":""}],"e":{}}`; bad != nil || payloads(b) != want {
			t.Errorf("%s\ngot  %s\nwant %s", said, payloads(b), want)
		}
	}
}
