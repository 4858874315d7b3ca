package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/connectors/null"
	"github.com/mqbridge/mqb/lease"
	leasememory "github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is a middleware that does what a test tells it.
type fault struct {
	process func(ctx context.Context, b *message.Batch) error
}

func (f *fault) Process(ctx context.Context, b *message.Batch) error { return f.process(ctx, b) }
func (f *fault) Close() error                                        { return nil }

type bench struct {
	t       *testing.T
	c       *leasememory.Client
	keys    lease.Keys
	session *lease.Session
	owners  *lease.Owners
	node    *Node
	dir     string
	reg     *connectors.Registry
	routes  map[string]Route
	want    []Desired
	fault   atomic.Pointer[func(ctx context.Context, b *message.Batch) error]
}

type faultConfig struct{}

// setup starts a node over a coordinator of its own. more adds endpoint types.
func setup(t *testing.T, timing Timing, more ...func([]connectors.Type) []connectors.Type) *bench {
	t.Helper()
	b := &bench{t: t, c: leasememory.New(), keys: lease.NewKeys("test"), dir: t.TempDir(), routes: map[string]Route{}}
	calm := func(context.Context, *message.Batch) error { return nil }
	b.fault.Store(&calm)
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	types := []connectors.Type{file.Type(), null.Type()}
	for _, add := range more {
		types = add(types)
	}
	b.reg = connectors.NewRegistry(types, []connectors.MiddlewareType{{
		MiddlewareType: route.MiddlewareType{Name: "fault", NewConfig: func() any { return &faultConfig{} }, Input: true, Output: true,
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true}
			}},
		New: func(any, *route.Spec) (func() connectors.Middleware, error) {
			return func() connectors.Middleware {
				return &fault{func(ctx context.Context, m *message.Batch) error { return (*b.fault.Load())(ctx, m) }}
			}, nil
		},
	}})
	var err error
	b.session, err = lease.NewSession(b.c, lease.SessionOptions{TTL: 2 * time.Second, Log: log, Register: func(ctx context.Context, id lease.LeaseID) error {
		_, err := b.c.Txn(ctx, nil, []lease.Op{lease.PutLeased(b.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1", Instance: "i1"}), id)})
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.session.Run(ctx) }()
	b.owners = lease.NewOwners(b.c, b.keys, "n1", "i1", b.session)
	b.node, err = New(Config{Name: "n1", Instance: "i1", ClusterName: "test", ClusterUID: "uid", Coordinator: b.c, Keys: b.keys,
		Owners: b.owners, Session: b.session, Registry: b.reg, Budget: message.NewBudget(64 << 20), Log: log, Timing: timing,
		Env: connectors.Env{Node: "n1", DataDir: b.dir, Budget: message.NewBudget(64 << 20)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stopCtx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := b.node.Stop(stopCtx); err != nil {
			t.Error(err)
		}
		_ = b.session.Close(stopCtx)
		cancel()
		<-done
		_ = b.c.Close()
	})
	return b
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// route puts a route with one CSV file partition and assigns it.
func (b *bench) route(name string, rows int, extra string) {
	b.t.Helper()
	in := filepath.Join(b.dir, name+".csv")
	var s strings.Builder
	s.WriteString("id\n")
	for i := range rows {
		fmt.Fprintf(&s, "%d\n", i+1)
	}
	if err := os.WriteFile(in, []byte(s.String()), 0o644); err != nil {
		b.t.Fatal(err)
	}
	yaml := fmt.Sprintf("input:\n  file: {path: %q, format: csv}\n  middlewares: [{fault: {}}]\noutput:\n  file: {path: %q, format: raw, name_by: source_position}\nshared_storage: true\n%s",
		in, filepath.Join(b.dir, name), extra)
	b.put(name, lease.Route{UID: "uid-" + name, Series: "s1", Generation: 1, Spec: yaml})
}

func (b *bench) put(name string, r lease.Route) {
	b.t.Helper()
	spec, err := route.DecodeRoute(name, r.Spec, b.reg)
	if err != nil {
		b.t.Fatal(err)
	}
	src, err := b.reg.Source(spec, connectors.Env{Node: "n1"})
	if err != nil {
		b.t.Fatal(err)
	}
	defer src.Close()
	parts, err := src.Partitions(b.t.Context())
	if err != nil || len(parts) != 1 {
		b.t.Fatalf("partitions: %v, %v", parts, err)
	}
	p := lease.Partition{ID: parts[0].ID, Attributes: parts[0].Attributes, PartSource: parts[0].PartSource, PartNumber: parts[0].PartNumber}
	ops := []lease.Op{lease.Put(b.keys.Route(name), lease.Encode(r)), lease.Put(b.keys.Assignment(name, p.ID), lease.Encode(lease.Assignment{Node: "n1"}))}
	if _, err := b.c.Txn(b.t.Context(), nil, ops); err != nil {
		b.t.Fatal(err)
	}
	older := map[uint64]*route.Spec{}
	for g, y := range r.Older {
		s, err := route.DecodeRoute(name, y, b.reg)
		if err != nil {
			b.t.Fatal(err)
		}
		older[g] = s
	}
	rkv, _, _ := b.c.Get(b.t.Context(), b.keys.Route(name))
	akv, _, _ := b.c.Get(b.t.Context(), b.keys.Assignment(name, p.ID))
	routes := map[string]Route{}
	for k, v := range b.routes {
		routes[k] = v
	}
	routes[name] = Route{Route: r, Name: name, Rev: rkv.ModRevision, Spec: spec, Older: older}
	var want []Desired
	for _, d := range b.want {
		if d.Route != name {
			want = append(want, d)
		}
	}
	b.routes, b.want = routes, append(want, Desired{Route: name, Partition: p, AssignmentRev: akv.ModRevision})
	b.node.SetDesired(b.routes, b.want)
}

// await waits until the partition's status is as wanted, and returns it.
func (b *bench) await(name, what string, ok func(lease.PartitionStatus) bool) lease.PartitionStatus {
	b.t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := b.node.Changed()
		var last lease.PartitionStatus
		for _, s := range b.node.Status() {
			if s.Route == name {
				if last = s; ok(s) {
					return s
				}
			}
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // counters change without a signal
		case <-deadline:
			b.t.Fatalf("%s: not %s: %+v", name, what, last)
		}
	}
}

// empty waits until the node holds nothing.
func (b *bench) empty() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	if err := b.node.empty(ctx); err != nil {
		b.t.Fatalf("still held: %+v", b.node.Status())
	}
}

func (b *bench) state(name string, s lease.State) lease.PartitionStatus {
	b.t.Helper()
	return b.await(name, string(s), func(p lease.PartitionStatus) bool { return p.State == s })
}

// rows counts the lines of a route's parts.
func (b *bench) rows(name string) int {
	b.t.Helper()
	parts, err := filepath.Glob(filepath.Join(b.dir, name, "part-*"))
	if err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, p := range parts {
		data, err := os.ReadFile(p)
		if err != nil {
			b.t.Fatal(err)
		}
		n += strings.Count(string(data), "\n")
	}
	return n
}

func (b *bench) setFault(f func(ctx context.Context, m *message.Batch) error) { b.fault.Store(&f) }

func addsUp(t *testing.T, c lease.Counters) {
	t.Helper()
	if c.Read != c.Written+c.Covered+c.Filtered+c.Deduplicated+c.DeadLettered+c.Dropped+c.Returned {
		t.Errorf("counters do not add up: %+v", c)
	}
}

func TestPartitionRunsToItsEndAndReleases(t *testing.T) {
	b := setup(t, Timing{})
	b.route("r", 10_000, "")
	s := b.state("r", lease.StateDone)
	if s.Epoch != 1 || s.Position != "10000" || s.Counters.Written != 10_000 {
		t.Errorf("got %+v", s)
	}
	addsUp(t, s.Counters)
	if n := b.rows("r"); n != 10_000 {
		t.Errorf("%d rows", n)
	}
	b.node.SetDesired(nil, nil)
	b.empty()
	if kv, _, err := b.c.Get(t.Context(), b.keys.Owner("r", "r.csv")); err != nil || kv != nil {
		t.Fatalf("not released: %+v, %v", kv, err)
	}
}

// One route's panic storm is quarantined and never touches another route.
func TestPanicStormInOneRouteLeavesTheOthersAlone(t *testing.T) {
	b := setup(t, Timing{Backoff: time.Millisecond, BackoffMax: 2 * time.Millisecond, Quarantine: time.Hour})
	b.setFault(func(_ context.Context, m *message.Batch) error {
		if m.Len() == 13 {
			panic("thirteen")
		}
		return nil
	})
	b.route("bad", 13, "")
	b.route("good", 5_000, "")
	s := b.state("bad", lease.StateQuarantined)
	if !strings.Contains(s.Error, "thirteen") || s.NextTry.IsZero() {
		t.Errorf("quarantine does not say why and until when: %+v", s)
	}
	addsUp(t, s.Counters)
	b.state("good", lease.StateDone)
	if n := b.rows("good"); n != 5_000 {
		t.Errorf("%d rows", n)
	}
}

// An error of the connection keeps the ownership and takes a new epoch for each
// run (invariant 6); nothing is written twice.
func TestRestartAfterAnErrorTakesANewEpoch(t *testing.T) {
	b := setup(t, Timing{Backoff: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	var n atomic.Int64
	b.setFault(func(context.Context, *message.Batch) error {
		if k := n.Add(1); k%2 == 0 && k < 10 {
			return connectors.Connection(errors.New("gone"))
		}
		return nil
	})
	b.route("r", 20_000, "batch_size: 1000\nroll: {records: 1500}")
	s := b.state("r", lease.StateDone)
	if s.Epoch < 2 {
		t.Errorf("epoch %d after restarts", s.Epoch)
	}
	addsUp(t, s.Counters)
	if got := b.rows("r"); got != 20_000 {
		t.Errorf("%d rows", got)
	}
}

// An operator's claim fences the run; the node finds that it still owns the
// partition, lifts the counter and starts over (invariant 5).
func TestFencedByAnOperatorTheOwnerStartsOver(t *testing.T) {
	b := setup(t, Timing{})
	release := make(chan struct{})
	var first atomic.Bool
	b.setFault(func(ctx context.Context, m *message.Batch) error {
		if first.CompareAndSwap(false, true) {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	b.route("r", 3_000, "")
	s := b.state("r", lease.StateRunning)
	store := coordinator.New(b.c, b.keys)
	key := checkpoint.Key{Cluster: "test", RouteUID: "uid-r", Partitioning: partitioning, Partition: s.Partition, Leg: theLeg}.String()
	_, err := checkpoint.Claim(t.Context(), store, checkpoint.ClaimRequest{Key: key, ClusterUID: "uid", RouteUID: "uid-r", Series: "s1", Generation: 1, Epoch: 7, Run: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	done := b.state("r", lease.StateDone)
	if done.Epoch <= 7 {
		t.Errorf("epoch %d, want above the operator's 7", done.Epoch)
	}
	addsUp(t, done.Counters)
	if n := b.rows("r"); n != 3_000 {
		t.Errorf("%d rows", n)
	}
}

// When the coordinator is away, runs suspend at their gate; a new run starts
// after it, with a new epoch.
func TestCoordinatorOutageSuspendsAndANewRunFollows(t *testing.T) {
	b := setup(t, Timing{})
	hold := make(chan struct{})
	b.setFault(func(ctx context.Context, m *message.Batch) error {
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	b.route("r", 3_000, "")
	before := b.state("r", lease.StateRunning)
	b.c.SetAvailable(false)
	b.await("r", "suspended or acquiring", func(p lease.PartitionStatus) bool {
		return p.State == lease.StateSuspended || p.State == lease.StateAcquiring
	})
	close(hold)
	b.c.SetAvailable(true)
	after := b.await("r", "done", func(p lease.PartitionStatus) bool { return p.State == lease.StateDone })
	if after.Epoch <= before.Epoch {
		t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
	}
	addsUp(t, after.Counters)
	if n := b.rows("r"); n != 3_000 {
		t.Errorf("%d rows", n)
	}
}

// A drain commits what was read, at a boundary of its own, and the next owner
// goes on there.
func TestDrainCommitsWhatWasRead(t *testing.T) {
	b := setup(t, Timing{})
	var batches atomic.Int64
	started := make(chan struct{})
	b.setFault(func(ctx context.Context, m *message.Batch) error {
		if batches.Add(1) == 3 {
			close(started)
		}
		return nil
	})
	b.route("r", 500_000, "batch_size: 100")
	<-started
	want := b.want
	b.node.SetDesired(nil, nil)
	b.empty()
	middle := b.rows("r")
	if middle == 0 {
		t.Error("nothing was committed by the drain")
	}
	b.node.SetDesired(b.routes, want)
	b.state("r", lease.StateDone)
	if n := b.rows("r"); n != 500_000 {
		t.Errorf("%d rows, %d after the drain", n, middle)
	}
}

// A part that an older generation promised is finished under that generation's
// spec and name, then the new one goes on.
func TestNewGenerationFinishesThePromiseOfTheOld(t *testing.T) {
	b := setup(t, Timing{})
	b.route("r", 3_000, "")
	b.state("r", lease.StateDone)
	// The record as a crash right after an intent would leave it.
	s := b.node.Status()[0]
	store := coordinator.New(b.c, b.keys)
	key := checkpoint.Key{Cluster: "test", RouteUID: "uid-r", Partitioning: partitioning, Partition: s.Partition, Leg: theLeg}.String()
	rec, err := store.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(b.dir, "r.csv"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		fmt.Fprintln(f, 3001+i)
	}
	_ = f.Close()
	grown := b.await("r", "grown", func(p lease.PartitionStatus) bool { return p.Position == "3100" })
	addsUp(t, grown.Counters)
	parts, _ := filepath.Glob(filepath.Join(b.dir, "r", "part-*3099.bin"))
	if len(parts) != 1 {
		t.Fatalf("parts %v", parts)
	}
	b.node.SetDesired(nil, nil)
	b.empty()
	now, err := store.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	promised := now
	promised.Position = rec.Position
	promised.Intents = []checkpoint.Intent{{From: rec.Position, End: now.Position, First: 3000, Last: 3099, Records: 100,
		Name: filepath.Base(parts[0]), Generation: 1}}
	promised.Version++
	if err := store.Swap(t.Context(), key, now.Version, promised); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(parts[0]); err != nil {
		t.Fatal(err)
	}
	old := b.routes["r"].Route
	b.put("r", lease.Route{UID: old.UID, Series: old.Series, Generation: 2, Spec: old.Spec + "\nroll: {records: 10}\n", Older: map[uint64]string{1: old.Spec}})
	b.await("r", "done at 3100", func(p lease.PartitionStatus) bool { return p.State == lease.StateDone && p.Position == "3100" })
	if _, err := os.Stat(parts[0]); err != nil {
		t.Error("the promised part is not there under its name: ", err)
	}
	if n := b.rows("r"); n != 3_100 {
		t.Errorf("%d rows", n)
	}
}

// A drain does not wait for a paced route: the batch that waits in a limiter is
// given back at once, so that the next owner goes on within the hand-off's second.
func TestDrainGivesBackWhatWaitsInAMiddleware(t *testing.T) {
	b := setup(t, Timing{Drain: time.Hour}) // nothing else ends the wait
	waiting := make(chan struct{}, 1)
	var batches, passed atomic.Int64
	b.setFault(func(ctx context.Context, m *message.Batch) error {
		if batches.Add(1) < 3 {
			passed.Add(int64(m.Len()))
			return nil
		}
		select {
		case waiting <- struct{}{}:
		default:
		}
		<-ctx.Done() // paced: its turn never comes
		return ctx.Err()
	})
	b.route("r", 500_000, "batch_size: 100")
	<-waiting
	b.node.SetDesired(nil, nil)
	b.empty()
	if n := b.rows("r"); int64(n) != passed.Load() {
		t.Errorf("%d rows are committed, want the %d that passed", n, passed.Load())
	}
}

// A coordinator that is away for less than the lease's margin (it elects a
// leader) costs no run: the commit is tried again under the same epoch.
func TestCommitOutlivesACoordinatorThatElectsALeader(t *testing.T) {
	b := setup(t, Timing{})
	var batches atomic.Int64
	b.setFault(func(_ context.Context, m *message.Batch) error {
		if batches.Add(1) == 2 {
			b.c.SetAvailable(false)
			time.AfterFunc(300*time.Millisecond, func() { b.c.SetAvailable(true) })
		}
		return nil
	})
	b.route("r", 3_000, "batch_size: 1000\nroll: {records: 500}")
	s := b.state("r", lease.StateDone)
	if s.Epoch != 1 {
		t.Errorf("epoch %d: the run ended", s.Epoch)
	}
	if n := b.rows("r"); n != 3_000 {
		t.Errorf("%d rows", n)
	}
}
