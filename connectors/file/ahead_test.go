package file

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// everything is what a reader makes of a file: each record with its number and
// the position behind it, bad ones with their place.
func everything(t testing.TB, r *rig, rd *reader) (out []string, last error) {
	t.Helper()
	for {
		r.bad = nil
		b, err := rd.Read(t.Context())
		if err != nil {
			return out, err
		}
		type item struct {
			ordinal int64
			text    string
		}
		var got []item
		for i := range b.Len() {
			at := b.PositionAfter(i)
			if i == b.Len()-1 {
				at = b.Positions.After(b.Msg(i)) // End may lie further, behind blank lines
			}
			got = append(got, item{b.Msg(i).Ordinal, fmt.Sprintf("%d %q %s", b.Msg(i).Ordinal, b.Payload(i), at.Token)})
		}
		if r.stop {
			r.bad = nil // it comes as the next Read's error
		}
		for _, bad := range r.bad {
			got = append(got, item{bad.Ordinal, fmt.Sprintf("%d refused %s: %v: %q", bad.Ordinal, bad.Place, bad.Err, bad.Payload)})
		}
		slices.SortStableFunc(got, func(a, b item) int { return int(a.ordinal - b.ordinal) })
		if b.Read != len(got) || b.Dropped != len(r.bad) {
			t.Fatalf("read %d, dropped %d, got %d with %d bad", b.Read, b.Dropped, len(got), len(r.bad))
		}
		for _, g := range got {
			out = append(out, g.text)
		}
		b.Release()
	}
}

// pieces make files that are mostly regular, and sometimes as nasty as can be.
var pieces = map[string][]string{
	"csv":    {"1,2\n", "a,b\r\n", "\"x\n,\"\"y\",z\n", "\n", "\r\n", "1\n", "1,2,3\n", "a\"b,c\n", "\"a\"b,c\n", "\"", "\n", "\"open,\n", strings.Repeat("long", 30) + ",\n", "ä,\xff\n", "\r"},
	"json":   {"{}\n", "{\"a\":1}\r\n", "\n", "x\n", "[1,\n", "\"" + strings.Repeat("long", 30) + "\"\n", "1", "\n"},
	"raw":    {"a\n", "\n", "bb\r\n", strings.Repeat("long", 30) + "\n", "tail"},
	"normal": {"{\"message_id\":\"1\",\"payload\":\"p\"}\n", "{}\n", "\n", strings.Repeat("long", 30) + "\n", "x\n", "x"},
}

// Whatever is in a file, reading it ahead gives the same records, numbers,
// positions, bad records and errors as reading it one record after another.
func TestReadAheadIsTheSameAsReadingInOrder(t *testing.T) {
	tb := t
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		format := rapid.SampledFrom([]string{"csv", "json", "raw", "normal"}).Draw(t, "format")
		regular := rapid.Bool().Draw(t, "regular")
		words := pieces[format]
		if regular {
			words = words[:3]
		}
		in := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 200).Draw(t, "in"), "")
		if format == "csv" {
			in = "a,b\n" + in
		}
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		defer os.Remove(path)
		if err := os.WriteFile(path, []byte(in), 0o644); err != nil {
			t.Fatal(err)
		}
		mismatch := rapid.SampledFrom([]string{"warn", "fail"}).Draw(t, "on_mismatch")
		stop := rapid.Bool().Draw(t, "stop")
		end := rapid.Bool().Draw(t, "end")
		read := func(ahead bool) ([]string, error) {
			r := &rig{TB: tb, path: path, stop: stop, cfg: Config{Path: path, Format: format, CSV: CSVConfig{Header: true, OnMismatch: mismatch}}}
			r.spec = route.Spec{BatchSize: rapid.IntRange(1, 20).Draw(t, "batch"), MaxRecordBytes: 64, ExitOnEmpty: end}
			rd := r.mustOpen(message.Position{})
			defer rd.Close()
			rd.src.worth = 1 << 40
			if ahead {
				rd.src.worth = 1
			}
			return everything(tb, r, rd)
		}
		want, wantErr := read(false)
		got, gotErr := read(true)
		if !slices.Equal(got, want) {
			t.Fatalf("%q:\nahead %q\nin order %q", in, got, want)
		}
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			t.Fatalf("%q: ahead %v, in order %v", in, gotErr, wantErr)
		}
	})
}
