package file

import (
	"encoding/json"
	"fmt"
	"os"
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

func TestSourceConformance(t *testing.T) {
	for name, f := range formats {
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
				s.AppendBad = func(t *testing.T) { write(t, s.Open(t).(*source).cfg.Path, f.bad) }
				return s
			}})
		})
	}
}

func subject(t *testing.T, f format) *sourcetest.Subject {
	path := filepath.Join(t.TempDir(), "in.dat")
	write(t, path, f.head)
	ends := []int64{int64(len(f.head))}
	cfg := f.cfg
	cfg.Path = path
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
				b.WriteString(f.line(i))
				ends = append(ends, at+int64(b.Len()))
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
			write(t, path, strings.Repeat(f.line(7), int(size)))
		},
	}
	return s
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
	for _, format := range []string{"json", "raw", "text", "normal"} {
		t.Run(format, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
				dir := filepath.Join(t.TempDir(), "not", "there", "yet")
				return &sinktest.Subject{
					Open: func(t *testing.T) connectors.Sink {
						s, err := newSink(&Config{Path: dir, Format: format, NameBy: "source_position"}, &route.Spec{}, connectors.Env{})
						if err != nil {
							t.Fatal(err)
						}
						return s
					},
					Rows:    func(t *testing.T) [][]byte { return payloads(t, dir, format) },
					Objects: func(t *testing.T) map[string]string { return objects(t, dir) },
					Spools: func(t *testing.T) int {
						all, err := filepath.Glob(filepath.Join(dir, ".*"))
						if err != nil {
							t.Fatal(err)
						}
						return len(all)
					},
				}
			}})
		})
	}
}

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
		for line := range strings.Lines(parts[n]) {
			line, ok := strings.CutSuffix(line, "\n")
			if !ok {
				t.Errorf("%s does not end with a line end", n)
			}
			if format == "normal" {
				var e struct {
					Payload *string `json:"payload"`
					Base64  []byte  `json:"payload_base64"`
				}
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatalf("%s: %v", n, err)
				}
				if e.Payload != nil {
					line = *e.Payload
				} else {
					line = string(e.Base64)
				}
			}
			out = append(out, []byte(line))
		}
	}
	return out
}
