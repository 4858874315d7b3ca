package file

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// rig is one file and how it is read.
type rig struct {
	testing.TB
	path string
	cfg  Config
	spec route.Spec
	src  *source
	id   string
	bad  []connectors.BadRecord
	stop bool // on_error: stop
}

func newRig(t testing.TB, cfg Config, content string) *rig {
	t.Helper()
	r := &rig{TB: t, path: filepath.Join(t.TempDir(), "in.dat"), cfg: cfg}
	r.cfg.Path = r.path
	r.spec = route.Spec{BatchSize: 1000, MaxRecordBytes: 16 << 20}
	write(t, r.path, content)
	return r
}

func (r *rig) open(at message.Position) (*reader, error) {
	r.Helper()
	s, err := newSource(&r.cfg, &r.spec, connectors.Env{Node: "n1"})
	if err != nil {
		r.Fatal(err)
	}
	r.src = s.(*source)
	r.src.quiet = time.Millisecond
	p := r.src.partition(filepath.Base(r.path))
	id, err := s.Identify(r.Context(), p, r.id)
	if err != nil {
		return nil, err
	}
	r.id = id
	claim := connectors.Claim{
		Partition: p, Spec: &r.spec, Budget: message.NewBudget(64 << 20),
		Reject: func(_ context.Context, b connectors.BadRecord) error {
			b.Payload = bytes.Clone(b.Payload)
			r.bad = append(r.bad, b)
			if r.stop {
				return fmt.Errorf("%s: %w", b.Place, b.Err)
			}
			return nil
		},
	}
	claim.Record.Position, claim.Record.Source = at, id
	rd, err := s.Open(r.Context(), claim)
	if err != nil {
		return nil, err
	}
	r.Cleanup(func() { rd.Close() })
	if g, ok := rd.(gone); ok {
		return nil, fmt.Errorf("gone at %+v", g.at)
	}
	return rd.(*reader), nil
}

func (r *rig) mustOpen(at message.Position) *reader {
	r.Helper()
	rd, err := r.open(at)
	if err != nil {
		r.Fatal(err)
	}
	return rd
}

// drain reads until an error, and returns it with the payloads and where they end.
func drain(t testing.TB, rd *reader) (payloads []string, at message.Position, err error) {
	t.Helper()
	for {
		b, err := rd.Read(t.Context())
		if err != nil {
			return payloads, at, err
		}
		if b.Read != b.Len()+b.Dropped || b.Read == 0 {
			t.Errorf("read %d, dropped %d, messages %d", b.Read, b.Dropped, b.Len())
		}
		for i := range b.Len() {
			payloads = append(payloads, string(b.Payload(i)))
		}
		if block := b.Lines(0, b.Len()); block != nil && string(block) != strings.Join(payloads[len(payloads)-b.Len():], "\n")+"\n" {
			t.Errorf("the framed block is not the payloads: %q", block)
		}
		at = b.End
		b.Release()
	}
}

func (r *rig) all(want ...string) {
	r.Helper()
	got, _, err := drain(r, r.mustOpen(message.Position{}))
	if !errors.Is(err, connectors.ErrEndOfInput) {
		r.Fatalf("after %q: %v", got, err)
	}
	if !slices.Equal(got, want) {
		r.Fatalf("got %q, want %q", got, want)
	}
}

var jsonLines = Config{Format: "json"}
var rawLines = Config{Format: "raw"}
var csvFile = Config{Format: "csv", CSV: CSVConfig{Header: true}}

func TestHalfWrittenLastLineWaits(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{jsonLines, csvFile} {
		r := newRig(t, cfg, "")
		if cfg.Format == "csv" {
			write(t, r.path, "n\n")
		}
		rd := r.mustOpen(message.Position{})
		line, want := `{"n":"1"}`, `{"n":"1"}`
		if cfg.Format == "csv" {
			line = `"1"`
		}
		for i := range line {
			write(t, r.path, line[i:i+1])
			if got, _, err := drain(t, rd); len(got) > 0 || !errors.Is(err, connectors.ErrEndOfInput) {
				t.Fatalf("%s, %d bytes: %q, %v", cfg.Format, i+1, got, err)
			}
		}
		write(t, r.path, "\n")
		if got, _, err := drain(t, rd); !slices.Equal(got, []string{want}) || !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatalf("%s: %q, %v", cfg.Format, got, err)
		}
	}
}

func TestUnfinishedLastLineIsDeliveredWhenTheInputEnds(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{jsonLines, csvFile} {
		r := newRig(t, cfg, "")
		r.spec.ExitOnEmpty = true
		first := "{\"n\":\"1\"}\n{\"n\":\"2\"}"
		if cfg.Format == "csv" {
			first = "n\n1\n2"
		}
		write(t, r.path, first)
		rd := r.mustOpen(message.Position{})
		got, at, err := drain(t, rd)
		if !slices.Equal(got, []string{`{"n":"1"}`, `{"n":"2"}`}) || !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatalf("%s: %q, %v", cfg.Format, got, err)
		}
		// The line end comes late: it is no record, to this reader or the next.
		write(t, r.path, "\r\n")
		if got, _, err := drain(t, rd); len(got) > 0 || !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatalf("%s, late line end: %q, %v", cfg.Format, got, err)
		}
		write(t, r.path, strings.ReplaceAll(first[strings.LastIndexByte(first, '\n')+1:], "2", "3")+"\n")
		want := []string{`{"n":"3"}`}
		if got, _, err := drain(t, rd); !slices.Equal(got, want) {
			t.Fatalf("%s: %q, %v", cfg.Format, got, err)
		}
		if got, _, err := drain(t, r.mustOpen(at)); !slices.Equal(got, want) {
			t.Fatalf("%s, resumed: %q, %v", cfg.Format, got, err)
		}
	}
}

func TestGrowthInsideADeliveredLastLineIsAGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawLines, "one\ntw")
	r.spec.ExitOnEmpty = true
	rd := r.mustOpen(message.Position{})
	if got, _, _ := drain(t, rd); !slices.Equal(got, []string{"one", "tw"}) {
		t.Fatalf("%q", got)
	}
	write(t, r.path, "o\n")
	if got, _, err := drain(t, rd); len(got) > 0 || !errors.Is(err, connectors.ErrGap) {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestByteOrderMarkIsNoData(t *testing.T) {
	t.Parallel()
	newRig(t, rawLines, "\xef\xbb\xbfa\nb\n").all("a", "b")
	newRig(t, csvFile, "\xef\xbb\xbfk\nv\n").all(`{"k":"v"}`)
}

func TestCSVOptions(t *testing.T) {
	t.Parallel()
	newRig(t, Config{Format: "csv", CSV: CSVConfig{Columns: []string{"a", "b"}}}, "1,2\n3,4\n").all(`{"a":"1","b":"2"}`, `{"a":"3","b":"4"}`)
	newRig(t, Config{Format: "csv", CSV: CSVConfig{Header: true, Columns: []string{"a", "b"}}}, "x,y\n1,2\n").all(`{"a":"1","b":"2"}`)
	newRig(t, Config{Format: "csv", CSV: CSVConfig{Header: true, Separator: "auto", Quote: "'"}}, "x\t'y, z'\n'1'\t2\n").all(`{"x":"1","y, z":"2"}`)
	newRig(t, Config{Format: "csv", CSV: CSVConfig{Header: true, Separator: "0x7c"}}, "\n\r\nx|x\n\n1|2\n").all(`{"x":"1","x_2":"2"}`)
	newRig(t, csvFile, "x,y\n1\n1,2,3\n").all(`{"x":"1","y":""}`, `{"x":"1","y":"2"}`)
	newRig(t, csvFile, "x,y\n").all()
	newRig(t, csvFile, "").all()
}

// A quote inside a field opens nothing: taken for one that does, the rest of the file
// was a part of the header, and a route that follows waited for its end without a word.
func TestAQuoteInsideAHeaderFieldIsAnErrorAlsoWhereTheFileIsFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Format: "csv", CSV: CSVConfig{Header: true, Separator: "auto"}}, "a;5\" pipe;c\n1;2;3\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := r.mustOpen(message.Position{}).Read(ctx)
	if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), "a quote inside an unquoted field") {
		t.Error(err)
	}
}

func TestHeaderIsReadAgainAfterAResume(t *testing.T) {
	t.Parallel()
	r := newRig(t, csvFile, "x\n1\n2\n")
	r.spec.BatchSize = 1
	b, err := r.mustOpen(message.Position{}).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := drain(t, r.mustOpen(b.End)); !slices.Equal(got, []string{`{"x":"2"}`}) {
		t.Fatalf("%q", got)
	}
}

func TestBadRecordsAreNamedByFileLineAndByte(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		cfg      Config
		end      bool
		good     []string
		place    []string
	}{
		{"json", "{}\n\n[1,\n{\"a\":1}\nx\n", jsonLines, false, []string{"{}", `{"a":1}`}, []string{":3 (byte 7)", ":5 (byte 16)"}},
		{"fields", "a,b\n1,2\n1\n1,2,3\n3,4\n", Config{Format: "csv", CSV: CSVConfig{Header: true, OnMismatch: "fail"}}, false,
			[]string{`{"a":"1","b":"2"}`, `{"a":"3","b":"4"}`}, []string{":3 (byte 8)", ":4 (byte 10)"}},
		{"bare quote", "a,b\n1,x\"y\n3,4\n", csvFile, false, []string{`{"a":"3","b":"4"}`}, []string{":2 (byte 7)"}},
		{"after quote", "a,b\n\"1\n\"x,2\n3,4\n", csvFile, false, []string{`{"a":"3","b":"4"}`}, []string{":3 (byte 8)"}},
		{"open quote", "a,b\n1,\"2\n3,4\n5,6", csvFile, true, []string{`{"a":"3","b":"4"}`, `{"a":"5","b":"6"}`}, []string{":2 (byte 6)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 1000} {
				r := newRig(t, c.cfg, c.in)
				r.spec.BatchSize, r.spec.ExitOnEmpty = size, c.end
				got, _, err := drain(t, r.mustOpen(message.Position{}))
				if !slices.Equal(got, c.good) || !errors.Is(err, connectors.ErrEndOfInput) {
					t.Fatalf("got %q, %v; want %q", got, err, c.good)
				}
				var places []string
				for _, b := range r.bad {
					places = append(places, strings.TrimPrefix(b.Place, r.path))
				}
				if !slices.Equal(places, c.place) {
					t.Fatalf("places %q, want %q (%v)", places, c.place, r.bad)
				}
				// on_error: stop hands on what is before the record, then the error,
				// and meets the record again.
				r.stop, r.bad = true, nil
				rd := r.mustOpen(message.Position{})
				for range 2 {
					_, _, err := drain(t, rd)
					if err == nil || errors.Is(err, connectors.ErrEndOfInput) || !strings.Contains(err.Error(), c.place[0]) {
						t.Fatalf("stop: %v", err)
					}
				}
			}
		})
	}
}

// What becomes of bad records waits for the end of their batch: with a dlq they
// are held until then.
func TestAFileOfNothingButBadRecordsComesInBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg Config
		in  string
	}{{jsonLines, strings.Repeat("x\n", 1000)}, {csvFile, "a,b\n" + strings.Repeat("1,x\"y\n", 1000)}} {
		r := newRig(t, c.cfg, c.in)
		r.spec.BatchSize = 10
		rd := r.mustOpen(message.Position{})
		b, err := rd.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.Read > 10 || b.Dropped != b.Read || len(r.bad) != b.Read {
			t.Errorf("a batch of %d bad records, %d rejected", b.Dropped, len(r.bad))
		}
		b.Release()
	}
}

func TestBrokenHeaderStopsThePartition(t *testing.T) {
	t.Parallel()
	for in, place := range map[string]string{"a,b\"c\n1,2\n": ":1 (byte 3)", "\n\"a\"b\n": ":2 (byte 4)"} {
		_, _, err := drain(t, newRig(t, csvFile, in).mustOpen(message.Position{}))
		if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), place) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestHugeRecords(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", 3*blockBytes+17)
	newRig(t, rawLines, "a\n"+huge+"\nb\n").all("a", huge, "b")
	newRig(t, jsonLines, "1\n\""+huge+"\"\r\n2\n").all("1", `"`+huge+`"`, "2")
	newRig(t, csvFile, "k\na\n"+huge+"\nb\n").all(`{"k":"a"}`, `{"k":"`+huge+`"}`, `{"k":"b"}`)
}

func TestRecordOverTheLimitCostsItselfAlone(t *testing.T) {
	t.Parallel()
	for _, n := range []int{101, 1000, blockBytes, 3 * blockBytes} {
		for _, format := range []string{"raw", "csv"} {
			for _, quote := range []string{"", `"`} {
				cfg, huge := rawLines, quote+strings.Repeat("x", n)+quote
				want := []string{"a", "b"}
				in := "a\n" + huge + "\nb\n"
				if format == "csv" {
					cfg, in, want = csvFile, "k\n"+in, []string{`{"k":"a"}`, `{"k":"b"}`}
				}
				r := newRig(t, cfg, in)
				r.spec.MaxRecordBytes = 100
				r.all(want...)
				if len(r.bad) != 1 || r.bad[0].Ordinal != 1 || !strings.Contains(r.bad[0].Err.Error(), "100 bytes") {
					t.Fatalf("%s %d: %+v", format, n, r.bad)
				}
			}
		}
	}
}

// An opened quote must not take the rest of the file with it (bounded by
// max_record_bytes), wherever the end of the block falls.
func TestUnclosedQuoteDoesNotEatTheFile(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	in.WriteString("k,v\n1,\"open\n")
	var want []string
	for i := range 40_000 {
		fmt.Fprintf(&in, "%d,value\n", i)
		want = append(want, fmt.Sprintf(`{"k":"%d","v":"value"}`, i))
	}
	r := newRig(t, csvFile, in.String())
	r.spec.MaxRecordBytes = 64 << 10
	r.all(want...)
	if len(r.bad) != 1 || !strings.Contains(r.bad[0].Place, ":2 (byte 4)") {
		t.Fatalf("%+v", r.bad)
	}
}

func TestQuotedLineEndsAcrossBlocks(t *testing.T) {
	t.Parallel()
	var in bytes.Buffer
	w := csv.NewWriter(&in)
	var want []string
	for i := range 20_000 {
		rec := []string{fmt.Sprint(i), strings.Repeat("line\n", i%9) + `"q" ` + strings.Repeat("é", i%31)}
		if i == 0 {
			rec = []string{"id", "text"}
		} else {
			j, err := json.Marshal(rec[1])
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, fmt.Sprintf(`{"id":"%d","text":%s}`, i, j))
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	if in.Len() < 3*blockBytes {
		t.Fatal("too small to cross blocks")
	}
	newRig(t, csvFile, in.String()).all(want...)
}

func TestTruncatedReplacedAndRewrittenFilesAreGaps(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("some line\n", 1000)
	for name, change := range map[string]func(r *rig){
		"truncated":            func(r *rig) { must(r, os.Truncate(r.path, 500)) },
		"truncated to nothing": func(r *rig) { must(r, os.Truncate(r.path, 0)) },
		"emptied and filled again": func(r *rig) {
			must(r, os.Truncate(r.path, 0))
			write(r, r.path, strings.Repeat("other line\n", 2000))
		},
		"replaced": func(r *rig) {
			write(r, r.path+".new", content+content)
			must(r, os.Rename(r.path+".new", r.path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rawLines, content)
			rd := r.mustOpen(message.Position{})
			_, at, err := drain(t, rd)
			if !errors.Is(err, connectors.ErrEndOfInput) {
				t.Fatal(err)
			}
			change(r)
			if got, _, err := drain(t, rd); !errors.Is(err, connectors.ErrGap) {
				t.Errorf("under a reader: %d records, %v", len(got), err)
			}
			_, err = r.open(at)
			if !errors.Is(err, connectors.ErrGap) {
				if err == nil {
					t.Fatal("opened")
				}
				t.Errorf("at open: %v", err)
			}
			if connectors.Classify(err) != connectors.ClassGap || !strings.Contains(err.Error(), r.path) {
				t.Errorf("at open: %v", err)
			}
		})
	}
}

// Only a truncation that keeps the head and leaves less than was read is seen by
// size alone.
func TestTruncationBehindTheHeadIsAGapAtOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawLines, strings.Repeat("some line\n", 10_000))
	_, at, _ := drain(t, r.mustOpen(message.Position{}))
	must(r, os.Truncate(r.path, 50_000))
	rd, err := r.open(at)
	if err == nil {
		_, _, err = drain(t, rd)
	}
	if !errors.Is(err, connectors.ErrGap) {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeletedFileIsAGapOnlyIfSomethingWasUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawLines, "a\nb\n")
	r.spec.BatchSize = 1
	rd := r.mustOpen(message.Position{})
	b, err := rd.Read(t.Context())
	must(t, err)
	half := b.End
	b.Release()
	must(t, os.Remove(r.path))
	got, whole, err := drain(t, rd)
	if !slices.Equal(got, []string{"b"}) || !errors.Is(err, connectors.ErrEndOfInput) {
		t.Fatalf("an open file is read on: %q, %v", got, err)
	}
	if _, err := r.open(half); !errors.Is(err, connectors.ErrGap) {
		t.Fatalf("half read: %v", err)
	}
	if _, err := r.open(whole); err == nil || !strings.Contains(err.Error(), "gone at") {
		t.Fatalf("read to its end: %v", err)
	}
	r.id = ""
	if _, err := r.open(message.Position{}); !errors.Is(err, connectors.ErrGap) {
		t.Fatalf("never read: %v", err)
	}
}

func TestIdentityGrowsWithTheHead(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawLines, "")
	r.mustOpen(message.Position{})
	empty := r.id
	write(t, r.path, "a\n")
	r.mustOpen(message.Position{})
	if r.id == empty {
		t.Fatal("the identity does not cover what came to the head")
	}
	must(t, os.Truncate(r.path, 0))
	write(t, r.path, "b\n")
	if _, err := r.open(message.Position{}); !errors.Is(err, connectors.ErrGap) {
		t.Fatal(err)
	}
}

// A log is empty when a route finds it, and is emptied again when it is rotated.
func TestAFileThatBeganEmptyIsNotTakenForTheOneThatItIsFilledWithLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, rawLines, "")
	rd := r.mustOpen(message.Position{})
	for i := range 3 {
		line := fmt.Sprintf("line %d", i)
		write(t, r.path, line+"\n")
		if got, _, err := drain(t, rd); !slices.Equal(got, []string{line}) || !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	must(t, os.Truncate(r.path, 0))
	write(t, r.path, strings.Repeat("other\n", 100))
	if got, _, err := drain(t, rd); len(got) > 0 || !errors.Is(err, connectors.ErrGap) {
		t.Fatalf("%d records, %v", len(got), err)
	}
}

// FuzzLines compares the framing with a plain split, at any batch size, resumed
// after each batch, with the file growing in between.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "a", "a\n", "\n", "a\r\n\r\nb", "\xef\xbb\xbfa\nb", "a\n\n\nb\n", strings.Repeat("x", 300) + "\ny\n"} {
		f.Add([]byte(s), uint8(3), uint16(2))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, in []byte, size uint8, cut uint16) {
		path := filepath.Join(dir, fmt.Sprintf("%x", time.Now().UnixNano()))
		defer os.Remove(path)
		at := min(int(cut), len(in))
		must(t, os.WriteFile(path, in[:at], 0o644))
		r := &rig{TB: t, path: path, cfg: Config{Path: path, Format: "raw"}}
		r.spec = route.Spec{BatchSize: int(size%9) + 1, MaxRecordBytes: 1 << 20}
		var want []string
		body := strings.TrimPrefix(string(in), "\xef\xbb\xbf")
		for line := range strings.Lines(body) {
			if l, ok := strings.CutSuffix(line, "\n"); ok {
				want = append(want, l)
			}
		}
		var got []string
		var pos message.Position
		grown := false
		for {
			rd := r.mustOpen(pos)
			b, err := rd.Read(t.Context())
			if errors.Is(err, connectors.ErrEndOfInput) {
				rd.Close()
				if grown {
					break
				}
				write(t, path, string(in[at:]))
				grown = true
				continue
			}
			must(t, err)
			for i := range b.Len() {
				got = append(got, string(b.Payload(i)))
			}
			if n, _ := b.End.Number(); n != int64(len(got)) {
				t.Fatalf("the position is %d after %d records", n, len(got))
			}
			pos = b.End
			b.Release()
			rd.Close()
		}
		if bytes.HasPrefix(in, bom) && at > 0 && at < 3 {
			return // half a byte order mark was not read: nothing is lost
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q cut at %d: got %q, want %q", in, at, got, want)
		}
	})
}
