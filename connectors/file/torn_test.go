package file

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// A compressed file that ends inside a member is being written still, or lacks
// something: it is not a whole file, whatever was read of it.
func TestFileThatEndsInsideAMemberIsNotDeleted(t *testing.T) {
	t.Parallel()
	for _, c := range codecs {
		var buf bytes.Buffer
		z, err := newCompressor(c)
		if err != nil {
			t.Fatal(err)
		}
		z.Reset(&buf)
		if _, err := z.Write([]byte("a\nb\n")); err != nil {
			t.Fatal(err)
		}
		if err := z.(interface{ Flush() error }).Flush(); err != nil {
			t.Fatal(err)
		}
		r := newRig(t, Config{Format: "raw", Delete: true, Compression: string(c)}, buf.String())
		rd := r.mustOpen(message.Position{})
		msgs, at, err := drain(t, rd)
		if !errors.Is(err, connectors.ErrEndOfInput) {
			t.Fatal(c, err)
		}
		if len(msgs) != 2 {
			t.Errorf("%s: read %d", c, len(msgs))
		}
		if err := rd.Settle(t.Context(), at); err != nil || !there(t, r.path) {
			t.Errorf("%s: deleted (%v)", c, err)
		}
	}
}
