package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// outage is how long a coordinator is away.
const outage = 30 * time.Second

// await waits for a moment that nothing announces.
func await(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// spreadOut writes n CSV files of so many rows, with ids that follow each other,
// and returns their pattern.
func spreadOut(t *testing.T, dir string, n, rows int) string {
	t.Helper()
	for i := range n {
		fleettest.CSV(t, filepath.Join(dir, "in"), fmt.Sprintf("%02d.csv", i), 1+i*rows, rows)
	}
	return filepath.Join(dir, "in", "*.csv")
}

func leases(t *testing.T, f *fleet.Fleet) fleet.Leases {
	t.Helper()
	l, err := f.Leases(t.Context())
	fleettest.Must(t, err)
	return l
}

// The coordinator is gone for ten times the TTL. What runs goes on until its gate
// closes, and writes nothing after that; when the coordinator is back new runs go
// on where the old ones stopped. Nothing is lost, nothing is there twice.
func TestCoordinatorOutageOf30SecondsSuspendsAndLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	const files, rows = 6, 6000
	for _, kind := range []string{"etcd", "raft"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := fleettest.New(t, fleettest.Hooks)
			freeze, thaw := func() { f.Freeze("n2"); f.Freeze("n3") }, func() { f.Thaw("n2"); f.Thaw("n3") }
			nodes := []string{"n1", "n2", "n3"}
			if kind == "etcd" {
				etcd := harness.Etcd(t, 1)
				f.Coordinator = etcd.URL()
				freeze, thaw = etcd.Members[0].Process().Freeze, etcd.Members[0].Process().Thaw
				nodes = nodes[:2]
			}
			fleettest.Start(t, f, nodes...)
			in, out := spreadOut(t, f.Dir, files, rows), filepath.Join(f.Dir, "out")
			fleettest.Apply(t, f, fleettest.Paced(fleettest.Parts("r", in, out, "batch_size: 50", "roll: {age: 500ms}"), 400))
			fleettest.Must(t, f.Until(t.Context(), time.Minute, "all run on all nodes", func(l fleet.Leases) bool {
				for _, n := range nodes {
					if l.Count("running", n) != files/len(nodes) {
						return false
					}
				}
				return true
			}))
			before := leases(t, f)

			began := time.Now()
			freeze()
			fleettest.AwaitLog(t, f, "n1", "gate closed", fleettest.TTL)
			// What was on its way when the gate closed may still land.
			await(t, time.Second)
			stood := partsIn(t, out)
			await(t, time.Until(began.Add(outage)))
			if now := partsIn(t, out); now != stood {
				t.Errorf("%d parts were written behind a closed gate", now-stood)
			}
			thaw()
			fleettest.Done(t, f, files, 2*time.Minute)
			fleettest.CheckParts(t, out, files*rows)
			for i, l := range leases(t, f) {
				if l.Epoch <= before[i].Epoch {
					t.Errorf("%s ran with epoch %d before and after the outage", l.Partition, l.Epoch)
				}
			}
		})
	}
}

func partsIn(t *testing.T, dir string) int {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "part-*"))
	fleettest.Must(t, err)
	return len(parts)
}

// Two of three nodes die at once; the coordinator is elsewhere. What they held
// moves once, what the third one holds stays where it is, under its epoch.
func TestMassLeaseExpiryMovesOnlyWhatWasLost(t *testing.T) {
	t.Parallel()
	const files, rows = 24, 1500
	f := fleettest.New(t, fleettest.Hooks)
	f.Coordinator = harness.Etcd(t, 1).URL()
	fleettest.Start(t, f, "n1", "n2", "n3")
	in, out := spreadOut(t, f.Dir, files, rows), filepath.Join(f.Dir, "out")
	fleettest.Apply(t, f, fleettest.Paced(fleettest.Parts("r", in, out, "roll: {age: 1s}"), 100))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "all run, spread evenly", func(l fleet.Leases) bool {
		return l.Count("running", "n1") == 8 && l.Count("running", "n2") == 8 && l.Count("running", "n3") == 8
	}))
	before := leases(t, f)
	killed := time.Now()
	f.Kill("n2")
	f.Kill("n3")
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "n1 has everything", func(l fleet.Leases) bool {
		return l.Count("running", "n1")+l.Count("done", "n1") == files
	}))
	t.Logf("all runs %v after the kill", time.Since(killed).Round(10*time.Millisecond))
	for i, l := range leases(t, f) {
		want := before[i].Epoch
		if before[i].Owner != "n1" {
			want++
		}
		if l.Epoch != want {
			t.Errorf("%s of %s: epoch %d, want %d", l.Partition, before[i].Owner, l.Epoch, want)
		}
	}
	fleettest.Done(t, f, files, time.Minute)
	fleettest.CheckParts(t, out, files*rows)
}

// A node dies and comes back again and again: its partitions leave it once and do
// not follow it; a node that only stutters, for less than its lease, loses nothing.
func TestNodeThatFlapsIsNotFollowed(t *testing.T) {
	t.Parallel()
	const files, rows = 6, 4000
	f := fleettest.New(t, fleettest.Hooks)
	f.Coordinator = harness.Etcd(t, 1).URL()
	fleettest.Start(t, f, "n1", "n2")
	in, out := spreadOut(t, f.Dir, files, rows), filepath.Join(f.Dir, "out")
	fleettest.Apply(t, f, fleettest.Paced(fleettest.Parts("r", in, out, "roll: {age: 500ms}"), 150))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "all run, spread evenly", func(l fleet.Leases) bool {
		return l.Count("running", "n1") == 3 && l.Count("running", "n2") == 3
	}))
	before := leases(t, f)
	for range 3 {
		f.Freeze("n2")
		await(t, fleettest.TTL/2)
		f.Thaw("n2")
		await(t, fleettest.TTL/2)
	}
	for i, l := range leases(t, f) {
		if l.Owner != before[i].Owner || l.Epoch != before[i].Epoch {
			t.Errorf("%s went from %s, epoch %d, to %s, epoch %d: its node only stuttered", l.Partition, before[i].Owner, before[i].Epoch, l.Owner, l.Epoch)
		}
	}
	for range 2 {
		f.Kill("n2")
		fleettest.Must(t, f.MovedFrom(t.Context(), "n2", files))
		fleettest.Must(t, f.Start("n2"))
		fleettest.Members(t, f, 2)
	}
	for i, l := range leases(t, f) {
		most := before[i].Epoch
		if before[i].Owner == "n2" {
			most++
		}
		if l.Epoch > most {
			t.Errorf("%s of %s has epoch %d, want at most %d: it followed the node", l.Partition, before[i].Owner, l.Epoch, most)
		}
	}
	fleettest.Done(t, f, files, 2*time.Minute)
	fleettest.CheckParts(t, out, files*rows)
}

// The coordinator comes back as it was before half of the work was done: its
// epochs are older than those in the records.
func TestCoordinatorRestoredFromAnOlderBackup(t *testing.T) {
	t.Parallel()
	const rows = 3000
	// begin runs a route for a while, keeps a copy of the coordinator, lets the
	// route run on under further epochs, and puts the copy back.
	begin := func(t *testing.T, more ...string) (f *fleet.Fleet, out string, epoch uint64) {
		f = fleettest.New(t, fleettest.Hooks)
		in := fleettest.CSV(t, f.Dir, "in.csv", 1, rows)
		out = filepath.Join(f.Dir, "out")
		fleettest.Start(t, f, "n1")
		spec := fleettest.Parts("r", in, out, append(more, "batch_size: 50", "roll: {age: 300ms}")...)
		fleettest.Apply(t, f, fleettest.Paced(spec, 300))
		fleettest.AwaitParts(t, out, 1)
		stop(t, f, "n1")
		data, backup := filepath.Join(f.Dir, "n1"), filepath.Join(f.Dir, "backup")
		fleettest.Must(t, os.CopyFS(backup, os.DirFS(data)))
		for range 2 { // each with an epoch that the copy does not know
			parts := partsIn(t, out)
			fleettest.Start(t, f, "n1")
			fleettest.AwaitParts(t, out, parts+1)
			epoch = leases(t, f)[0].Epoch
			stop(t, f, "n1")
		}
		fleettest.Must(t, os.RemoveAll(data))
		fleettest.Must(t, os.CopyFS(data, os.DirFS(backup)))
		fleettest.Start(t, f, "n1")
		return f, out, epoch
	}
	t.Run("records elsewhere go on above their epochs", func(t *testing.T) {
		t.Parallel()
		f, out, epoch := begin(t, fmt.Sprintf("checkpoint_store: %q", "file://"+filepath.Join(t.TempDir(), "records")))
		fleettest.Done(t, f, 1, time.Minute)
		if now := leases(t, f)[0].Epoch; now <= epoch {
			t.Errorf("it runs with epoch %d, and %d was used before", now, epoch)
		}
		fleettest.CheckParts(t, out, rows)
	})
	t.Run("records that went back with it stop the partition", func(t *testing.T) {
		t.Parallel()
		f, out, _ := begin(t)
		var reason string
		fleettest.Must(t, f.Until(t.Context(), time.Minute, "the partition stops", func(l fleet.Leases) bool {
			if len(l) == 1 && l[0].State == "quarantined" {
				reason = l[0].Reason
			}
			return reason != ""
		}))
		if !strings.Contains(reason, "part-") {
			t.Errorf("the reason names no part: %s", reason)
		}
		doubled(t, out, rows)
	})
}

// stop ends a node in order.
func stop(t *testing.T, f *fleet.Fleet, name string) {
	t.Helper()
	f.Terminate(name)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	select {
	case <-f.Exited(name):
	case <-ctx.Done():
		t.Fatalf("%s does not stop", name)
	}
}
