package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
)

// frozenOwner runs one paced partition on the node that freezes itself at a
// hook, waits until another node runs it, and returns both names. The route
// reads rows ids from one CSV file.
func frozenOwner(t *testing.T, tags, hook string, rows int, env ...string) (f *fleet.Fleet, out, zombie, successor string) {
	t.Helper()
	f = fleettest.New(t, tags)
	fleettest.Must(t, f.Start("n1"))
	fleettest.Must(t, f.Start("n2"))
	zombie = "n3"
	hookEnv, fired := fleettest.Hooked(t, hook+"=stop")
	fleettest.Must(t, f.Start(zombie, append(hookEnv, env...)...))
	fleettest.Must(t, f.Voters(t.Context(), 3))
	in := fleettest.CSV(t, f.Dir, "in.csv", 1, rows)
	out = filepath.Join(f.Dir, "out")
	// Only the zombie-to-be may take the partition first.
	for _, n := range []string{"n1", "n2"} {
		_, err := f.Ctl(t.Context(), "drain", n)
		fleettest.Must(t, err)
	}
	fleettest.Apply(t, f, strings.Replace(fleettest.Parts("r", in, out, "batch_size: 50", "roll: {age: 300ms}"),
		"    input:\n", "    input:\n      middlewares: [{limiter: {messages_per_second: 500}}]\n", 1))
	fleettest.AwaitFile(t, fired, time.Minute)
	f.MarkFrozen(zombie)
	for _, n := range []string{"n1", "n2"} {
		_, err := f.Ctl(t.Context(), "undrain", n)
		fleettest.Must(t, err)
	}
	fleettest.Must(t, f.MovedFrom(t.Context(), zombie, 1))
	l, err := f.Leases(t.Context())
	fleettest.Must(t, err)
	return f, out, zombie, l[0].Owner
}

// The owner stops between the check of its gate and its write, with the gate
// switched off so that nothing but the store can stop it. Its successor claims
// and writes. When it wakes, its write reaches the store and is refused there.
func TestWriteOfAZombieFrozenBetweenCheckAndWriteIsRefusedByTheStore(t *testing.T) {
	t.Parallel()
	f, out, zombie, successor := frozenOwner(t, fleettest.Hooks, "commit.before-write@4", 4000, "MQB_HOOK_OFF=gate")
	before := fleettest.RecordOf(t, f, "r")
	f.Thaw(zombie)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		if log := f.Log(zombie); !strings.Contains(log, "by=fence") {
			return fmt.Errorf("the zombie was not fenced")
		}
		return nil
	}))
	now := fleettest.RecordOf(t, f, "r")
	if now.Epoch != before.Epoch || now.Version < before.Version {
		t.Errorf("the record went from %+v to %+v: the zombie's write landed", before, now)
	}
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", successor) == 1 }))
	fleettest.CheckParts(t, out, 4000)
	fleettest.NoSpools(t, out)
	fleettest.NoNoise(t, f, zombie)
}

// The same with the gate on: the zombie stops at its gate before it writes.
func TestWokenNodeStopsAtItsGate(t *testing.T) {
	t.Parallel()
	f, out, zombie, _ := frozenOwner(t, fleettest.Hooks, "part.staged@4", 4000)
	f.Thaw(zombie)
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		if log := f.Log(zombie); !strings.Contains(log, "by=gate") {
			return fmt.Errorf("the zombie did not stop at its gate")
		}
		return nil
	}))
	fleettest.CheckParts(t, out, 4000)
	fleettest.NoSpools(t, out)
	fleettest.NoNoise(t, f, zombie)
}

// The test of the tests: without the comparisons of epoch, run and version and
// without the gate, a zombie that froze after its intent and before its commit
// doubles rows, and the checker sees it.
func TestWithoutTheFenceAZombieDoublesRows(t *testing.T) {
	t.Parallel()
	f, out, zombie, _ := frozenOwner(t, fleettest.NoFence, "part.intent-committed@2", 4000)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		parts, _ := filepath.Glob(filepath.Join(out, "part-*"))
		if len(parts) < 6 {
			return fmt.Errorf("%d parts", len(parts))
		}
		return nil
	}))
	f.Thaw(zombie)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		r, err := checker.Parts(out, 4000)
		if err == nil && r.Doubled == 0 {
			err = fmt.Errorf("nothing doubled yet: %s", r)
		}
		return err
	}))
}
