package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mysql"
	"github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// The way between one owner and the coordinator breaks, in both directions or
// only for the answers; its files are still there. It stops by itself, before
// anybody else can take its partition, and comes back when the way is mended.
func TestOwnerCutOffFromTheCoordinatorStopsBeforeItsSuccessorBegins(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string][]harness.Direction{
		"nothing passes":   {harness.Requests, harness.Replies},
		"replies are lost": {harness.Replies},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rows = 4000
			etcd := harness.Etcd(t, 1)
			way := harness.NewProxy(t, etcd.Members[0].Addr)
			f := fleettest.New(t, fleettest.Hooks)
			f.Coordinator = etcd.URL()
			in, out := fleettest.CSV(t, f.Dir, "in.csv", 1, rows), filepath.Join(f.Dir, "out")
			fleettest.Must(t, f.StartAt("owner", "etcd://"+way.Addr))
			fleettest.Apply(t, f, fleettest.Paced(fleettest.Parts("r", in, out, "batch_size: 30", "roll: {age: 250ms}"), 300))
			fleettest.AwaitParts(t, out, 2)
			fleettest.Must(t, f.Start("free"))
			fleettest.Members(t, f, 2)

			way.Still(cut...)
			fleettest.AwaitLog(t, f, "owner", "lost ownership", 2*fleettest.TTL)
			fleettest.Must(t, f.MovedFrom(t.Context(), "owner", 1))
			stopped, began := at(t, f, "owner", "gate closed"), at(t, f, "free", "msg=running")
			t.Logf("the successor began %v after the owner's gate closed", began.Sub(stopped))
			if began.Before(stopped) {
				t.Errorf("the successor began at %v, before the gate of the owner closed at %v", began, stopped)
			}
			way.Heal()
			fleettest.AwaitLog(t, f, "owner", "the node's lease ended", time.Minute)
			fleettest.Members(t, f, 2)
			fleettest.Done(t, f, 1, time.Minute)
			fleettest.CheckParts(t, out, rows)
			fleettest.NoNoise(t, f, "owner")
		})
	}
}

// at is when a node's log first said text. The processes of a fleet have one clock.
func at(t *testing.T, f *fleet.Fleet, node, text string) time.Time {
	t.Helper()
	for line := range strings.Lines(f.Log(node)) {
		if strings.Contains(line, text) {
			_, rest, _ := strings.Cut(line, "time=")
			stamp, _, _ := strings.Cut(rest, " ")
			when, err := time.Parse(time.RFC3339Nano, stamp)
			fleettest.Must(t, err)
			return when
		}
	}
	t.Fatalf("%s never said %q", node, text)
	return time.Time{}
}

// The output of an owner goes away while the coordinator is there: the owner
// keeps what it has, says why it stands, gives up after give_up_after, and goes
// on when the output is back.
func TestOwnerCutOffFromItsOutputKeepsTriesGivesUpAndGoesOn(t *testing.T) {
	t.Parallel()
	pg := harness.StartPostgres(t)
	db := pg.NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE t (id bigint PRIMARY KEY, note text NOT NULL)`)
	f := fleettest.New(t, fleettest.Hooks)
	f.Coordinator = harness.Etcd(t, 1).URL()
	fleettest.Start(t, f, "n1")
	in := fleettest.CSV(t, f.Dir, "in.csv", 1, zombieRows)
	fleettest.Apply(t, f, fleettest.Paced(intoPostgres("r", in, db)+"    give_up_after: 12s\n", zombieRate))
	fleettest.Must(t, f.Until(t.Context(), time.Minute, "rows are written", func(fleet.Leases) bool { return rowsIn(t, db) > 0 }))
	cut := time.Now()
	pg.Kill()
	state := func(within time.Duration, state, owner string) {
		t.Helper()
		fleettest.Must(t, f.Until(t.Context(), within, "the partition is "+state, func(l fleet.Leases) bool {
			return len(l) == 1 && l[0].State == state && l[0].Owner == owner && l[0].Reason != ""
		}))
	}
	state(12*time.Second, "acquiring", "n1") // kept, and the reason is told
	state(time.Minute, "quarantined", "")    // given back
	if d := time.Since(cut); d < 12*time.Second {
		t.Errorf("given back %v after the cut, before give_up_after", d)
	}
	pg.Restart(t)
	fleettest.Done(t, f, 1, 2*time.Minute)
	if n := rowsIn(t, db); n != zombieRows {
		t.Errorf("%d rows, want %d", n, zombieRows)
	}
}

// sqlStores are the stores behind a connection of statements; the server's
// address can be replaced by that of a proxy.
var sqlStores = map[string]struct {
	server func(t *testing.T) string
	open   func(ctx context.Context, url string) (checkpoint.Store, error)
}{
	"postgres": {
		func(t *testing.T) string { return harness.Postgres(t).NewDatabase(t) },
		func(ctx context.Context, url string) (checkpoint.Store, error) { return postgres.Open(ctx, url, "") },
	},
	"mysql": {
		func(t *testing.T) string { return harness.MariaDB(t).URL(harness.MariaDB(t).NewDatabase(t)) },
		func(ctx context.Context, url string) (checkpoint.Store, error) { return mysql.Open(ctx, url) },
	},
}

// through opens a store behind a proxy, and another one beside it.
func through(t *testing.T, kind string) (way *harness.Proxy, far, near checkpoint.Store) {
	t.Helper()
	s := sqlStores[kind]
	direct := s.server(t)
	u, err := url.Parse(direct)
	fleettest.Must(t, err)
	way = harness.NewProxy(t, u.Host)
	u.Host = way.Addr
	var stores [2]checkpoint.Store
	for i, url := range []string{u.String(), direct} {
		stores[i], err = s.open(t.Context(), url)
		fleettest.Must(t, err)
		t.Cleanup(func() { _ = stores[i].Close() })
	}
	return way, stores[0], stores[1]
}

const key = "c/uid/1/0/out"

func claim(t *testing.T, s checkpoint.Store, epoch uint64, run string) checkpoint.Record {
	t.Helper()
	c, err := checkpoint.Claim(t.Context(), s, checkpoint.ClaimRequest{
		Key: key, ClusterUID: "c", RouteUID: "uid", Series: "s", Generation: 1, Epoch: epoch, Run: run})
	fleettest.Must(t, err)
	return c.Record
}

// An owner's write is on its way, valid when it was sent; it arrives after the
// successor's claim, and once more after the successor's first write.
func TestWriteThatArrivesAfterTheSuccessorsClaimIsRefused(t *testing.T) {
	t.Parallel()
	for kind := range sqlStores {
		for _, wrote := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/successor wrote %v", kind, wrote), func(t *testing.T) {
				t.Parallel()
				way, far, near := through(t, kind)
				held := claim(t, far, 1, "run-of-the-zombie")
				caught, release := way.Hold(func(b []byte) bool { return bytes.Contains(b, []byte("run-of-the-zombie")) })
				verdict := make(chan error, 1)
				go func() {
					_, err := checkpoint.Commit(t.Context(), far, key, held, held)
					verdict <- err
				}()
				<-caught
				now := claim(t, near, 2, "run-of-the-successor")
				if wrote {
					var err error
					now, err = checkpoint.Commit(t.Context(), near, key, now, now)
					fleettest.Must(t, err)
				}
				release()
				if err := <-verdict; !errors.Is(err, checkpoint.ErrFenced) {
					t.Errorf("the late write: %v, want ErrFenced", err)
				}
				got, err := near.Load(t.Context(), key)
				fleettest.Must(t, err)
				if got.Epoch != 2 || got.Version != now.Version || got.Run != now.Run {
					t.Errorf("the record is %+v, want the successor's %+v", got, now)
				}
			})
		}
	}
}

// A write succeeds and its answer is lost with the connection: it is looked for,
// found and taken for what it is, and not written twice.
func TestLostReplyOfAWriteIsLookedForAndIsSuccess(t *testing.T) {
	t.Parallel()
	for kind := range sqlStores {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			way, far, near := through(t, kind)
			held := claim(t, far, 1, "run-of-the-owner")
			caught := way.LoseReply(func(b []byte) bool { return bytes.Contains(b, []byte("run-of-the-owner")) })
			now, err := checkpoint.Commit(t.Context(), far, key, held, held)
			fleettest.Must(t, err)
			<-caught
			got, err := near.Load(t.Context(), key)
			fleettest.Must(t, err)
			if got.Version != held.Version+1 || now.Version != got.Version {
				t.Errorf("version %d is stored and %d is held, want %d", got.Version, now.Version, held.Version+1)
			}
		})
	}
}
