package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
)

// A copy that forgot --resume used to throw the position of the one before it away,
// was then refused by the file, and left nothing to go on from.
func TestACopyWithoutResumeKeepsThePositionOfOneThatWasCutShort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const n = 40_000 // at the limiter's pace it runs for seconds when it is cut short
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

// Where a copy will go on can be asked for in the words of the copy.
func TestCheckpointShowFindsTheStateOfACopyByItsSourceAndDestination(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := csvFile(t, dir, 10), filepath.Join(dir, "out.jsonl")
	words := []string{in, out, "--filter", "id != 3", "--data-dir", filepath.Join(dir, "state")}
	show := append([]string{"checkpoint", "show", "-o", "json"}, words...)
	if r := mqbctl(t, "", show...); r.code != 1 || !strings.Contains(r.err, "no copy of this SRC, DST and --filter") {
		t.Errorf("before: %+v", r)
	}
	if r := mqbctl(t, "", append([]string{"copy", "--limit", "7", "--resume"}, words...)...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	r := mqbctl(t, "", show...)
	var v api.Checkpoints
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || len(v.Checkpoints) != 1 || v.Checkpoints[0].Position != "7" {
		t.Errorf("%v: %+v", err, r)
	}
	if r := mqbctl(t, "", "checkpoint", "show", in, out, "--data-dir", filepath.Join(dir, "state")); r.code != 1 {
		t.Errorf("without the filter it is another copy: %+v", r)
	}
}
