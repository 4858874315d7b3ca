package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
)

// frozenOwner runs one paced partition on the node that freezes itself at a
// hook, waits until another node runs it, and returns both names. The route
// reads rows ids from one CSV file.
func frozenOwner(t *testing.T, tags, hook string, rows int, env ...string) (f *fleet.Fleet, out, zombie, successor string) {
	t.Helper()
	f = newFleet(t, tags)
	must(t, f.Start("n1"))
	must(t, f.Start("n2"))
	zombie = "n3"
	hookEnv, fired := hooked(t, hook+"=stop")
	must(t, f.Start(zombie, append(hookEnv, env...)...))
	must(t, f.Voters(ctxOf(t), 3))
	in := csvFile(t, f.Dir, "in.csv", 1, rows)
	out = filepath.Join(f.Dir, "out")
	// Only the zombie-to-be may take the partition first.
	for _, n := range []string{"n1", "n2"} {
		_, err := f.Ctl(ctxOf(t), "drain", n)
		must(t, err)
	}
	apply(t, f, strings.Replace(partsSpec("r", in, out, "batch_size: 50", "roll: {age: 300ms}"),
		"    input:\n", "    input:\n      middlewares: [{limiter: {messages_per_second: 500}}]\n", 1))
	awaitFile(t, fired, time.Minute)
	f.MarkFrozen(zombie)
	for _, n := range []string{"n1", "n2"} {
		_, err := f.Ctl(ctxOf(t), "undrain", n)
		must(t, err)
	}
	must(t, f.MovedFrom(ctxOf(t), zombie, 1))
	l, err := f.Leases(ctxOf(t))
	must(t, err)
	return f, out, zombie, l[0].Owner
}

// record is the checkpoint record of the only partition.
func record(t *testing.T, f *fleet.Fleet, route string) (epoch, version uint64, position string) {
	t.Helper()
	out, err := f.Ctl(ctxOf(t), "checkpoint", "show", route, "-o", "json")
	must(t, err)
	var v struct {
		Checkpoints []struct {
			Epoch, Version uint64
			Position       string
		}
	}
	must(t, json.Unmarshal(out, &v))
	if len(v.Checkpoints) != 1 {
		t.Fatalf("want one record: %s", out)
	}
	return v.Checkpoints[0].Epoch, v.Checkpoints[0].Version, v.Checkpoints[0].Position
}

// The owner stops between the check of its gate and its write, with the gate
// switched off so that nothing but the store can stop it. Its successor claims
// and writes. When it wakes, its write reaches the store and is refused there.
func TestWriteOfAZombieFrozenBetweenCheckAndWriteIsRefusedByTheStore(t *testing.T) {
	t.Parallel()
	f, out, zombie, successor := frozenOwner(t, withHooks, "commit.before-write@4", 4000, "MQB_HOOK_OFF=gate")
	epoch, version, _ := record(t, f, "r")
	f.Thaw(zombie)
	must(t, fleet.Eventually(ctxOf(t), 30*time.Second, func() error {
		if log := f.Log(zombie); !strings.Contains(log, "by=fence") {
			return fmt.Errorf("the zombie was not fenced")
		}
		return nil
	}))
	now, later, _ := record(t, f, "r")
	if now != epoch || later < version {
		t.Errorf("the record went from epoch %d version %d to epoch %d version %d: the zombie's write landed", epoch, version, now, later)
	}
	must(t, f.Until(ctxOf(t), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", successor) == 1 }))
	checkParts(t, out, 4000)
	noSpools(t, out)
	noNoise(t, f, zombie)
}

// The same with the gate on: the zombie stops at its gate before it writes.
func TestWokenNodeStopsAtItsGate(t *testing.T) {
	t.Parallel()
	f, out, zombie, _ := frozenOwner(t, withHooks, "part.staged@4", 4000)
	f.Thaw(zombie)
	must(t, f.Until(ctxOf(t), time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	must(t, fleet.Eventually(ctxOf(t), 10*time.Second, func() error {
		if log := f.Log(zombie); !strings.Contains(log, "by=gate") {
			return fmt.Errorf("the zombie did not stop at its gate")
		}
		return nil
	}))
	checkParts(t, out, 4000)
	noSpools(t, out)
	noNoise(t, f, zombie)
}

// The test of the tests: without the comparisons of epoch, run and version and
// without the gate, a zombie that froze after its intent and before its commit
// doubles rows, and the checker sees it.
func TestWithoutTheFenceAZombieDoublesRows(t *testing.T) {
	t.Parallel()
	f, out, zombie, _ := frozenOwner(t, noFence, "part.intent-committed@2", 4000)
	must(t, fleet.Eventually(ctxOf(t), time.Minute, func() error {
		parts, _ := filepath.Glob(filepath.Join(out, "part-*"))
		if len(parts) < 6 {
			return fmt.Errorf("%d parts", len(parts))
		}
		return nil
	}))
	f.Thaw(zombie)
	must(t, fleet.Eventually(ctxOf(t), time.Minute, func() error {
		r, err := checker.Parts(out, 4000)
		if err == nil && r.Doubled == 0 {
			err = fmt.Errorf("nothing doubled yet: %s", r)
		}
		return err
	}))
}
