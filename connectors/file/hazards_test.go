package file

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestLineEndInsideQuotesDoesNotSplitACSVRow(t *testing.T) {
	t.Parallel()
	row := "1,\"two\nlines, \"\"quoted\"\"\r\nand a third\"\r\n"
	want := `{"a":"1","b":"two\nlines, \"quoted\"\r\nand a third"}`
	n := 40_000 // enough to be read ahead
	all := make([]string, n)
	for i := range all {
		all[i] = want
	}
	newRig(t, csvFile, "a,b\n"+strings.Repeat(row, n)).all(all...)
}

func TestQuoteThatIsNeverClosedFailsADrainWithItsOffset(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true} {
		head := "a,b\n1,2\n"
		if ahead {
			head += strings.Repeat("3,4\n", 500_000)
		}
		r := newRig(t, csvFile, head+"5,\"open\n6,7\n")
		r.spec.ExitOnEmpty, r.stop = true, true
		got, at, err := drain(t, r.mustOpen(message.Position{}))
		if err == nil || errors.Is(err, connectors.ErrEndOfInput) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d", len(head)+2)) {
			t.Fatalf("after %d records: %v", len(got), err)
		}
		if n, _ := at.Number(); int(n) != len(got) || len(got) != strings.Count(head, "\n")-1 {
			t.Fatalf("%d records, position %q", len(got), at.Token)
		}
	}
}

// The position is that of the first record that is not done, not of the last one
// that is.
func TestLineThatWasRefusedIsReadAgainAfterARestart(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("{\"n\":1}\n", 200_000)
	r := newRig(t, jsonLines, good+"{\"n\":\n{\"n\":3}\n")
	r.stop = true
	_, at, err := drain(t, r.mustOpen(message.Position{}))
	if err == nil || errors.Is(err, connectors.ErrEndOfInput) {
		t.Fatal(err)
	}
	if n, _ := at.Number(); n != 200_000 {
		t.Fatalf("the position is %q", at.Token)
	}
	for range 2 {
		r.bad = nil
		if got, _, err := drain(t, r.mustOpen(at)); len(got) > 0 || errors.Is(err, connectors.ErrEndOfInput) || len(r.bad) != 1 || r.bad[0].Ordinal != 200_000 {
			t.Fatalf("after a restart: %d records, %v", len(got), err)
		}
	}
	r.stop = false
	if got, _, err := drain(t, r.mustOpen(at)); !slices.Equal(got, []string{`{"n":3}`}) || !errors.Is(err, connectors.ErrEndOfInput) {
		t.Fatalf("with on_error: drop: %q, %v", got, err)
	}
}

// A reader that is opened again must not read the file once more from its start.
func TestReopenedReaderGoesOnAtItsPosition(t *testing.T) {
	t.Parallel()
	for _, c := range []codec{codecNone, codecZstd} {
		var text strings.Builder
		text.WriteString("n\n")
		for i := range 300_000 {
			fmt.Fprintf(&text, "%d\n", i)
		}
		content := text.String()
		if c != codecNone {
			content = string(pack(t, c, content))
		}
		r := newRig(t, Config{Format: "csv", Compression: string(c), CSV: CSVConfig{Header: true}}, content)
		at, next := message.Position{}, 0
		for runs := 0; ; runs++ {
			rd := r.mustOpen(at)
			for range 1 + 40*(runs%2) { // with and without reading ahead
				b, err := rd.Read(t.Context())
				if errors.Is(err, connectors.ErrEndOfInput) {
					if next != 300_000 {
						t.Fatalf("%s: ended at %d", c, next)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for i := range b.Len() {
					if want := fmt.Sprintf(`{"n":"%d"}`, next); string(b.Payload(i)) != want || b.Msg(i).Ordinal != int64(next) {
						t.Fatalf("%s: run %d reads %s as number %d, want %s", c, runs, b.Payload(i), b.Msg(i).Ordinal, want)
					}
					next++
				}
				at = b.End
				b.Release()
			}
			rd.Close()
		}
	}
}

func TestMisspeltKeyOfAFileIsRefusedWithASuggestion(t *testing.T) {
	t.Parallel()
	reg := connectors.NewRegistry([]connectors.Type{Type()}, nil)
	for _, key := range []string{"fromat: csv", "compresion: gzip", "csv: {seperator: ';'}"} {
		_, err := route.DecodeRoute("r", "input: {file: {path: a, "+key+"}}\noutput: {file: {path: b}}\n", reg)
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "csv: {"), ":")
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
