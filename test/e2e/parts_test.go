package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
)

// partsSpec copies CSV files to parts. Extra lines go below the route.
func partsSpec(name, in, out string, extra ...string) string {
	return fmt.Sprintf(`routes:
  %s:
    input:
      file: {path: "%s", format: csv}
    output:
      file: {path: "%s", format: json, name_by: source_position}
    shared_storage: true
%s`, name, in, out, indent(extra))
}

func indent(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("    " + l + "\n")
	}
	return b.String()
}

func checkParts(t *testing.T, dir string, n int64) {
	t.Helper()
	r, err := checker.Parts(dir, n)
	must(t, err)
	if !r.OK() {
		t.Errorf("%s: %s", dir, r)
	}
}

// partSteps are the places between any two steps of the part protocol.
var partSteps = []string{
	"run.claimed", "part.staged", "part.sealed", "commit.before-write", "part.intent-committed", "part.before-publish",
	"part.before-link", "part.linked", "part.published", "part.position-committed",
}

// kill -9 between any two steps of the part protocol, in the first part and in a
// later one: the next run finishes exactly what was promised.
func TestKillBetweenAnyTwoStepsOfAPart(t *testing.T) {
	t.Parallel()
	bin := build(t, withHooks)
	for _, step := range partSteps {
		for _, pass := range []int{1, 3} {
			if step == "run.claimed" && pass > 1 {
				continue // it is passed once a run
			}
			t.Run(fmt.Sprintf("%s@%d", step, pass), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				in := csvFile(t, dir, "in.csv", 1, 5000)
				out := filepath.Join(dir, "out")
				spec := write(t, dir, "spec.yaml", partsSpec("r", in, out, "batch_size: 100", "roll: {records: 700}"))
				run := []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}
				env, fired := hooked(t, fmt.Sprintf("%s@%d=kill", step, pass))
				if _, err := runWith(ctxOf(t), env, filepath.Join(bin, "mqbctl"), run...); err == nil {
					t.Fatal("the run was not killed")
				}
				if _, err := os.Stat(fired); err != nil {
					t.Fatal("the hook did not fire: ", err)
				}
				if _, err := fleet.Run(ctxOf(t), filepath.Join(bin, "mqbctl"), run...); err != nil {
					t.Fatal(err)
				}
				checkParts(t, out, 5000)
				noSpools(t, out)
			})
		}
	}
}

func noSpools(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".spool*"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("spool files left: %v", left)
	}
}

// A second route must not write between the parts of the first.
func TestSecondRouteOnTheSameDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, withHooks)
	startAll(t, f, "n1")
	in, out := csvFile(t, f.Dir, "in.csv", 1, 1000), filepath.Join(f.Dir, "out")
	apply(t, f, partsSpec("first", in, out))
	must(t, f.Until(ctxOf(t), time.Minute, "first is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	checkParts(t, out, 1000)
	apply(t, f, partsSpec("second", in, out))
	refused(t, f, "second", "first", "existing_parts")
	checkParts(t, out, 1000)
}

// refused waits until the only partition of a route is quarantined with a reason
// that holds the words.
func refused(t *testing.T, f *fleet.Fleet, route string, words ...string) {
	t.Helper()
	var reason string
	must(t, f.Until(ctxOf(t), 30*time.Second, route+" is refused", func(l fleet.Leases) bool {
		for _, x := range l {
			if x.Route == route && x.State == "quarantined" {
				reason = x.Reason
				return true
			}
		}
		return false
	}))
	for _, w := range words {
		if !strings.Contains(reason, w) {
			t.Errorf("the reason does not say %q: %s", w, reason)
		}
	}
}

// A deleted and re-created route has a new uid: it must not go on in the parts
// of the old one, and must not write them again either.
func TestDeletedAndRecreatedRouteDoublesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, withHooks)
	startAll(t, f, "n1")
	in, out := csvFile(t, f.Dir, "in.csv", 1, 1000), filepath.Join(f.Dir, "out")
	spec := partsSpec("r", in, out)
	apply(t, f, spec)
	must(t, f.Until(ctxOf(t), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	_, err := f.Ctl(ctxOf(t), "delete", "r")
	must(t, err)
	must(t, f.Until(ctxOf(t), time.Minute, "r is gone", func(l fleet.Leases) bool { return len(l) == 0 }))
	apply(t, f, spec)
	refused(t, f, "r", "existing_parts")
	checkParts(t, out, 1000)
	// With existing_parts: skip the records that are there count as covered.
	apply(t, f, partsSpec("r", in, out, "existing_parts: skip"))
	must(t, f.Until(ctxOf(t), time.Minute, "r is done again", func(l fleet.Leases) bool {
		return l.Count("done", "") == 1 && l[0].Counters["covered"] == 1000
	}))
	checkParts(t, out, 1000)
}

// A reset of a running route fences the owner; what it wrote stays, and the new
// series is refused until somebody decides about the parts.
func TestCheckpointResetOnARunningRouteLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, withHooks)
	startAll(t, f, "n1")
	in, out := csvFile(t, f.Dir, "in.csv", 1, 20000), filepath.Join(f.Dir, "out")
	slow := strings.Replace(partsSpec("r", in, out, "batch_size: 100", "roll: {records: 500}"), "    input:\n", "    input:\n      middlewares: [{limiter: {messages_per_second: 2000}}]\n", 1)
	apply(t, f, slow)
	must(t, f.Until(ctxOf(t), time.Minute, "parts are there", func(fleet.Leases) bool {
		parts, _ := filepath.Glob(filepath.Join(out, "part-*"))
		return len(parts) > 3
	}))
	_, err := f.Ctl(ctxOf(t), "checkpoint", "reset", "r", "--yes")
	must(t, err)
	refused(t, f, "r", "existing_parts")
	apply(t, f, strings.Replace(slow, "    shared_storage: true\n", "    shared_storage: true\n    existing_parts: skip\n", 1))
	must(t, f.Until(ctxOf(t), 2*time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	checkParts(t, out, 20000)
}

// New files are noticed while the route runs, and a file that grows goes on.
func TestNewAndGrowingFilesAreNoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, withHooks)
	startAll(t, f, "n1")
	in, out := filepath.Join(f.Dir, "in"), filepath.Join(f.Dir, "out")
	first := csvFile(t, in, "a.csv", 1, 100)
	apply(t, f, partsSpec("r", filepath.Join(in, "*.csv"), out, "roll: {age: 200ms}"))
	done := func(n int) {
		t.Helper()
		must(t, f.Until(ctxOf(t), time.Minute, "all is done", func(l fleet.Leases) bool { return l.Count("done", "") == n }))
	}
	done(1)
	csvFile(t, in, "b.csv", 101, 100)
	done(2)
	file, err := os.OpenFile(first, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString("201,\"grown\"\n202,\"half")
	must(t, err)
	must(t, fleet.Eventually(ctxOf(t), 30*time.Second, func() error {
		r, err := checker.Parts(out, 201)
		if err == nil && !r.OK() {
			err = errors.New(r.String())
		}
		return err
	}))
	_, err = file.WriteString(" a line\"\n")
	must(t, errors.Join(err, file.Close()))
	must(t, fleet.Eventually(ctxOf(t), 30*time.Second, func() error {
		r, err := checker.Parts(out, 202)
		if err == nil && !r.OK() {
			err = errors.New(r.String())
		}
		return err
	}))
}
