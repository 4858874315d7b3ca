package file

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// A pipe hands over what its writer has written so far. A separator that is taken
// from half a header makes one column of all of them, or an error of a quote.
func TestSeparatorIsNotTakenFromHalfAHeaderInAPipe(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ids;name\n1;x\n", "a,b;\"c\";d;e\n1;2;3;4\n", "\xef\xbb\xbf\"a;\nb\"|c\n1|2\n"} {
		whole := newRig(t, Config{Format: "csv", CSV: CSVConfig{Header: true, Separator: "auto"}}, text)
		want, _, err := drain(t, whole.mustOpen(message.Position{}))
		if !errors.Is(err, connectors.ErrEndOfInput) || len(want) != 1 {
			t.Fatalf("%q, %v", want, err)
		}
		if got := dribble(t, whole.cfg, text); !slices.Equal(got, want) {
			t.Errorf("byte by byte %q, at once %q", got, want)
		}
	}
}

func TestByteOrderMarkInPiecesIsNoDataInAPipe(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{rawLines, csvFile, {Format: "csv", CSV: CSVConfig{Columns: []string{"a"}}}} {
		want := []string{"x"}
		text := "\xef\xbb\xbfx\n"
		if cfg.Format == "csv" {
			want[0] = `{"a":"x"}`
			if cfg.CSV.Header {
				text = "\xef\xbb\xbfa\nx\n"
			}
		}
		if got := dribble(t, cfg, text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", cfg.Format, got, want)
		}
	}
}

// dribble reads text from a pipe whose next byte is written when the ones before
// were taken out of it.
func dribble(t *testing.T, cfg Config, text string) []string {
	t.Helper()
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
	go func() {
		defer w.Close()
		for i := range len(text) {
			fmt.Fprint(w, text[i:i+1])
			for left := 1; left > 0; left, _ = unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ) {
				runtime.Gosched()
			}
		}
	}()
	got, _, err := drain(t, rd.(*reader))
	if !errors.Is(err, connectors.ErrEndOfInput) {
		t.Fatal(err)
	}
	return got
}

// What a later writer puts into a pipe that has ended is taken and read by nobody.
func TestAFollowedPipeIsReadOnWhenAnotherWriterComes(t *testing.T) {
	t.Parallel()
	for _, c := range []codec{codecNone, codecGzip, codecZstd} { // lz4 fills 64 KiB before it hands them over
		r, s := fifo(t, Config{Format: "raw", Compression: string(c)})
		r.spec.ExitOnEmpty = false
		rd, err := r.openPipe(s, message.Position{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			text, want := rows(1000*i, 1000)
			done := make(chan error)
			go func() {
				if c != codecNone {
					text = string(pack(t, c, text))
				}
				done <- os.WriteFile(r.path, []byte(text), 0) // opens and closes it
			}()
			for len(want) > 0 {
				b, err := rd.Read(t.Context())
				if err != nil {
					t.Fatalf("%s: writer %d: %v", c, i, err)
				}
				for j := range b.Len() {
					if string(b.Payload(j)) != want[0] {
						t.Fatalf("%s: writer %d: %q, want %q", c, i, b.Payload(j), want[0])
					}
					want = want[1:]
				}
				b.Release()
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		rd.Close()
	}
}
