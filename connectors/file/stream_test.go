package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// rows is n lines of text, of some size altogether.
func rows(from, n int) (text string, want []string) {
	var b strings.Builder
	for i := from; i < from+n; i++ {
		w := fmt.Sprintf("row %d %d", i, i*7919%100_003)
		b.WriteString(w + "\n")
		want = append(want, w)
	}
	return b.String(), want
}

func TestCutCompressedFileIsAnErrorBehindItsLastWholeRecord(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		text, want := rows(0, 200_000) // more than the largest block
		z := pack(t, c, text)
		r := newRig(t, Config{Format: "raw", Compression: string(c)}, string(z[:len(z)*2/3]))
		r.spec.ExitOnEmpty = true
		got, _, err := drain(t, r.mustOpen(message.Position{}))
		if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), fmt.Sprintf("byte %d of the file", len(z)*2/3)) {
			t.Fatalf("%s: %v", c, err)
		}
		if len(got) == 0 || len(got) == len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("%s: %d of %d records before the cut, or wrong ones", c, len(got), len(want))
		}
	}
}

// The checksum that finds the damage may stand at the end of a member, so what is
// read before it is no part of the test.
func TestDamagedCompressedFileIsAnErrorWithItsOffset(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		text, _ := rows(0, 50_000)
		z := pack(t, c, text)
		for i := range 40 {
			z[len(z)/2+i] ^= 0x5a
		}
		r := newRig(t, Config{Format: "raw", Compression: string(c)}, string(z))
		r.spec.ExitOnEmpty = true // damage may look like a part that is still to be written
		got, _, err := drain(t, r.mustOpen(message.Position{}))
		if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), "byte") {
			t.Fatalf("%s: %v after %d records", c, err, len(got))
		}
	}
}

// What a writer has not finished yet is no damage while the file may grow, and
// what was read of it is not read again.
func TestGrownCompressedFileIsReadOnBehindItsOldEnd(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		text, want := rows(0, 20_000)
		more, wantMore := rows(20_000, 20_000)
		first, second := pack(t, c, text), pack(t, c, more)
		r := newRig(t, Config{Format: "raw", Compression: string(c)}, "")
		rd := r.mustOpen(message.Position{})
		var got []string
		var at message.Position
		read := func() {
			t.Helper()
			for range 3 { // growth by little is looked at when it has stopped
				g, p, err := drain(t, rd)
				if !errors.Is(err, connectors.ErrEndOfInput) {
					t.Fatalf("%s: %v", c, err)
				}
				got = append(got, g...)
				if len(g) > 0 {
					at = p
				}
			}
		}
		all := append(first, second...)
		for _, cut := range []int{10, len(first) / 2, len(first)/2 + 100, len(first), len(first) + 3, len(all) - 5, len(all)} {
			write(t, r.path, string(all[fileSize(t, r.path):cut]))
			read()
			if cut == len(first) && !slices.Equal(got, want) {
				t.Fatalf("%s: %d records of a whole member of %d", c, len(got), len(want))
			}
		}
		if !slices.Equal(got, append(want, wantMore...)) {
			t.Fatalf("%s: %d records of %d, or in the wrong order", c, len(got), len(want)+len(wantMore))
		}
		last, wantLast := rows(40_000, 10)
		write(t, r.path, string(pack(t, c, last)))
		if got, _, err := drain(t, r.mustOpen(at)); !slices.Equal(got, wantLast) {
			t.Fatalf("%s: resumed behind the growth: %q, %v", c, got, err)
		}
	}
}

func TestCompressedCSVKeepsItsHeaderOverARestart(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		r := newRig(t, Config{Format: "csv", Compression: string(c), CSV: CSVConfig{Header: true}},
			string(pack(t, c, "\xef\xbb\xbfx,x\r\n", "1,\"a\r\nb\"\r\n2,c\r\n", "3,d\r\n")))
		r.spec.BatchSize = 1
		want := []string{`{"x":"1","x_2":"a\r\nb"}`, `{"x":"2","x_2":"c"}`, `{"x":"3","x_2":"d"}`}
		r.all(want...)
		at := message.Position{}
		for i := range want {
			rd := r.mustOpen(at)
			b, err := rd.Read(t.Context())
			if err != nil || string(b.Payload(0)) != want[i] {
				t.Fatalf("%s: record %d: %v", c, i, err)
			}
			at = b.End
			rd.Close()
		}
	}
}

func TestRecordThatNeverEndsInACompressedFileIsAnErrorNotAllTheMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Format: "raw", Compression: "gzip"}, string(pack(t, codecGzip, "a\n"+strings.Repeat("no line end ", 1<<20))))
	r.spec.MaxRecordBytes = 1 << 10
	got, _, err := drain(t, r.mustOpen(message.Position{}))
	if !slices.Equal(got, []string{"a"}) || connectors.Classify(err) != connectors.ClassData {
		t.Fatalf("%q, %v", got, err)
	}
}

// fifo makes a named pipe and a rig that reads it.
func fifo(t *testing.T, cfg Config) (*rig, *source) {
	t.Helper()
	r := &rig{TB: t, path: filepath.Join(t.TempDir(), "pipe"), cfg: cfg}
	if err := unix.Mkfifo(r.path, 0o600); err != nil {
		t.Fatal(err)
	}
	r.cfg.Path = r.path
	r.spec = route.Spec{BatchSize: 1000, MaxRecordBytes: 1 << 20, ExitOnEmpty: true}
	s, err := newSource(&r.cfg, &r.spec, connectors.Env{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return r, s.(*source)
}

func (r *rig) openPipe(s *source, at message.Position) (connectors.Reader, error) {
	parts, err := s.Partitions(r.Context())
	if err != nil {
		return nil, err
	}
	claim := connectors.Claim{Partition: parts[0], Spec: &r.spec, Budget: message.NewBudget(64 << 20)}
	claim.Record.Position = at
	return s.Open(r.Context(), claim)
}

func TestPipeHandsOverWhatIsThereAndEndsWithItsWriter(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{Format: "raw"}, {Format: "csv", CSV: CSVConfig{Columns: []string{"a"}}}} {
		r, s := fifo(t, cfg)
		rd, err := r.openPipe(s, message.Position{})
		if err != nil {
			t.Fatal(err)
		}
		defer rd.Close()
		w, err := os.OpenFile(r.path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		read := func() (out []string, at message.Position) {
			t.Helper()
			b, err := rd.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			for i := range b.Len() {
				out = append(out, string(b.Payload(i)))
			}
			return out, b.End
		}
		wrap := func(s string) string {
			if cfg.Format == "csv" {
				return `{"a":"` + s + `"}`
			}
			return s
		}
		fmt.Fprint(w, "one\ntwo\nthr")
		if got, _ := read(); !slices.Equal(got, []string{wrap("one"), wrap("two")}) {
			t.Fatalf("%q while the writer pauses", got)
		}
		fmt.Fprint(w, "ee\nend")
		if got, _ := read(); !slices.Equal(got, []string{wrap("three")}) {
			t.Fatalf("%q", got)
		}
		w.Close()
		got, at := read()
		if !slices.Equal(got, []string{wrap("end")}) {
			t.Fatalf("%q at the end of the pipe", got)
		}
		if _, err := rd.Read(t.Context()); !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatal(err)
		}
		for _, p := range []message.Position{at, {}} {
			if _, err := r.openPipe(s, p); connectors.Classify(err) != connectors.ClassPermanent {
				t.Fatalf("opened again at %q: %v", p.Token, err)
			}
		}
	}
}

func TestPipeThatNobodyWritesToCanBeClosed(t *testing.T) {
	t.Parallel()
	r, s := fifo(t, Config{Format: "raw"})
	rd, err := r.openPipe(s, message.Position{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := rd.Read(ctx)
		done <- err
		_, err = rd.Read(t.Context())
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	rd.Close()
	if err := <-done; err == nil {
		t.Fatal("a closed reader returned a batch")
	}
}

func TestLargePipeIsReadWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []codec{codecNone, codecZstd} {
		text, want := rows(0, 100_000)
		r, s := fifo(t, Config{Format: "raw", Compression: string(c)})
		rd, err := r.openPipe(s, message.Position{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			if c != codecNone {
				text = string(pack(t, c, text))
			}
			done <- os.WriteFile(r.path, []byte(text), 0)
		}()
		got, _, err := drain(t, rd.(*reader))
		if !errors.Is(err, connectors.ErrEndOfInput) || !slices.Equal(got, want) {
			t.Fatalf("%s: %d records of %d, %v", c, len(got), len(want), err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		rd.Close()
	}
}

// What cannot be read twice must not make a route promise anything that needs it.
func TestPipeGuaranteesNothing(t *testing.T) {
	t.Parallel()
	r, _ := fifo(t, Config{})
	for _, path := range []string{"-", "/dev/stdin", r.path} {
		c := Type().Source(&Config{Path: path})
		if c.StableIdentity || c.DurablePosition || c.NumberedPosition || c.Why == "" {
			t.Errorf("%s: %+v", path, c)
		}
	}
	if c := Type().Source(&Config{Path: t.TempDir() + "/a.csv"}); !c.DurablePosition {
		t.Errorf("a file: %+v", c)
	}
}
