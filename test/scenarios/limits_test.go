package scenarios

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// doubled checks that no id is in the parts twice; some may be missing.
func doubled(t *testing.T, dir string, rows int64) {
	t.Helper()
	r, err := checker.Parts(dir, rows)
	fleettest.Must(t, err)
	if r.Doubled != 0 || r.Disorder != 0 || r.Records == 0 {
		t.Errorf("%s: %s", dir, r)
	}
}

// A process that may open no further file says so and stands; it neither spins
// nor takes anything for done, and goes on by itself when there is room.
func TestOutOfFileDescriptorsLosesNothing(t *testing.T) {
	t.Parallel()
	const files, rows = 12, 500
	f := fleettest.New(t, fleettest.Hooks)
	f.Coordinator = harness.Etcd(t, 1).URL()
	fleettest.Start(t, f, "n1")
	in, out := spreadOut(t, f.Dir, files, rows), filepath.Join(f.Dir, "out")

	pid := f.Pid("n1")
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	fleettest.Must(t, err)
	var room unix.Rlimit
	fleettest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &room))
	// A few for the requests of mqbctl; not enough for twelve readers and spools.
	few := unix.Rlimit{Cur: uint64(len(open) + 8), Max: room.Max}
	fleettest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
	fleettest.Apply(t, f, fleettest.Parts("r", in, out, "roll: {records: 100}"))
	fleettest.AwaitLog(t, f, "n1", "too many open files", time.Minute)
	tries := strings.Count(f.Log("n1"), "too many open files")
	await(t, 2*time.Second)
	if more := strings.Count(f.Log("n1"), "too many open files") - tries; more > 30*files {
		t.Errorf("%d failures in two seconds: it spins", more)
	}
	fleettest.Must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &room, nil))
	fleettest.Done(t, f, files, time.Minute)
	fleettest.CheckParts(t, out, files*rows)
}

// SIGTERM with full buffers, a sink that stands and a deadline that is too short
// for it: the node ends in time, gives back what it could not write, and the next
// life writes each row once.
func TestSIGTERMWithFullBuffersAndADeadlineThatIsTooShort(t *testing.T) {
	t.Parallel()
	const rows = 60_000
	db := table(t)
	f := fleettest.New(t, fleettest.Hooks)
	f.Coordinator = harness.Etcd(t, 1).URL()
	f.Args = []string{"--drain-timeout", "2s"}
	fleettest.Start(t, f, "n1")
	in := fleettest.CSV(t, f.Dir, "in.csv", 1, rows)
	fleettest.Apply(t, f, fleettest.Paced(intoPostgres("r", in, db), 4000))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "rows are written", func(fleet.Leases) bool { return rowsIn(t, db) > 0 }))
	// Whoever holds this lock keeps every writer waiting; readers pass.
	conn := harness.PostgresConnect(t, db)
	_, err := conn.Exec(t.Context(), `BEGIN; LOCK TABLE t IN SHARE ROW EXCLUSIVE MODE`)
	fleettest.Must(t, err)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		var waiting int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&waiting)
		if err == nil && waiting == 0 {
			err = fmt.Errorf("no writer waits")
		}
		return err
	}))
	began := time.Now()
	stop(t, f, "n1")
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("it took %v to stop, with a deadline of 2 s", d)
	}
	stood := rowsIn(t, db)
	_, err = conn.Exec(t.Context(), `ROLLBACK`)
	fleettest.Must(t, err)
	fleettest.Start(t, f, "n1")
	fleettest.Done(t, f, 1, time.Minute)
	if n := rowsIn(t, db); n != rows || stood == rows {
		t.Errorf("%d rows (%d when it stopped), want %d", n, stood, rows)
	}
}

// The record in a store goes back to an older copy while nobody runs: the
// coordinator's mark tells, and the partition stops instead of writing again what
// it had written.
func TestStoreThatFellBackToAnOlderCopyStopsThePartition(t *testing.T) {
	t.Parallel()
	const rows = 3000
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, rows), filepath.Join(f.Dir, "out")
	records := filepath.Join(f.Dir, "records")
	spec := fleettest.Parts("r", in, out, fmt.Sprintf("checkpoint_store: %q", "file://"+records), "batch_size: 50", "roll: {age: 300ms}")
	fleettest.Apply(t, f, fleettest.Paced(spec, 300))
	fleettest.AwaitParts(t, out, 1)
	stop(t, f, "n1")
	older := filepath.Join(f.Dir, "older")
	fleettest.Must(t, os.CopyFS(older, os.DirFS(records)))
	fleettest.Start(t, f, "n1")
	fleettest.AwaitParts(t, out, partsIn(t, out)+1)
	stop(t, f, "n1")
	fleettest.Must(t, os.RemoveAll(records))
	fleettest.Must(t, os.CopyFS(records, os.DirFS(older)))
	fleettest.Start(t, f, "n1")
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "the partition stops", func(l fleet.Leases) bool {
		return len(l) == 1 && l[0].State == "quarantined" && strings.Contains(l[0].Reason, "was claimed")
	}))
	doubled(t, out, rows)
}
