package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var samples = []string{
	`{"id":1,"name":"Ada","tags":["a","b"],"x":{"y":null,"z":true}}`, `[]`, `{}`, `""`, `0`, `-0.5e+10`, `01`, `1.`, `-`, `1e`,
	`{"a":1,}`, `[1,]`, `{"a"}`, `{a:1}`, `"\u12G4"`, `"\u12ab"`, `"\x"`, "\"\x01\"", "\"\xff\"", `true`, `tru`, `truex`, `nul`, ` 1 `, `1 2`, ``, ` `,
	`{"a":"a long string with a quote \" inside and more text behind it"}`, `{"ä":"ö€𝄞"}`, `[[[[[[[[]]]]]]]]`, `[[`, `]`, `{"a":[}`, `"abc`, `"12345678`, `"1234567"`,
}

func FuzzCheckAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		at, p := Check(b)
		want := json.Valid(b) && utf8.Valid(b)
		if (p == OK) != want {
			t.Fatalf("Check(%q) = %d %v, encoding/json says %v", b, at, p, want)
		}
		if at < 0 || at > len(b) {
			t.Fatalf("Check(%q) points at %d of %d", b, at, len(b))
		}
	})
}

func FuzzAppendStringReadsBack(f *testing.F) {
	for _, s := range append(samples, "plain", "tab\tand\nnewline\r", "\xc3(", "\xe2\x82", "\u2028<&>") {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := AppendString(nil, b)
		if !Valid(got) {
			t.Fatalf("AppendString(%q) = %q is no JSON", b, got)
		}
		var ours, theirs string
		if err := json.Unmarshal(got, &ours); err != nil {
			t.Fatal(err)
		}
		ref, err := json.Marshal(string(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(ref, &theirs); err != nil {
			t.Fatal(err)
		}
		if ours != theirs {
			t.Fatalf("AppendString(%q) reads back as %q, encoding/json's as %q", b, ours, theirs)
		}
	})
}

func TestDeepNestingIsAnErrorNotACrash(t *testing.T) {
	if _, p := Check([]byte(strings.Repeat("[", 16<<20))); p != TooDeep {
		t.Fatalf("got %v", p)
	}
	mixed := strings.Repeat(`[{"a":`, 200)
	if !Valid([]byte(mixed + "1" + strings.Repeat(`}]`, 200))) {
		t.Fatal("brackets are mixed up beyond 64 levels")
	}
	if Valid([]byte(mixed + "1" + strings.Repeat(`}]`, 199) + "]}")) {
		t.Fatal("brackets may be mixed up beyond 64 levels")
	}
	if !Valid([]byte(strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth))) {
		t.Fatal("the deepest allowed value is refused")
	}
}

func TestCheckPointsAtTheProblem(t *testing.T) {
	for s, want := range map[string]int{`{"a":x}`: 5, `{"a":1} 2`: 8, `{"a":"b` + "\x02" + `"}`: 7, `[1,,2]`: 3} {
		if at, p := Check([]byte(s)); at != want || p == OK {
			t.Errorf("Check(%s) = %d %v, want %d", s, at, p, want)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	line := []byte(`{"id":"1","first_name":"Ines","country":"JP","amount":"2232.88","created_at":"2020-01-01T00:01:22Z","active":"false","attributes":"{\"tier\":\"bronze\",\"score\":74.067,\"tags\":[\"new\"]}"}`)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if !Valid(line) {
			b.Fatal("not valid")
		}
	}
}
