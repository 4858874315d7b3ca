package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A copy that forgot --resume used to throw the position of the one before it away,
// was then refused by the file, and left nothing to go on from.
func TestACopyWithoutResumeKeepsThePositionOfOneThatWasCutShort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const n = 20_000
	in, out := csvFile(t, dir, n), filepath.Join(dir, "out.jsonl")
	cutShort(t, dir, in, out)
	args := []string{"copy", in + "|limiter?messages_per_second=8000", out, "--data-dir", filepath.Join(dir, "state")}
	for range 2 {
		r := mqbctl(t, "", args...)
		if r.code != 5 || !strings.Contains(r.err, "--resume goes on where it ended") || !strings.Contains(r.err, "--no-resume") {
			t.Fatalf("%+v", r)
		}
	}
	if r := mqbctl(t, "", append(args, "--resume")...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := bytes.Count(wholeFile(t, out), []byte("\n")); got != n {
		t.Errorf("%d lines", got)
	}
	// What it would write again is asked for by name.
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if r := mqbctl(t, "", append(args, "--no-resume")...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := bytes.Count(wholeFile(t, out), []byte("\n")); got != n {
		t.Errorf("%d lines anew", got)
	}
}
