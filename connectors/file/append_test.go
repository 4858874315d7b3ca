package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/route"
)

func TestAppendConformance(t *testing.T) {
	for _, x := range []struct{ format, compression string }{
		{"json", ""}, {"raw", ""}, {"normal", ""}, {"envelope_json", ""}, {"csv", ""}, {"raw", "gzip"}, {"json", "zstd"}, {"normal", "lz4"}, {"csv", "gzip"},
	} {
		t.Run(x.format+x.compression, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
				cfg := Config{
					Path: filepath.Join(t.TempDir(), "not", "there", "out"), Format: x.format, Compression: x.compression, CSV: CSVConfig{Header: true},
				}
				if c := codec(x.compression); c != "" {
					cfg.Path += c.ext()
				}
				s := &sinktest.Subject{
					Open: func(t *testing.T) connectors.Sink {
						s, err := newSink(&cfg, &route.Spec{}, connectors.Env{})
						must(t, err)
						return s
					},
					Rows: func(t *testing.T) [][]byte {
						if st, err := os.Stat(cfg.Path); errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
							return nil // nothing written: not even a member
						}
						return records(t, cfg.Path, foreign(t, cfg.Path), x.format)
					},
				}
				switch x.format {
				case "csv":
					s.Want = csvRow
					s.Refused = func(int) []byte { return []byte("no object") }
				}
				return s
			}})
		})
	}
}

// appendTo opens the sink for one run.
func appendTo(t testing.TB, cfg Config, claim connectors.Claim) (*appender, error) {
	t.Helper()
	s, err := newSink(&cfg, claim.Spec, connectors.Env{})
	must(t, err)
	p, err := s.Prepare(t.Context(), claim.Partition)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w, err := p.Open(ctx, claim)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { w.Close() })
	return w.(*appender), nil
}

func appending(t testing.TB, cfg Config, claim connectors.Claim) *appender {
	t.Helper()
	w, err := appendTo(t, cfg, claim)
	must(t, err)
	return w
}

func put(t testing.TB, w connectors.PlainWriter, payloads ...string) {
	t.Helper()
	must(t, w.Write(t.Context(), batchOf(payloads...), 0, len(payloads)))
}

func state(t testing.TB, w *appender) []byte {
	t.Helper()
	s, err := w.State(t.Context())
	must(t, err)
	return s
}

func contentOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func withState(claim connectors.Claim, s []byte) connectors.Claim {
	claim.Epoch++
	claim.Record.SinkState = s
	return claim
}

// A run that died in the middle of a record leaves half of it: the next run cuts it
// off, and what it writes does not touch what was committed.
func TestATornTailIsCutOffAtRestart(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out.jsonl"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	first := state(t, w)
	put(t, w, "1", "2")
	second := state(t, w)
	put(t, w, "3")
	must(t, w.Close())
	write(t, cfg.Path, `{"half":`)
	w = appending(t, cfg, withState(ordersClaim(1), second))
	if got := contentOf(t, cfg.Path); got != "1\n2\n" {
		t.Fatalf("%q", got)
	}
	put(t, w, "3", "4")
	must(t, w.Close())
	if got := contentOf(t, cfg.Path); got != "1\n2\n3\n4\n" {
		t.Fatalf("%q", got)
	}
	// The state of before the first record takes back all of it.
	appending(t, cfg, withState(ordersClaim(2), first))
	if got := contentOf(t, cfg.Path); got != "" {
		t.Fatalf("%q", got)
	}
}

// A file that lost bytes is not made as long as it was: they would be NULs.
func TestATruncatedFileIsRefusedAndNeverFilledWithNULs(t *testing.T) {
	t.Parallel()
	for _, c := range []string{"none", "zstd"} {
		cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw", Compression: c}
		w := appending(t, cfg, ordersClaim(1))
		put(t, w, "1", "2", "3")
		s := state(t, w)
		must(t, w.Close())
		must(t, os.Truncate(cfg.Path, 4))
		before := contentOf(t, cfg.Path)
		_, err := appendTo(t, cfg, withState(ordersClaim(1), s))
		if connectors.Classify(err) != connectors.ClassRegressed || !errors.Is(err, checkpoint.ErrRegressed) || !strings.Contains(err.Error(), "4 bytes") {
			t.Errorf("%s: %v", c, err)
		}
		if got := contentOf(t, cfg.Path); got != before {
			t.Errorf("%s: %q", c, got)
		}
	}
	// The same while it is open.
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	put(t, w, "1", "2", "3")
	must(t, os.Truncate(cfg.Path, 0))
	if err := w.Write(t.Context(), batchOf("4"), 0, 1); connectors.Classify(err) != connectors.ClassPermanent {
		t.Errorf("written: %v", err)
	}
	if _, err := w.State(t.Context()); err == nil {
		t.Error("a state of a file that lost bytes")
	}
	if got := contentOf(t, cfg.Path); got != "" {
		t.Errorf("%q", got)
	}
}

func TestAnotherFileUnderTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	put(t, w, "1")
	s := state(t, w)
	must(t, os.Rename(cfg.Path, cfg.Path+".1"))
	write(t, cfg.Path, "somebody else's\n")
	if _, err := w.State(t.Context()); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "moved away") {
		t.Errorf("while open: %v", err)
	}
	must(t, w.Close())
	if _, err := appendTo(t, cfg, withState(ordersClaim(1), s)); connectors.Classify(err) != connectors.ClassRegressed || !strings.Contains(err.Error(), "another file") {
		t.Errorf("%v", err)
	}
	if got := contentOf(t, cfg.Path); got != "somebody else's\n" {
		t.Errorf("%q", got)
	}
	must(t, os.Remove(cfg.Path))
	if _, err := appendTo(t, cfg, withState(ordersClaim(1), s)); connectors.Classify(err) != connectors.ClassRegressed || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made anew: %v", err)
	}
	must(t, os.Rename(cfg.Path+".1", cfg.Path))
	put(t, appending(t, cfg, withState(ordersClaim(1), s)), "2")
	if got := contentOf(t, cfg.Path); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
}

func TestASecondPartitionOfOneFileIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	other := ordersClaim(1)
	other.Partition.ID = "n1/b.csv"
	for _, why := range []string{"while the first one has it", "afterwards"} {
		_, err := appendTo(t, cfg, other)
		if connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "n1/a.csv") || !strings.Contains(err.Error(), "${partition}") {
			t.Errorf("%s: %v", why, err)
		}
		must(t, w.Close())
	}
	// A path per partition is what the hint says.
	cfg.Path += "/${partition}.jsonl"
	must(t, os.Remove(filepath.Dir(cfg.Path)))
	put(t, appending(t, cfg, ordersClaim(1)), "a")
	put(t, appending(t, cfg, other), "b")
	if a, b := contentOf(t, filepath.Dir(cfg.Path)+"/n1%2Fa.csv.jsonl"), contentOf(t, filepath.Dir(cfg.Path)+"/n1%2Fb.csv.jsonl"); a != "a\n" || b != "b\n" {
		t.Errorf("%q %q", a, b)
	}
}

func TestAFileOfAnotherRouteIsRefused(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	put(t, w, "1")
	s := state(t, w)
	must(t, w.Close())
	for want, change := range map[string]func(*connectors.Claim){
		"belongs to route orders": func(c *connectors.Claim) { c.Route, c.RouteUID = "invoices", "uid-2" },
		"an earlier route":        func(c *connectors.Claim) { c.RouteUID = "uid-3" },
		"before its position":     func(c *connectors.Claim) { c.Series = "s2" },
	} {
		claim := ordersClaim(1)
		change(&claim)
		if _, err := appendTo(t, cfg, claim); connectors.Classify(err) != connectors.ClassForeign || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "existing_parts: skip") {
			t.Errorf("%s: %v", want, err)
		}
	}
	next := ordersClaim(1)
	next.Series, next.Spec = "s2", &route.Spec{ExistingParts: "skip"}
	w = appending(t, cfg, next)
	put(t, w, "2")
	must(t, w.Close())
	if got := contentOf(t, cfg.Path); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
	// The former lineage would cut off what is not its own.
	if _, err := appendTo(t, cfg, withState(ordersClaim(1), s)); connectors.Classify(err) != connectors.ClassForeign {
		t.Errorf("%v", err)
	}
	skip := withState(ordersClaim(1), s)
	skip.Spec = &route.Spec{ExistingParts: "skip"}
	if _, err := appendTo(t, cfg, skip); connectors.Classify(err) != connectors.ClassForeign {
		t.Errorf("%v", err)
	}
	if got := contentOf(t, cfg.Path); got != "1\n2\n" {
		t.Errorf("%q", got)
	}
}

// A successor waits until the former owner has closed the file, and only then cuts.
func TestATakeoverWaitsForTheLock(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	old := appending(t, cfg, ordersClaim(1))
	put(t, old, "1")
	s := state(t, old)
	s2, err := newSink(&cfg, ordersClaim(2).Spec, connectors.Env{})
	must(t, err)
	p, err := s2.Prepare(t.Context(), ordersClaim(2).Partition)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Open(ctx, withState(ordersClaim(1), s)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "lock") {
		t.Fatalf("%v", err)
	}
	opened := make(chan connectors.Writer, 1)
	go func() {
		w, err := p.Open(t.Context(), withState(ordersClaim(1), s))
		if err != nil {
			t.Error(err)
		}
		opened <- w
	}()
	for i := range 200 {
		put(t, old, fmt.Sprint("late ", i))
		select {
		case <-opened:
			t.Fatal("it did not wait")
		default:
		}
	}
	must(t, old.Close())
	w := <-opened
	defer w.Close()
	put(t, w.(*appender), "2")
	if got := contentOf(t, cfg.Path); got != "1\n2\n" {
		t.Fatalf("%q", got)
	}
}

// A file that was there is gone on with as it is. A record that was left without its
// end is not joined to ours, nor is the end written before it is known how long the
// file was.
func TestAFoundFileIsGoneOnWith(t *testing.T) {
	t.Parallel()
	for _, compression := range []string{"none", "gzip", "zstd", "lz4"} {
		for before, want := range map[string]string{"": "a\nb\n", "x\n": "x\na\nb\n", "x\ny": "x\ny\na\nb\n"} {
			cfg := Config{Path: filepath.Join(t.TempDir(), "out"+codec(compression).ext()), Format: "raw"}
			if compression == "none" {
				write(t, cfg.Path, before)
			} else {
				write(t, cfg.Path, string(pack(t, codec(compression), before)))
			}
			untouched := contentOf(t, cfg.Path)
			w := appending(t, cfg, ordersClaim(1))
			first := state(t, w)
			put(t, w, "lost")
			state(t, w)
			must(t, w.Close())
			w = appending(t, cfg, withState(ordersClaim(1), first))
			if contentOf(t, cfg.Path) != untouched {
				t.Errorf("%s %q: it is not as it was found", compression, before)
			}
			put(t, w, "a")
			second := state(t, w)
			must(t, w.Close())
			w = appending(t, cfg, withState(ordersClaim(2), second))
			put(t, w, "b")
			state(t, w)
			if got := foreign(t, cfg.Path); got != want {
				t.Errorf("%s %q: %q, want %q", compression, before, got, want)
			}
		}
	}
}

func TestACompressedFileThatWasCutIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		cfg := Config{Path: filepath.Join(t.TempDir(), "out"+c.ext()), Format: "raw"}
		whole := pack(t, c, "one\n", "two\n")
		write(t, cfg.Path, string(whole[:len(whole)-3]))
		if _, err := appendTo(t, cfg, ordersClaim(1)); connectors.Classify(err) != connectors.ClassPermanent {
			t.Errorf("%s: %v", c, err)
		}
		if got := contentOf(t, cfg.Path); got != string(whole[:len(whole)-3]) {
			t.Errorf("%s was changed", c)
		}
	}
}

// Wherever the process died, what the state says is a whole file, to any reader.
func TestACompressedFileIsWholeAtEachCommit(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		cfg := Config{Path: filepath.Join(t.TempDir(), "out"+c.ext()), Format: "raw"}
		claim, want := ordersClaim(1), ""
		for round := range 5 {
			w := appending(t, cfg, claim)
			for range 3 {
				row := strings.Repeat(fmt.Sprint("round ", round, " "), 40_000)
				for range 3 { // all in one member
					put(t, w, row, "x")
					want += row + "\nx\n"
				}
				claim = withState(claim, state(t, w))
			}
			put(t, w, strings.Repeat("lost", 400_000)) // a part of it is in the file
			must(t, w.Close())
			write(t, cfg.Path, "\x1f\x8b\x08")
			w = appending(t, cfg, claim)
			if got := foreign(t, cfg.Path); got != want {
				t.Fatalf("%s, round %d: %d bytes, want %d", c, round, len(got), len(want))
			}
			must(t, w.Close())
		}
	}
}

func TestSharedStorageAndDirectoriesAreNotAppendedTo(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "raw"}
	claim := ordersClaim(1)
	claim.Spec = &route.Spec{SharedStorage: true}
	if _, err := appendTo(t, cfg, claim); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "shared_storage") {
		t.Errorf("%v", err)
	}
	dir := Config{Path: t.TempDir(), Format: "raw"}
	if _, err := appendTo(t, dir, ordersClaim(1)); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "source_position") {
		t.Errorf("%v", err)
	}
	s, err := newSink(&dir, &route.Spec{}, connectors.Env{})
	must(t, err)
	if err := s.Check(t.Context()); err == nil {
		t.Error("checked")
	}
}

// What could not be written is taken back, so that it may be tried again.
func TestAFailedAppendIsTakenBack(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out"), Format: "csv", CSV: CSVConfig{Header: true}}
	w := appending(t, cfg, ordersClaim(1))
	w.undo(0, false, false, io.ErrShortWrite)
	put(t, w, `{"a":1}`)
	from := w.length
	put(t, w, `{"a":2}`)
	w.undo(from, false, true, io.ErrShortWrite)
	put(t, w, `{"a":3}`)
	if got := contentOf(t, cfg.Path); got != "a\n1\n3\n" {
		t.Errorf("%q", got)
	}
}

// A route may get another output and keep its position (apply --position keep): the
// state in the record is then that of the file before.
func TestTheStateOfAnotherOutputIsNotThatOfThisOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Path: filepath.Join(dir, "first"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	put(t, w, "1")
	s := state(t, w)
	put(t, w, "lost")
	must(t, w.Close())
	second := Config{Path: filepath.Join(dir, "second.gz"), Format: "raw"}
	w = appending(t, second, withState(ordersClaim(1), s))
	now := state(t, w)
	if bytes.Equal(now, s) {
		t.Error("nobody would commit where the second file begins")
	}
	put(t, w, "2")
	must(t, w.Close())
	w = appending(t, second, withState(ordersClaim(2), now))
	put(t, w, "2")
	again := state(t, w)
	must(t, w.Close())
	if got := foreign(t, second.Path); got != "2\n" {
		t.Errorf("%q", got)
	}
	// The same file by another path is the same file.
	link := Config{Path: filepath.Join(dir, "link"), Format: "raw"}
	must(t, os.Symlink(cfg.Path, link.Path))
	must(t, os.WriteFile(sidecar(link.Path), []byte(contentOf(t, sidecar(cfg.Path))), 0o644))
	appending(t, link, withState(ordersClaim(3), s))
	if got := contentOf(t, cfg.Path); got != "1\n" {
		t.Errorf("%q", got)
	}
	// The same file under another compression is none.
	second.Compression = "zstd"
	if _, err := appendTo(t, second, withState(ordersClaim(3), again)); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("%v", err)
	}
}

func TestARefusedAppendLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Path: filepath.Join(dir, "new", "out"), Format: "raw"}
	shared := ordersClaim(1)
	shared.Spec = &route.Spec{SharedStorage: true}
	closed := ordersClaim(1)
	closed.Record.SinkState = []byte("no state")
	gone := ordersClaim(1)
	gone.Record.SinkState = fmt.Appendf(nil, `{"v":1,"path":%q,"device":1,"inode":2,"length":3}`, hashOf(cfg.Path))
	for name, claim := range map[string]connectors.Claim{"shared storage": shared, "a foreign state": closed, "a file that is gone": gone} {
		if _, err := appendTo(t, cfg, claim); err == nil {
			t.Errorf("%s: opened", name)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}
