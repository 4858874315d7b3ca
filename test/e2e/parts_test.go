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
	"github.com/mqbridge/mqb/test/fleet/fleettest"
)

// partSteps are the places between any two steps of the part protocol.
var partSteps = []string{
	"run.claimed", "part.staged", "part.sealed", "commit.before-write", "part.intent-committed", "part.before-publish",
	"part.before-link", "part.linked", "part.published", "part.position-committed",
}

// kill -9 between any two steps of the part protocol, ten times in a row, early and
// late: the next run finishes exactly what was promised.
func TestKillBetweenAnyTwoStepsOfAPart(t *testing.T) {
	t.Parallel()
	for _, step := range partSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in, out := fleettest.CSV(t, dir, "in.csv", 1, crashRows), filepath.Join(dir, "out")
			spec := fleettest.Write(t, dir, "spec.yaml", slowly(in, fmt.Sprintf("      file: {path: %q, format: raw, name_by: source_position}", out),
				"shared_storage: true", "roll: {records: 70}", "required_delivery: exactly-once"))
			killed(t, step, []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}, nil)
			fleettest.CheckParts(t, out, crashRows)
			fleettest.NoSpools(t, out)
		})
	}
}

// A second route must not write between the parts of the first.
func TestSecondRouteOnTheSameDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, 1000), filepath.Join(f.Dir, "out")
	fleettest.Apply(t, f, fleettest.Parts("first", in, out))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "first is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	fleettest.CheckParts(t, out, 1000)
	fleettest.Apply(t, f, fleettest.Parts("second", in, out))
	refused(t, f, "second", "first", "existing_parts")
	fleettest.CheckParts(t, out, 1000)
}

// refused waits until the only partition of a route is quarantined with a reason
// that holds the words.
func refused(t *testing.T, f *fleet.Fleet, route string, words ...string) {
	t.Helper()
	var reason string
	fleettest.Must(t, f.Until(t.Context(), time.Minute, route+" is refused", func(l fleet.Leases) bool {
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
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, 1000), filepath.Join(f.Dir, "out")
	spec := fleettest.Parts("r", in, out)
	fleettest.Apply(t, f, spec)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	_, err := f.Ctl(t.Context(), "delete", "r")
	fleettest.Must(t, err)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "r is gone", func(l fleet.Leases) bool { return len(l) == 0 }))
	fleettest.Apply(t, f, spec)
	refused(t, f, "r", "existing_parts")
	fleettest.CheckParts(t, out, 1000)
	// With existing_parts: skip the records that are there count as covered.
	fleettest.Apply(t, f, fleettest.Parts("r", in, out, "existing_parts: skip"))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "r is done again", func(l fleet.Leases) bool {
		return l.Count("done", "") == 1 && l[0].Counters["covered"] == 1000
	}))
	fleettest.CheckParts(t, out, 1000)
}

// A reset of a running route fences the owner; what it wrote stays, and the new
// series is refused until somebody decides about the parts.
func TestCheckpointResetOnARunningRouteLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, 20000), filepath.Join(f.Dir, "out")
	slow := strings.Replace(fleettest.Parts("r", in, out, "batch_size: 100", "roll: {records: 500}"), "    input:\n", "    input:\n      middlewares: [{limiter: {messages_per_second: 2000}}]\n", 1)
	fleettest.Apply(t, f, slow)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "parts are there", func(fleet.Leases) bool {
		parts, _ := filepath.Glob(filepath.Join(out, "part-*"))
		return len(parts) > 3
	}))
	_, err := f.Ctl(t.Context(), "checkpoint", "reset", "r", "--yes")
	fleettest.Must(t, err)
	refused(t, f, "r", "existing_parts")
	fleettest.Apply(t, f, strings.Replace(slow, "    shared_storage: true\n", "    shared_storage: true\n    existing_parts: skip\n", 1))
	fleettest.Must(t, f.Until(t.Context(), 2*time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	fleettest.CheckParts(t, out, 20000)
}

// New files are noticed while the route runs, and a file that grows goes on.
func TestNewAndGrowingFilesAreNoticed(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := filepath.Join(f.Dir, "in"), filepath.Join(f.Dir, "out")
	first := fleettest.CSV(t, in, "a.csv", 1, 100)
	fleettest.Apply(t, f, fleettest.Parts("r", filepath.Join(in, "*.csv"), out, "roll: {age: 200ms}"))
	done := func(n int) {
		t.Helper()
		fleettest.Must(t, f.Until(t.Context(), time.Minute, "all is done", func(l fleet.Leases) bool { return l.Count("done", "") == n }))
	}
	done(1)
	fleettest.CSV(t, in, "b.csv", 101, 100)
	done(2)
	file, err := os.OpenFile(first, os.O_APPEND|os.O_WRONLY, 0)
	fleettest.Must(t, err)
	_, err = file.WriteString("201,\"grown\"\n202,\"half")
	fleettest.Must(t, err)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		r, err := checker.Parts(out, 201)
		if err == nil && !r.OK() {
			err = errors.New(r.String())
		}
		return err
	}))
	_, err = file.WriteString(" a line\"\n")
	fleettest.Must(t, errors.Join(err, file.Close()))
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		r, err := checker.Parts(out, 202)
		if err == nil && !r.OK() {
			err = errors.New(r.String())
		}
		return err
	}))
}
