package file

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	t.Parallel()
	rounds := 600
	if testing.Short() {
		rounds = 200
	}
	path := filepath.Join(t.TempDir(), "in")
	formats := slices.Sorted(maps.Keys(pieces))
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		format := formats[rng.IntN(len(formats))]
		// Mostly regular, with a few kinds of trouble.
		all := pieces[format]
		words := slices.Concat(all[:2], all[:2], all[:2])
		for range rng.IntN(4) {
			words = append(words, all[2+rng.IntN(len(all)-2)])
		}
		var in strings.Builder
		if format == "csv" {
			in.WriteString("a,b\n")
		}
		for range rng.IntN(400) {
			in.WriteString(words[rng.IntN(len(words))])
		}
		if err := os.WriteFile(path, []byte(in.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		mismatch := []string{"warn", "fail"}[rng.IntN(2)]
		stop, end := rng.IntN(4) == 0, rng.IntN(2) == 0
		read := func(worth int64, c codec) ([]string, error) {
			r := &rig{TB: t, path: path, stop: stop, cfg: Config{Path: path, Format: format, Compression: string(c), CSV: CSVConfig{Header: true, OnMismatch: mismatch}}}
			r.spec = route.Spec{BatchSize: 1 + rng.IntN(20), MaxRecordBytes: 64, ExitOnEmpty: end}
			rd := r.mustOpen(message.Position{})
			defer rd.Close()
			rd.src.worth = worth
			return everything(t, r, rd)
		}
		want, wantErr := read(1<<40, codecNone)
		compare := func(c codec) {
			t.Helper()
			got, gotErr := read(1, c)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, %s %q:\nahead    %q\nin order %q", seed, format, in.String(), got, want)
			}
			if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Fatalf("seed %d, %s %q: ahead %v, in order %v", seed, format, in.String(), gotErr, wantErr)
			}
		}
		compare(codecNone)
		// The same in two compressed members.
		c, cut := codecs[rng.IntN(len(codecs))], rng.IntN(in.Len()+1)
		if err := os.WriteFile(path, pack(t, c, in.String()[:cut], in.String()[cut:]), 0o644); err != nil {
			t.Fatal(err)
		}
		compare(c)
	}
}
