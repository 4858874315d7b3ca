package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file/csvjson"
)

func csvEnc(t testing.TB, cfg CSVConfig) *csvEncoder {
	t.Helper()
	e, err := newCSVEncoder(&cfg, connectors.Claim{})
	must(t, err)
	return e
}

func TestCSVRecords(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		cfg  CSVConfig
		in   []string
		want string
	}{
		"fields of the first record, in its order": {CSVConfig{Header: true},
			[]string{`{"b":1,"a":"x"}`, `{"a":"y","b":2}`, `{"b":3}`, `{"a":"z"}`, `{}`}, "b,a\n1,x\n2,y\n3,\n,z\n,\n"},
		"columns": {CSVConfig{Header: true, Columns: []string{"a", "c", "b"}},
			[]string{`{"b":1,"a":"x"}`, `{"a":"y","c":2,"b":3,"d":4}`}, "a,c,b\nx,,1\ny,2,3\n"},
		"no header": {CSVConfig{Columns: []string{"a"}}, []string{`{"a":"x"}`, `{"a":""}`, `{"a":null}`}, "x\n\"\"\n\"\"\n"},
		"values": {CSVConfig{Header: true}, []string{
			` { "s" : "a,b" , "t":"q\"r", "u":"l\nm\r", "v":"\u00e4\ud83d\ude00 \\", "w":null, "x":true, "p":"\ud83d\ud83d\uDE00\u0022\u002c\ud83d", "y":-1.5e3, "z":"" } `},
			"s,t,u,v,w,x,p,y,z\n\"a,b\",\"q\"\"r\",\"l\nm\r\",ä😀 \\,,true,\"\ufffd😀\"\",\ufffd\",-1.5e3,\n"},
		"nested as JSON": {CSVConfig{Header: true}, []string{`{"a":{"b": [1, "x y"], "c":{}},"d":[ ]}`}, "a,d\n\"{\"\"b\"\":[1,\"\"x y\"\"],\"\"c\"\":{}}\",[]\n"},
		"nested flattened": {CSVConfig{Header: true, Nested: "flatten"}, []string{
			`{"a":{"b":1,"c":{"d":"x"},"e":{}},"f":[{"g":2}]}`, `{"a":{"c":{"d":"y"},"b":2},"f":null}`, `{"a":{},"f":3}`, `{"a":7,"f":4}`},
			"a.b,a.c.d,f\n1,x,\"[{\"\"g\"\":2}]\"\n2,y,\n,,3\n,,4\n"},
		"the last of two fields of one name": {CSVConfig{Header: true}, []string{`{"a":1,"b":2,"a":3}`, `{"a":1,"a":2,"b":3}`}, "a,b\n3,2\n2,3\n"},
		"names that need quotes":             {CSVConfig{Header: true}, []string{`{"a,b":1,"q\"":2}`, `{"q\u0022":3,"a,b":4}`}, "\"a,b\",\"q\"\"\"\n1,2\n4,3\n"},
		"other bytes":                        {CSVConfig{Header: true, Separator: "tab", Quote: "'"}, []string{`{"a":"x\ty","b":"it's","c":"a,\"b\""}`}, "a\tb\tc\n'x\ty'\t'it''s'\ta,\"b\"\n"},
		"a separator that stands in numbers": {CSVConfig{Header: true, Separator: "-"}, []string{`{"a":-1,"b":true}`}, "a-b\n\"-1\"-true\n"},
	} {
		e := csvEnc(t, x.cfg)
		var got []byte
		for _, p := range x.in {
			var err error
			if got, err = e.append(got, []byte(p)); err != nil {
				t.Errorf("%s: %s: %v", name, p, err)
			}
		}
		if string(got) != x.want {
			t.Errorf("%s:\n%q, want\n%q", name, got, x.want)
		}
	}
}

func TestCSVRefusesWhatHasNoFields(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{``, ` `, `1`, `"a"`, `[1]`, `{"a":1`, `{"a":1}x`, `{"a":1,}`, `{a:1}`, `{"a" 1}`, `{"a":}`, "{\"a\":\"\xff\"}", `{"a":"` + "\n" + `"}`, `{"a":01}`, `{}`, `{"a":{"b":1}`, `{"a":{"b":1]}`} {
		for _, nested := range []string{"", "flatten"} {
			e := csvEnc(t, CSVConfig{Header: true, Nested: nested})
			if got, err := e.append([]byte("before"), []byte(bad)); err == nil || string(got) != "before" {
				t.Errorf("first, %q: %q, %v", bad, got, err)
			}
			// What it left behind does not name the columns.
			got, err := e.append(nil, []byte(`{"x":1}`))
			if err != nil || string(got) != "x\n1\n" {
				t.Errorf("after %q: %q, %v", bad, got, err)
			}
			if bad == "{}" {
				continue
			}
			if got, err := e.append([]byte("before"), []byte(bad)); err == nil || string(got) != "before" {
				t.Errorf("later, %q: %q, %v", bad, got, err)
			}
		}
	}
	// With on_mismatch: fail the header of a refused record is taken back too.
	e := csvEnc(t, CSVConfig{Header: true, Columns: []string{"a"}, OnMismatch: "fail"})
	if got, err := e.append(nil, []byte(`{"a":1,"b":2}`)); err == nil || len(got) > 0 || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("%q %v", got, err)
	}
	if got, err := e.append(nil, []byte(`{"a":1}`)); err != nil || string(got) != "a\n1\n" {
		t.Errorf("%q %v", got, err)
	}
}

func TestAFieldWithoutAColumnIsSaidOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e, err := newCSVEncoder(&CSVConfig{Header: true}, connectors.Claim{Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	var out []byte
	for i := range 5 {
		out, err = e.append(out, fmt.Appendf(nil, `{"a":%d}`, i))
		must(t, err)
		out, err = e.append(out, []byte(`{"later":1,"a":2}`))
		must(t, err)
	}
	if n := strings.Count(log.String(), "later"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// randomText is what csv and JSON both have trouble with.
func randomText(r *rand.Rand) string {
	pieces := []string{"a", "bc", ",", `"`, "\n", "\r\n", "\r", "'", `\`, "ä", "€", "😀", " ", "\t", ";", "\u0000", "\u2028", "x,y", `""`, "{}", "1.5"}
	var s strings.Builder
	for range r.IntN(7) {
		s.WriteString(pieces[r.IntN(len(pieces))])
	}
	return s.String()
}

// Python's reader finds in a csv file of ours what was given to it.
func TestPythonReadsTheSameCSV(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	r := rand.New(rand.NewPCG(1, 2))
	for name, x := range map[string]struct {
		cfg  CSVConfig
		args string
	}{
		"comma":     {CSVConfig{Header: true}, "delimiter=','"},
		"semicolon": {CSVConfig{Header: true, Separator: ";", Quote: "'"}, `delimiter=';', quotechar="'"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := csvEnc(t, x.cfg)
			names := []string{"id", "text", "more, text", `a "quoted" name`, "last"}
			var out []byte
			var want []map[string]string
			for i := range rows {
				row := map[string]string{"id": fmt.Sprint(i)}
				obj := []byte(fmt.Sprintf(`{"id":%d`, i))
				order := []int{1, 2, 3, 4}
				if i > 0 {
					r.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
				}
				for _, c := range order {
					v := randomText(r)
					row[names[c]] = v
					if i > 0 && r.IntN(10) == 0 {
						row[names[c]] = ""
						continue
					}
					k, _ := json.Marshal(names[c])
					b, _ := json.Marshal(v)
					obj = append(append(append(append(obj, ','), k...), ':'), b...)
				}
				var err error
				out, err = e.append(out, append(obj, '}'))
				must(t, err)
				want = append(want, row)
			}
			path := filepath.Join(t.TempDir(), "out.csv")
			must(t, os.WriteFile(path, out, 0o644))
			cmd := exec.Command("python3", "-c", `
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1], newline='', encoding='utf-8'), strict=True, `+x.args+`))
print(json.dumps(rows))`, path)
			cmd.Stderr = os.Stderr
			b, err := cmd.Output()
			must(t, err)
			var got []map[string]string
			must(t, json.Unmarshal(b, &got))
			if len(got) != rows {
				t.Fatalf("%d rows, want %d", len(got), rows)
			}
			for i := range got {
				for _, n := range names {
					if got[i][n] != want[i][n] {
						t.Fatalf("row %d, %q: %q, want %q", i, n, got[i][n], want[i][n])
					}
				}
			}
		})
	}
}

func TestCSVRecordsAllocateNothing(t *testing.T) {
	for name, text := range map[string]string{
		"in order":      `{"id":1,"text":"a \"quoted\" one","nested":{"a":[1, 2]}}`,
		"another order": `{"nested":null,"text":"x,y","id":2,"extra":1}`,
	} {
		e, p := csvEnc(t, CSVConfig{Header: true, Columns: []string{"id", "text", "nested"}}), []byte(text)
		dst, err := e.append(make([]byte, 0, 1<<10), p)
		must(t, err)
		if n := testing.AllocsPerRun(100, func() { dst, err = e.append(dst[:0], p) }); n > 0 {
			t.Errorf("%s: %v allocations a record", name, n)
		}
	}
}

// FuzzCSVRecord: what is written is read back by the source's scanner as the
// fields of the object, and invalid JSON is refused.
func FuzzCSVRecord(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":"x\ny"}`, `{"b":[1,{"c":null}],"a":"\ud83d"}`, `{"a":{"b":{}}}`, `{"a":`, `{}`} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, p []byte, flatten bool) {
		cfg := CSVConfig{Header: true, Columns: []string{"a", "b", "a.b"}}
		if flatten {
			cfg.Nested = "flatten"
		}
		e := csvEnc(t, cfg)
		got, err := e.append(nil, p)
		var obj map[string]json.RawMessage
		valid := json.Unmarshal(p, &obj) == nil && obj != nil
		if err == nil && !valid {
			t.Fatalf("%q was taken: %q", p, got)
		}
		if err != nil {
			if len(got) > 0 {
				t.Fatalf("refused, and yet %q", got)
			}
			return
		}
		s := newScanner(t)
		rest := got
		for i := range 2 {
			fields, res := s.Fields(rest, true)
			if len(fields) != 3 || i == 0 && !slices.Equal(fields, cfg.Columns) {
				t.Fatalf("record %d of %q has fields %q", i, got, fields)
			}
			var a string
			if v := obj["a"]; i == 1 && len(v) > 0 && v[0] == '"' {
				must(t, json.Unmarshal(v, &a))
				if fields[0] != a {
					t.Fatalf("field a is %q, want %q", fields[0], a)
				}
			}
			rest = rest[res.N:]
		}
		if len(rest) > 0 {
			t.Fatalf("%q is more than two records", got)
		}
	})
}

func newScanner(t testing.TB) *csvjson.Scanner {
	t.Helper()
	s, err := csvjson.New(',', '"')
	must(t, err)
	return s
}
