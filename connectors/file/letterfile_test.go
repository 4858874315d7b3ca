package file

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// The output holds the file's lock for all its life: letters that waited for it
// would wait for their own run.
func TestDeadLettersIntoTheFileOfTheOutputAreAnErrorAndNoDeadlock(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "out.jsonl")}
	out := appending(t, cfg, ordersClaim(1))
	put(t, out, "a")
	s, err := newSink(&cfg, &route.Spec{}, connectors.Env{})
	must(t, err)
	claim := ordersClaim(1)
	claim.Leg = connectors.LegDeadLetters
	p, err := s.Prepare(t.Context(), claim.Partition)
	must(t, err)
	w, err := p.Open(t.Context(), claim)
	must(t, err)
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := w.(connectors.PlainWriter).Write(ctx, batchOf("bad"), 0, 1); connectors.Classify(err) != connectors.ClassPermanent {
		t.Errorf("%v", err)
	}
}
