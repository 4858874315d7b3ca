package csvjson

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func scanner(t testing.TB, names ...string) *Scanner {
	t.Helper()
	s, err := New(',', '"')
	if err != nil {
		t.Fatal(err)
	}
	s.SetColumns(names)
	return s
}

// convert runs the scanner over all of src, handing it at most block bytes at
// first and more only when it asks.
func convert(t testing.TB, s *Scanner, src []byte, block int) (out []byte, last Result) {
	t.Helper()
	out = make([]byte, 0, 16)
	for at := 0; at < len(src); {
		end := min(len(src), at+block)
		for {
			out, last = s.Next(out, src[at:end], end == len(src))
			if last.Status != More {
				break
			}
			if end == len(src) {
				t.Fatalf("More at the end of %q", src[at:])
			}
			end = min(len(src), end+block)
		}
		if last.Status > Count {
			last.N += at
			return out, last
		}
		if last.N <= 0 {
			t.Fatalf("no progress at %d of %q: %+v", at, src, last)
		}
		at += last.N
	}
	return out, last
}

func TestRecords(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "1,2\n3,4\n", "{\"a\":\"1\",\"b\":\"2\"}\n{\"a\":\"3\",\"b\":\"4\"}\n"},
		{"crlf", "1,2\r\n3,4\r\n", "{\"a\":\"1\",\"b\":\"2\"}\n{\"a\":\"3\",\"b\":\"4\"}\n"},
		{"no line end at the end", "1,2", "{\"a\":\"1\",\"b\":\"2\"}\n"},
		{"blank lines", "\n1,2\r\n\r\n\n3,4", "{\"a\":\"1\",\"b\":\"2\"}\n{\"a\":\"3\",\"b\":\"4\"}\n"},
		{"empty fields", ",\n\"\",\n", "{\"a\":\"\",\"b\":\"\"}\n{\"a\":\"\",\"b\":\"\"}\n"},
		{"quoted newline and separator", "\"x,\r\ny\n\",2\n", "{\"a\":\"x,\\r\\ny\\n\",\"b\":\"2\"}\n"},
		{"doubled quotes", "\"{\"\"k\"\":1}\",\"\"\"\"\n", "{\"a\":\"{\\\"k\\\":1}\",\"b\":\"\\\"\"}\n"},
		{"escapes", "a\\b,c\td\x01\n", "{\"a\":\"a\\\\b\",\"b\":\"c\\td\\u0001\"}\n"},
		{"lone carriage return", "a\rb,c\n", "{\"a\":\"a\\rb\",\"b\":\"c\"}\n"},
		{"utf-8", "ä€𝄞,日本語のテキスト\n", "{\"a\":\"ä€𝄞\",\"b\":\"日本語のテキスト\"}\n"},
		{"not utf-8", "a\xffb,\xe2\x82\n", "{\"a\":\"a\uFFFDb\",\"b\":\"\uFFFD\uFFFD\"}\n"},
		{"too few", "1\n", "{\"a\":\"1\",\"b\":\"\"}\n"},
		{"too many", "1,2,\"3\"\"\",4\n", "{\"a\":\"1\",\"b\":\"2\"}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for block := 1; block <= len(c.in); block++ {
				got, _ := convert(t, scanner(t, "a", "b"), []byte(c.in), block)
				if string(got) != c.want {
					t.Fatalf("block %d:\n got %q\nwant %q", block, got, c.want)
				}
			}
		})
	}
}

func TestBadQuotesAreNamedByTheirPlace(t *testing.T) {
	for in, want := range map[string]Result{
		"1,a\"b\n":       {Status: BareQuote, N: 3},
		"\"a\"x,2\n":     {Status: AfterQuote, N: 3},
		"\"a\"\rx,2\n":   {Status: AfterQuote, N: 3},
		"1,\"never ends": {Status: OpenQuote, N: 2},
		"1,2\n\"a\n":     {Status: OpenQuote, N: 4},
	} {
		if _, got := convert(t, scanner(t, "a", "b"), []byte(in), len(in)); got.Status != want.Status || got.N != want.N {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
	}
}

func TestOtherSeparatorAndQuote(t *testing.T) {
	s, err := New('\t', '\'')
	if err != nil {
		t.Fatal(err)
	}
	s.SetColumns([]string{"a", "b"})
	got, _ := convert(t, s, []byte("'x\t''\"'\ty,\"z\n"), 64)
	if want := "{\"a\":\"x\\t'\\\"\",\"b\":\"y,\\\"z\"}\n"; string(got) != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	for _, bad := range []string{",,", "\n\"", ",\r", "\xff\""} {
		if _, err := New(bad[0], bad[1]); err == nil {
			t.Errorf("New(%q) was accepted", bad)
		}
	}
}

func TestDuplicateColumnNamesAreNumbered(t *testing.T) {
	got, _ := convert(t, scanner(t, "a", "a", "a_2", "a", ""), []byte("1,2,3,4,5\n"), 64)
	if want := `{"a":"1","a_3":"2","a_2":"3","a_4":"4","":"5"}` + "\n"; string(got) != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	got, _ = convert(t, scanner(t, "x", "x"), []byte("1,2\n"), 64)
	if want := `{"x":"1","x_2":"2"}` + "\n"; string(got) != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestHeaderFields(t *testing.T) {
	s := scanner(t)
	for in, want := range map[string][]string{
		"id,\"first\"\"n\r\name\",x\r\nrest": {"id", "first\"n\r\name", "x"},
		"a\n":                                {"a"},
		"a,\n":                               {"a", ""},
		"a,\"b\"":                            {"a", "b"},
	} {
		got, r := s.Fields([]byte(in), true)
		if r.Status != Record || !slices.Equal(got, want) {
			t.Errorf("%q: got %q %+v, want %q", in, got, r, want)
		}
		for n := range len(in) {
			if _, r := s.Fields([]byte(in)[:n], false); r.Status != More && r.N > n {
				t.Errorf("%q cut at %d: %+v", in, n, r)
			}
		}
	}
}

// FuzzAgreesWithEncodingCSV compares with the standard library wherever it
// accepts the input; where it does not, the scanner must refuse it too.
func FuzzAgreesWithEncodingCSV(f *testing.F) {
	for _, s := range []string{
		"a,b\n1,2\n", "a,b\r\n\"1\r\n\",2\r\n", "a\n\n\n1", "a,b\n\"x\"\"y\",\\\n", "\"a\n", "a\"b,c\n", "\"a\"b\n", ",,,\n,,,\n",
		"a,b\n\xff\xfe,ä\n", "a,b\n1\n1,2,3\n", "a\n\r\r\n", "\"\"\"\"", "a,b\n12345678,12345678\n\"12345678\",\"123456\"\"78\"",
	} {
		for _, block := range []uint8{1, 7, 64} {
			f.Add([]byte(s), block)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, block uint8) {
		if len(in) == 0 {
			return
		}
		r := csv.NewReader(bytes.NewReader(in))
		r.FieldsPerRecord = -1
		var want [][]string
		var refErr error
		for {
			rec, err := r.Read()
			if err == io.EOF {
				break
			}
			if refErr = err; err != nil {
				break
			}
			want = append(want, rec)
		}
		names := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
		s := scanner(t, names...)
		out, last := convert(t, s, in, int(block)+1)
		bad := last.Status > Count
		if refErr != nil {
			if !errors.Is(refErr, csv.ErrQuote) && !errors.Is(refErr, csv.ErrBareQuote) {
				t.Fatalf("unexpected reference error %v", refErr)
			}
			if !bad {
				t.Fatalf("%q: accepted, encoding/csv says %v", in, refErr)
			}
		} else if bad {
			t.Fatalf("%q: %+v, encoding/csv accepts it", in, last)
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(out) == 0 {
			lines = nil
		}
		if len(lines) != len(want) {
			t.Fatalf("%q: %d records, encoding/csv has %d", in, len(lines), len(want))
		}
		for i, line := range lines {
			var got map[string]string
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%q: record %d is no JSON: %v: %s", in, i, err, line)
			}
			for k, name := range names {
				ref := ""
				if k < len(want[i]) {
					ref = string([]rune(want[i][k]))
				}
				// encoding/csv turns CRLF inside quotes into LF.
				if strings.ReplaceAll(got[name], "\r\n", "\n") != ref {
					t.Fatalf("%q: record %d field %d is %q, encoding/csv has %q", in, i, k, got[name], ref)
				}
			}
		}
	})
}

func fixture(b *testing.B) (header []string, rows []byte) {
	b.Helper()
	var buf bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&buf, "%d,Ines,JP,%d.88,2020-01-01T00:01:22Z,false,\"{\"\"tier\"\":\"\"bronze\"\",\"\"score\"\":74.067,\"\"tags\"\":[\"\"new\"\",\"\"vip\"\"]}\"\r\n", i+1, 1000+i)
	}
	if path := os.Getenv("MQB_BENCH_CSV"); path != "" {
		all, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		buf.Reset()
		at := bytes.IndexByte(all, '\n') + 1
		buf.Write(all[at : at+bytes.LastIndexByte(all[at:at+256<<10], '\n')+1])
	}
	return strings.Split("id,first_name,country,amount,created_at,active,attributes", ","), buf.Bytes()
}

func BenchmarkCSVToJSON(b *testing.B) {
	names, rows := fixture(b)
	s := scanner(b, names...)
	n := bytes.Count(rows, []byte("\n"))
	dst := make([]byte, 0, 3*len(rows))
	b.SetBytes(int64(len(rows)))
	b.ReportAllocs()
	for b.Loop() {
		dst = dst[:0]
		for at := 0; at < len(rows); {
			var r Result
			dst, r = s.Next(dst, rows[at:], true)
			if r.Status != Record {
				b.Fatalf("%+v", r)
			}
			at += r.N
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
}
