package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
)

// member is a row of mqbctl nodes.
type member struct {
	Name, State     string
	Voter, Excluded bool
	Settles         time.Time
}

// members asks for the nodes.
func members(t *testing.T, f *fleet.Fleet) map[string]member {
	t.Helper()
	var v struct{ Nodes []member }
	fleettest.Must(t, json.Unmarshal([]byte(mqbctl(t, f, "nodes", "-o", "json")), &v))
	by := map[string]member{}
	for _, m := range v.Nodes {
		by[m.Name] = m
	}
	return by
}

// mqbctl runs a command that has to work.
func mqbctl(t *testing.T, f *fleet.Fleet, args ...string) string {
	t.Helper()
	out, err := f.Ctl(t.Context(), args...)
	fleettest.Must(t, err)
	return string(out)
}

// refuses runs a command that has to be refused (exit code 5) with these words.
func refuses(t *testing.T, f *fleet.Fleet, words string, args ...string) {
	t.Helper()
	_, err := f.Ctl(t.Context(), args...)
	var exit *fleet.ExitError
	if !errors.As(err, &exit) || exit.Code != 5 || !strings.Contains(exit.Stderr, words) {
		t.Errorf("%v: %v, want a refusal that says %q", args, err, words)
	}
}

// csvFiles writes files of rows ids each, one after the other, and returns their
// directory.
func csvFiles(t *testing.T, f *fleet.Fleet, first, files, rows int) string {
	t.Helper()
	dir := filepath.Join(f.Dir, "in")
	for i := first; i < first+files; i++ {
		fleettest.CSV(t, dir, fmt.Sprintf("%d.csv", i), 1+i*rows, rows)
	}
	return dir
}

// on counts the partitions that run on a node.
func on(l fleet.Leases, node string) int { return l.Count("running", node) + l.Count("done", node) }

// Labels, exclusion, moves, pause: what an operator orders is done, what cannot
// be done is refused with the reason, and not a record is lost or doubled by it.
func TestOperatorPlacesExcludesMovesAndPauses(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	for _, n := range [][2]string{{"n1", "a"}, {"n2", "a"}, {"n3", "b"}} {
		fleettest.Must(t, f.Start(n[0], "MQBD_LABEL=rack=1,zone="+n[1]))
	}
	fleettest.Members(t, f, 3)
	const rows = 3000
	in, out := filepath.Join(csvFiles(t, f, 0, 4, rows), "*.csv"), filepath.Join(f.Dir, "out")
	route := func(placement string) string {
		return fleettest.Paced(fleettest.Parts("r", in, out, "batch_size: 20", "roll: {age: 200ms}", "placement: "+placement), 200)
	}
	fleettest.Apply(t, f, route("{labels: {zone: a}}"))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "zone a has it all", func(l fleet.Leases) bool { return on(l, "n1") == 2 && on(l, "n2") == 2 }))

	// Excluded, n1 keeps its two and gets none of the two that come.
	mqbctl(t, f, "exclude", "n1")
	csvFiles(t, f, 4, 2, rows)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "n2 has the new ones", func(l fleet.Leases) bool { return on(l, "n1") == 2 && on(l, "n2") == 4 }))
	if m := members(t, f)["n1"]; !m.Excluded || m.State != "active" {
		t.Errorf("n1 is excluded and shown as %+v", m)
	}
	l, err := f.Leases(t.Context())
	fleettest.Must(t, err)
	var p string
	for _, x := range l {
		if x.Owner == "n2" {
			p = "r/" + x.Partition
		}
	}
	refuses(t, f, "node n1 is excluded", "move", p, "--to", "n1")
	refuses(t, f, "has the label zone=b, not a", "move", p, "--to", "n3")
	mqbctl(t, f, "include", "n1")
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "it is even again", func(l fleet.Leases) bool { return on(l, "n1") == 3 && on(l, "n2") == 3 }))

	// A move stays, though the loads were even before.
	l, err = f.Leases(t.Context())
	fleettest.Must(t, err)
	for _, x := range l {
		if x.Owner == "n2" {
			p = "r/" + x.Partition
		}
	}
	mqbctl(t, f, "move", p, "--to", "n1")
	if table := mqbctl(t, f, "leases"); !strings.Contains(table, "moved to n1 by an operator: "+p) {
		t.Errorf("the pin is not shown:\n%s", table)
	}
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "another one made room", func(l fleet.Leases) bool { return on(l, "n1") == 3 && on(l, "n2") == 3 }))
	l, err = f.Leases(t.Context())
	fleettest.Must(t, err)
	for _, x := range l {
		if "r/"+x.Partition == p && x.Owner != "n1" {
			t.Errorf("%s was moved to n1 and is with %s", p, x.Owner)
		}
	}
	mqbctl(t, f, "move", p, "--release")

	// Paused, nobody holds anything, and the positions are still known.
	mqbctl(t, f, "pause", "r")
	l, err = f.Leases(t.Context())
	fleettest.Must(t, err)
	if l.Count("paused", "") != 6 {
		t.Errorf("paused: %v", l)
	}
	var before, after struct {
		Checkpoints []struct{ Partition, Position string }
	}
	fleettest.Must(t, json.Unmarshal([]byte(mqbctl(t, f, "checkpoint", "show", "r", "-o", "json")), &before))
	parts := len(glob(t, out))
	mqbctl(t, f, "resume", "r")
	fleettest.AwaitParts(t, out, parts+6)
	fleettest.Must(t, json.Unmarshal([]byte(mqbctl(t, f, "checkpoint", "show", "r", "-o", "json")), &after))
	for i, c := range before.Checkpoints {
		if c.Position == "0" || after.Checkpoints[i].Position < c.Position && len(after.Checkpoints[i].Position) <= len(c.Position) {
			t.Errorf("%s was paused at %s and is at %s", c.Partition, c.Position, after.Checkpoints[i].Position)
		}
	}

	// No node has such a label: nobody holds anything, and each row says why.
	fleettest.Apply(t, f, route("{labels: {zone: c}}"))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "nobody may hold it", func(l fleet.Leases) bool {
		n := 0
		for _, x := range l {
			if x.State == "unassigned" && strings.Contains(x.Reason, "n3 has the label zone=b, not c") {
				n++
			}
		}
		return n == 6
	}))
	fleettest.Apply(t, f, strings.Replace(route("{exclude: [n1]}"), "200}", "1000000}", 1))
	fleettest.Done(t, f, 6, time.Minute)
	if l, err := f.Leases(t.Context()); err != nil || on(l, "n1") != 0 {
		t.Errorf("n1 is excluded by the route and holds %v %v", l, err)
	}
	fleettest.CheckParts(t, out, 6*rows)
}

func glob(t *testing.T, dir string) []string {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "part-*"))
	fleettest.Must(t, err)
	return parts
}

// A voter that lost its disk: others take its partitions over, it is removed,
// and comes back under its name with an empty data directory.
func TestNodeThatLostItsDiskIsRemovedAndJoinsAnew(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1", "n2", "n3")
	const rows = 4000
	in, out := filepath.Join(csvFiles(t, f, 0, 6, rows), "*.csv"), filepath.Join(f.Dir, "out")
	spec := fleettest.Paced(fleettest.Parts("r", in, out, "batch_size: 20", "roll: {age: 300ms}"), 200)
	fleettest.Apply(t, f, spec)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "all run", func(l fleet.Leases) bool { return on(l, "n3") == 2 }))
	refuses(t, f, "node n3 lives", "nodes", "remove", "n3", "--yes")
	f.Kill("n3")
	fleettest.Must(t, os.RemoveAll(filepath.Join(f.Dir, "n3")))
	fleettest.Must(t, f.MovedFrom(t.Context(), "n3", 6))
	if m := members(t, f)["n3"]; m.State != "gone" || !m.Voter {
		t.Errorf("a dead voter is shown as %+v", m)
	}
	mqbctl(t, f, "nodes", "remove", "n3", "--yes")
	if m, there := members(t, f)["n3"]; there {
		t.Errorf("removed, and still shown: %+v", m)
	}
	if _, err := f.Ctl(t.Context(), "nodes", "remove", "n3", "--yes"); err == nil {
		t.Error("it was removed twice")
	}
	fleettest.Must(t, f.Start("n3"))
	fleettest.Members(t, f, 3)
	if m := members(t, f)["n3"]; m.Settles.IsZero() {
		t.Errorf("it has just come back and is shown as %+v", m)
	}
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "it gets its share again", func(l fleet.Leases) bool { return on(l, "n3") == 2 }))
	// It votes again: without n1 there is a quorum of n2 and n3.
	f.Kill("n1")
	fleettest.Must(t, f.MovedFrom(t.Context(), "n1", 6))
	fleettest.Apply(t, f, strings.Replace(spec, "200}", "1000000}", 1))
	fleettest.Done(t, f, 6, time.Minute)
	fleettest.CheckParts(t, out, 6*rows)
}

// A run that ignores its cancelled context: its node says so, the ownership is
// taken away, another node finishes, and every record is there once.
func TestWedgedPartitionIsTakenAwayAndFinishedElsewhere(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	env, fired := fleettest.Hooked(t, "part.before-publish@3=hang")
	fleettest.Must(t, f.Start("n1", env...))
	const rows = 2000
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, rows), filepath.Join(f.Dir, "out")
	fleettest.Apply(t, f, fleettest.Parts("r", in, out, "batch_size: 50", "roll: {records: 200}"))
	fleettest.AwaitFile(t, fired, time.Minute)
	fleettest.Must(t, f.Start("n2"))
	fleettest.Must(t, f.Start("n3"))
	fleettest.Members(t, f, 3)
	mqbctl(t, f, "drain", "n1", "--no-wait")
	fleettest.AwaitLog(t, f, "n1", "the partition ignores its cancellation", time.Minute)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "another node finished it", func(l fleet.Leases) bool {
		return l.Count("done", "") == 1 && l.Count("", "n1") == 0
	}))
	if log := f.Log("n2") + f.Log("n3"); !strings.Contains(log, "ownership taken away") {
		t.Error("nobody took the ownership away")
	}
	f.Kill("n1") // it could not stop in order
	fleettest.CheckParts(t, out, rows)
}

// What cannot run is shown with its last error and the time of its next try.
func TestQuarantinedPartitionShowsItsErrorAndNextTry(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, 10), filepath.Join(f.Dir, "out")
	fleettest.Apply(t, f, fleettest.Parts("first", in, out))
	fleettest.Done(t, f, 1, time.Minute)
	fleettest.Apply(t, f, fleettest.Parts("second", in, out))
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		var v struct {
			Leases []struct {
				Route, State, Reason string
				NextTry              time.Time `json:"next_try"`
			}
		}
		if err := json.Unmarshal([]byte(mqbctl(t, f, "leases", "second", "-o", "json")), &v); err != nil {
			return err
		}
		for _, l := range v.Leases {
			if l.State == "quarantined" && l.Reason != "" && l.NextTry.After(time.Now()) {
				return nil
			}
		}
		return fmt.Errorf("leases %+v", v.Leases)
	}))
	if table := mqbctl(t, f, "leases", "second"); !strings.Contains(table, ": quarantined: ") || !strings.Contains(table, "(next try in ") {
		t.Errorf("the table does not say it:\n%s", table)
	}
}
