package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/connectors/sourcetest"
	"github.com/mqbridge/mqb/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// format is how the source suite writes records of one format.
type format struct {
	cfg     Config
	head    string
	line    func(i int) string
	payload func(i int) string
	bad     string
	codec   codec // "" is none
}

func object(i int) string { return fmt.Sprintf(`{"n":"%d","text":"row, %d"}`, i, i) }

var formats = map[string]format{
	"json": {
		cfg:  Config{Format: "json"},
		line: func(i int) string { return object(i) + "\n" }, payload: object, bad: "{\"n\":\n",
	},
	"json crlf with blank lines": {
		cfg:  Config{Format: "json"},
		line: func(i int) string { return object(i) + "\r\n" + strings.Repeat("\r\n", i%3) }, payload: object, bad: "nul\r\n",
	},
	"text": {
		cfg:  Config{Format: "text"},
		line: func(i int) string { return fmt.Sprintf("line %d\r\n", i) }, payload: func(i int) string { return fmt.Sprintf("line %d", i) },
	},
	"raw": {
		cfg:  Config{Format: "raw", Delimiter: ";"},
		line: func(i int) string { return fmt.Sprintf("%d\n\xff\r;", i) }, payload: func(i int) string { return fmt.Sprintf("%d\n\xff\r", i) },
	},
	"csv": {
		cfg:  Config{Format: "csv", CSV: CSVConfig{Header: true, OnMismatch: "fail"}},
		head: "\xef\xbb\xbfn,text\r\n",
		line: func(i int) string { return fmt.Sprintf("%d,\"row, %d\"\r\n", i, i) }, payload: object, bad: "1,2,3\n",
	},
	"csv with quoted line ends": {
		cfg:  Config{Format: "csv", CSV: CSVConfig{Header: true, Separator: "auto"}},
		head: "n;text\n",
		line: func(i int) string { return fmt.Sprintf("%d;\"a\n\"\"%d\n\"\n\n", i, i) }, payload: func(i int) string { return fmt.Sprintf(`{"n":"%d","text":"a\n\"%d\n"}`, i, i) },
		bad: "a\"b;c\n",
	},
	"normal": {
		cfg:  Config{Format: "normal"},
		line: func(i int) string { return fmt.Sprintf("{\"message_id\":\"id-%d\",\"payload\":\"p%d\"}\n", i, i) }, payload: func(i int) string { return fmt.Sprintf("p%d", i) },
	},
}

// compressed are formats in each compression. Each Append adds a member.
func compressed() map[string]format {
	all := maps.Clone(formats)
	for c, names := range map[codec][]string{codecGzip: {"csv"}, codecZstd: {"json", "csv with quoted line ends"}, codecLZ4: {"normal"}} {
		for _, name := range names {
			f := formats[name]
			f.codec = c
			all[name+" "+string(c)] = f
		}
	}
	return all
}

func TestSourceConformance(t *testing.T) {
	for name, f := range compressed() {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, sourcetest.Harness{New: func(t *testing.T) *sourcetest.Subject { return subject(t, f) }})
			if f.bad == "" {
				return
			}
			// A bad record has a number of its own, so that the numbers of the
			// others do not depend on on_error; the suite's Dense knows no bad ones.
			sourcetest.Run(t, sourcetest.Harness{New: func(t *testing.T) *sourcetest.Subject {
				s := subject(t, f)
				s.Dense = false
				s.AppendBad = func(t *testing.T) { write(t, s.Open(t).(*source).cfg.Path, f.packed(t, f.bad)) }
				return s
			}})
		})
	}
}

func subject(t *testing.T, f format) *sourcetest.Subject {
	path := filepath.Join(t.TempDir(), "in.dat")
	write(t, path, f.packed(t, f.head))
	ends := []int64{fileSize(t, path)}
	cfg := f.cfg
	cfg.Path, cfg.Compression = path, string(f.codec)
	s := &sourcetest.Subject{
		Open: func(t *testing.T) connectors.Source {
			src, err := newSource(&cfg, &route.Spec{}, connectors.Env{Node: "n1"})
			if err != nil {
				t.Fatal(err)
			}
			return src
		},
		Append: func(t *testing.T, from, n int) {
			var b strings.Builder
			at := fileSize(t, path)
			for i := from; i < from+n; i++ {
				if f.codec != "" && n <= 100 {
					// A member for each record, so that losing the tail is exact.
					b.WriteString(f.packed(t, f.line(i)))
				} else {
					b.WriteString(f.line(i))
				}
				ends = append(ends, at+int64(b.Len()))
			}
			if f.codec != "" && n > 100 {
				write(t, path, f.packed(t, b.String()))
				return
			}
			write(t, path, b.String())
		},
		Payload: func(i int) []byte { return []byte(f.payload(i)) },
		Ends:    true, Resumes: true, Dense: true,
		LoseTail: func(t *testing.T, keep int) {
			if err := os.Truncate(path, ends[keep]); err != nil {
				t.Fatal(err)
			}
		},
		Replace: func(t *testing.T) {
			size := fileSize(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, f.packed(t, strings.Repeat(f.line(7), int(size))))
		},
	}
	return s
}

func (f format) packed(t testing.TB, s string) string {
	t.Helper()
	if f.codec == "" {
		return s
	}
	z, err := newCompressor(f.codec)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z.Reset(&out)
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func write(t testing.TB, path, s string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func TestSinkConformance(t *testing.T) {
	for _, x := range []struct{ format, compression string }{
		{"json", ""}, {"raw", ""}, {"text", ""}, {"normal", ""}, {"envelope_json", ""}, {"csv", ""},
		{"raw", "gzip"}, {"json", "zstd"}, {"csv", "zstd"}, {"normal", "lz4"},
	} {
		t.Run(x.format+x.compression, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
				dir := filepath.Join(t.TempDir(), "not", "there", "yet")
				s := &sinktest.Subject{
					Open: func(t *testing.T) connectors.Sink {
						s, err := newSink(&Config{
							Path: dir, Format: x.format, Compression: x.compression, NameBy: "source_position", CSV: CSVConfig{Header: true},
						}, &route.Spec{}, connectors.Env{})
						if err != nil {
							t.Fatal(err)
						}
						return s
					},
					Rows:    func(t *testing.T) [][]byte { return payloads(t, dir, x.format) },
					Objects: func(t *testing.T) map[string]string { return objects(t, dir) },
					Spools: func(t *testing.T) int {
						all, err := filepath.Glob(filepath.Join(dir, ".*"))
						if err != nil {
							t.Fatal(err)
						}
						return len(all)
					},
				}
				if x.format == "csv" {
					s.Want = csvRow
				}
				return s
			}})
		})
	}
}

// csvRow is what the suite's record looks like in csv.
func csvRow(i int) []byte { return fmt.Appendf(nil, "%d,row %d", i, i) }

// objects is the content of each part, by name.
func objects(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	all, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(p)] = string(b)
	}
	return out
}

// payloads reads the parts in the order of their names, without the product.
func payloads(t testing.TB, dir, format string) (out [][]byte) {
	t.Helper()
	parts := objects(t, dir)
	names := make([]string, 0, len(parts))
	for n := range parts {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		out = append(out, records(t, n, foreign(t, filepath.Join(dir, n)), format)...)
	}
	return out
}

// records takes the content of a file apart, without the product.
func records(t testing.TB, name, content, format string) (out [][]byte) {
	t.Helper()
	for line := range strings.Lines(content) {
		line, ok := strings.CutSuffix(line, "\n")
		if !ok {
			t.Errorf("%s does not end with a line end", name)
		}
		switch format {
		case "csv":
			if line == "id,text" {
				continue
			}
		case "normal", "text":
			var e struct {
				Payload *string `json:"payload"`
				Base64  []byte  `json:"payload_base64"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e.Payload != nil {
				line = *e.Payload
			} else {
				line = string(e.Base64)
			}
		case "json", "envelope_json":
			var e struct {
				Payload json.RawMessage `json:"payload"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			line = string(e.Payload)
		}
		out = append(out, []byte(line))
	}
	return out
}

// foreign reads a file with the tool of its compression.
func foreign(t testing.TB, path string) string {
	t.Helper()
	tool := map[string]string{".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}[filepath.Ext(path)]
	if tool == "" {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	b, err := exec.Command(tool, "-dc", path).Output()
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return string(b)
}
