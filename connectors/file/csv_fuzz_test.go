package file

import (
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

// record is what a reader made of one record of the file.
type record struct {
	ordinal int64
	payload string // or the reason it was refused for
}

// FuzzCSVIsTheSameHoweverItIsRead reads any bytes as csv, once in one go and once
// in small blocks and batches with a new reader after each batch, and compares:
// records, numbers, bad records and the final position.
func FuzzCSVIsTheSameHoweverItIsRead(f *testing.F) {
	for _, s := range []string{
		"a,b\n1,2\n3,4\n", "a\n\"1\n\n2\"\n\n3", "a,b\n1,\"open\n2,3\n", "a\n1\"2\n3\n", "a\n\"1\"x\n3\n", "\xef\xbb\xbfa\r\n1\r\n",
		"a\n" + strings.Repeat("long", 20) + "\nb\n", "a\n\"" + strings.Repeat("q\n", 30) + "\"\nb\n", "a,b\n,\n\"\",\"\n", "a\n\"\"\"\r\n\"",
	} {
		for _, block := range []uint8{3, 16} {
			f.Add([]byte(s), block, true)
			f.Add([]byte(s), block, false)
		}
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, in []byte, block uint8, end bool) {
		path := filepath.Join(dir, fmt.Sprintf("%x", time.Now().UnixNano()))
		defer os.Remove(path)
		must(t, os.WriteFile(path, in, 0o644))
		read := func(batch, block int, reopen bool) (out []record, at message.Position, last error) {
			r := &rig{TB: t, path: path, cfg: Config{Path: path, Format: "csv", CSV: CSVConfig{Header: true, OnMismatch: "fail"}}}
			r.spec = route.Spec{BatchSize: batch, MaxRecordBytes: 32, ExitOnEmpty: end}
			var rd *reader
			for {
				if rd == nil {
					rd = r.mustOpen(at)
					rd.filler.(*csvRecords).in = make([]byte, block)
				}
				r.bad = nil
				b, err := rd.Read(t.Context())
				if err != nil {
					rd.Close()
					return out, at, err
				}
				var got []record
				for i := range b.Len() {
					got = append(got, record{b.Msg(i).Ordinal, string(b.Payload(i))})
				}
				for _, bad := range r.bad {
					got = append(got, record{bad.Ordinal, bad.Place + " " + bad.Err.Error()})
				}
				slices.SortFunc(got, func(a, b record) int { return int(a.ordinal - b.ordinal) })
				if b.Read != len(got) {
					t.Fatalf("%q: read %d, got %d", in, b.Read, len(got))
				}
				out, at = append(out, got...), b.End
				b.Release()
				if reopen {
					rd.Close()
					rd = nil
				}
			}
		}
		one, endOne, errOne := read(1000, blockBytes, false)
		many, endMany, errMany := read(1+int(block%3), 1+int(block), true)
		if !slices.Equal(one, many) {
			t.Fatalf("%q:\nin one go %+v\nin pieces %+v", in, one, many)
		}
		for i, r := range one {
			if r.ordinal != int64(i) {
				t.Fatalf("%q: record %d has the number %d", in, i, r.ordinal)
			}
		}
		if endOne.Sort != endMany.Sort || errors.Is(errOne, connectors.ErrEndOfInput) != errors.Is(errMany, connectors.ErrEndOfInput) {
			t.Fatalf("%q: ends at %q (%v) or %q (%v)", in, endOne.Sort, errOne, endMany.Sort, errMany)
		}
	})
}
