package file

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/message"
)

// A batch comes back to its reader with the arena that the route left it, which may
// be a larger one than it took room for: what is read into it stays within that room.
func TestAnArenaThatAMiddlewareMadeLargerIsNotFilledBeyondItsRoom(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"normal", "raw", "csv"} {
		var in strings.Builder
		for i := range 4000 {
			if format == "csv" && i == 0 {
				in.WriteString("a\n")
			}
			payload := strings.Repeat("x", 1000)
			if format == "normal" {
				payload = fmt.Sprintf(`{"message_id":"%d","payload":"%s"}`, i, payload)
			}
			in.WriteString(payload + "\n")
		}
		r := newRig(t, Config{Format: format, CSV: CSVConfig{Header: true}}, in.String())
		r.spec.BatchSize = 4000
		rd := r.mustOpen(message.Position{})
		rd.src.worth = 1 << 40 // no reading ahead, which sizes its blocks itself
		n := 0
		for n < 4000 {
			b, err := rd.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n += b.Len()
			if b.Bytes() > 2*blockBytes {
				t.Errorf("%s: a batch of %d bytes", format, b.Bytes())
			}
			b.Arena = make([]byte, 0, 3*blockBytes)
			b.Release()
		}
	}
}
