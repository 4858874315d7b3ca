package scenarios

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// zombieStores are the places of a record that a route with parts can name, each
// with the URL of a store of its own.
var zombieStores = []struct {
	name string
	url  func(t *testing.T, dir string) string
}{
	{"etcd", func(*testing.T, string) string { return "" }},
	{"raft", func(*testing.T, string) string { return "" }},
	{"file", func(_ *testing.T, dir string) string { return "file://" + filepath.Join(dir, "records") }},
	{"sqlite", func(_ *testing.T, dir string) string { return "sqlite://" + filepath.Join(dir, "records.db") }},
	{"postgres", func(t *testing.T, _ string) string { return harness.Postgres(t).NewDatabase(t) }},
	{"mysql", func(t *testing.T, _ string) string { return harness.MariaDB(t).URL(harness.MariaDB(t).NewDatabase(t)) }},
	{"mongodb", func(t *testing.T, _ string) string { return harness.Mongo(t).URL(harness.Mongo(t).NewDatabase(t)) }},
	{"s3", func(t *testing.T, _ string) string { return harness.S3(t).URL(harness.S3(t).NewBucket(t)) }},
}

const (
	zombieRows = 1200
	zombieRate = 300
)

// The owner stops between the check of its gate and its write; the gate is
// switched off, so that nothing but the comparison in the store can stop it. Its
// successor claims and writes. When the owner wakes, its write reaches the store
// and is refused there.
func TestZombieIsRefusedByEveryStore(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, 1)
	for _, store := range zombieStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := fleettest.New(t, fleettest.Hooks)
			if store.name != "raft" {
				f.Coordinator = etcd.URL() + "/" + store.name
			}
			in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, zombieRows), filepath.Join(f.Dir, "out")
			more := []string{"batch_size: 30", "roll: {age: 250ms}"}
			if url := store.url(t, f.Dir); url != "" {
				more = append(more, fmt.Sprintf("checkpoint_store: %q", url))
			}
			zombie := frozenOwner(t, f, "commit.before-write@4", fleettest.Paced(fleettest.Parts("r", in, out, more...), zombieRate))
			before := fleettest.RecordOf(t, f, "r")
			f.Thaw(zombie)
			fleettest.AwaitLog(t, f, zombie, "by=fence", time.Minute)
			after := fleettest.RecordOf(t, f, "r")
			if after.Epoch != before.Epoch || after.Version < before.Version {
				t.Errorf("the record went from %+v to %+v: the zombie's write landed", before, after)
			}
			fleettest.Done(t, f, 1, time.Minute)
			fleettest.CheckParts(t, out, zombieRows)
			fleettest.NoNoise(t, f, zombie)
		})
	}
}

// frozenOwner starts a fleet whose first owner of the route's only partition
// freezes itself at a hook, with its gate off, and returns that node's name once
// another one runs the partition.
func frozenOwner(t *testing.T, f *fleet.Fleet, hook, spec string) (zombie string) {
	t.Helper()
	zombie = "zombie"
	env, fired := fleettest.Hooked(t, hook+"=stop")
	env = append(env, "MQB_HOOK_OFF=gate")
	if f.Coordinator == "" {
		// A raft needs a majority beside the zombie, which must not take the partition first.
		fleettest.Must(t, f.Start("n1"))
		fleettest.Must(t, f.Start("n2"))
		fleettest.Must(t, f.Start(zombie, env...))
		fleettest.Members(t, f, 3)
		for _, n := range []string{"n1", "n2"} {
			_, err := f.Ctl(t.Context(), "drain", n)
			fleettest.Must(t, err)
		}
		fleettest.Apply(t, f, spec)
		fleettest.AwaitFile(t, fired, time.Minute)
		f.MarkFrozen(zombie)
		for _, n := range []string{"n1", "n2"} {
			_, err := f.Ctl(t.Context(), "undrain", n)
			fleettest.Must(t, err)
		}
	} else {
		fleettest.Must(t, f.Start(zombie, env...))
		fleettest.Apply(t, f, spec)
		fleettest.AwaitFile(t, fired, time.Minute)
		f.MarkFrozen(zombie)
		fleettest.Must(t, f.Start("successor"))
	}
	fleettest.Must(t, f.MovedFrom(t.Context(), zombie, 1))
	return zombie
}

// intoPostgres is a route from a CSV file into a keyed table, exactly once.
func intoPostgres(name, in, db string) string {
	return fmt.Sprintf(`routes:
  %s:
    input:
      file: {path: "%s", format: csv}
    output:
      sqlx:
        url: "%s"
        insert_query: "INSERT INTO t (id, note) VALUES (${payload:id}, ${payload:note})"
        bulk_copy: true
    shared_storage: true
    batch_size: 30
`, name, in, db)
}

func table(t *testing.T) (db string) {
	t.Helper()
	db = harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE t (id bigint PRIMARY KEY, note text NOT NULL)`)
	return db
}

func rowsIn(t *testing.T, db string) int {
	t.Helper()
	return harness.PostgresValue[int](t, db, `SELECT count(*) FROM t`)
}

// The same with a sink that keeps the record itself: frozen behind its rows, in
// front of its fence and COMMIT, with the locks of its rows. The successor wants
// to write the very same keys, ends the zombie's session and does so in time.
func TestZombieThatHoldsTheSinksLocksIsRefusedAndDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, hook := range []string{"tx.rows-sent", "tx.before-fence"} {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			db := table(t)
			f := fleettest.New(t, fleettest.Hooks)
			f.Coordinator = harness.Etcd(t, 1).URL()
			in := fleettest.CSV(t, f.Dir, "in.csv", 1, zombieRows)
			env, fired := fleettest.Hooked(t, hook+"@10=stop")
			fleettest.Must(t, f.Start("zombie", append(env, "MQB_HOOK_OFF=gate")...))
			fleettest.Must(t, f.Start("successor"))
			fleettest.Members(t, f, 2)
			_, err := f.Ctl(t.Context(), "drain", "successor")
			fleettest.Must(t, err)
			fleettest.Apply(t, f, fleettest.Paced(intoPostgres("r", in, db), zombieRate))
			fleettest.AwaitFile(t, fired, time.Minute)
			frozen := time.Now()
			f.MarkFrozen("zombie")
			_, err = f.Ctl(t.Context(), "undrain", "successor")
			fleettest.Must(t, err)
			at := rowsIn(t, db)
			fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
				if rowsIn(t, db) == at {
					return fmt.Errorf("%d rows as when the zombie froze", at)
				}
				return nil
			}))
			took := time.Since(frozen)
			t.Logf("the successor wrote %v after the freeze", took.Round(10*time.Millisecond))
			if took > 2*fleettest.TTL {
				t.Errorf("the successor wrote %v after the freeze, want at most %v", took, 2*fleettest.TTL)
			}
			before := fleettest.RecordOf(t, f, "r")
			f.Thaw("zombie")
			fleettest.AwaitLog(t, f, "zombie", "lost ownership", time.Minute)
			if after := fleettest.RecordOf(t, f, "r"); after.Epoch != before.Epoch || after.Version < before.Version {
				t.Errorf("the record went from %+v to %+v: the zombie's write landed", before, after)
			}
			fleettest.Done(t, f, 1, time.Minute)
			if n := rowsIn(t, db); n != zombieRows {
				t.Errorf("%d rows, want %d", n, zombieRows)
			}
			if log := f.Log("zombie"); !strings.Contains(log, "by=fence") && !strings.Contains(log, "by=sink") {
				t.Error("neither the fence nor the sink stopped the zombie")
			}
			fleettest.NoNoise(t, f, "zombie")
		})
	}
}
