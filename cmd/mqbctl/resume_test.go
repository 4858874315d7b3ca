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

// What is removed behind a copy is its own state: --data-dir orders.csv removed the file.
func TestADataDirectoryThatWasThereBeforeTheCopyIsThereAfterIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := csvFile(t, dir, 3)
	if r := mqbctl(t, "", "copy", in, "null:", "--data-dir", in); r.code != 2 || !strings.Contains(r.err, "--data-dir") {
		t.Errorf("%+v", r)
	}
	if n := bytes.Count(wholeFile(t, in), []byte("\n")); n != 4 {
		t.Fatalf("the file has %d lines", n)
	}
	empty := t.TempDir()
	if r := mqbctl(t, "", "copy", in, "null:", "--data-dir", empty); r.code != 0 {
		t.Errorf("%+v", r)
	}
	list, err := os.ReadDir(empty)
	if err != nil || len(list) > 0 {
		t.Errorf("%v %v", list, err)
	}
}
