package file

import (
	"errors"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// Each open reader has buffers of its own. One large record in each of many files
// must not leave all of them as large as it was (invariant 8).
func TestALargeRecordDoesNotLeaveItsBufferToTheReader(t *testing.T) {
	t.Parallel()
	text := "a\n" + strings.Repeat("x", 6<<20) + "\n" + strings.Repeat("small\n", 200_000)
	for _, format := range []string{"raw", "normal", "csv"} {
		for _, c := range []codec{codecNone, codecZstd} {
			content := text
			if c != codecNone {
				content = string(pack(t, c, text))
			}
			r := newRig(t, Config{Format: format, Compression: string(c), CSV: CSVConfig{Header: true}}, content)
			rd := r.mustOpen(message.Position{})
			if _, _, err := drain(t, rd); !errors.Is(err, connectors.ErrEndOfInput) {
				t.Fatal(err)
			}
			held := 0
			switch f := rd.filler.(type) {
			case *csvRecords:
				held = cap(f.in)
			case *lines:
				held = cap(f.scratch)
			}
			if s, ok := rd.content.(*stream); ok {
				s.mu.Lock()
				held += cap(s.buf)
				s.mu.Unlock()
			}
			if held > 2<<20 {
				t.Errorf("%s, %s: %d bytes are held behind the large record", format, c, held)
			}
		}
	}
}

func BenchmarkLargeCSVRecord(b *testing.B) {
	r := newRig(b, csvFile, "a,b\n1,"+strings.Repeat("x", 15<<20)+"\n1,2\n")
	b.SetBytes(15 << 20)
	b.ReportAllocs()
	for b.Loop() {
		rd := r.mustOpen(message.Position{})
		if _, _, err := drain(b, rd); !errors.Is(err, connectors.ErrEndOfInput) {
			b.Fatal(err)
		}
		rd.Close()
	}
}
