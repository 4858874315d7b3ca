package actors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// owner is the ownership record as the coordinator has it, nil if there is none.
func (b *bench) owner(name string) *lease.KV {
	b.t.Helper()
	kv, _, err := b.c.Get(b.t.Context(), b.keys.Owner(name, name+".csv"))
	if err != nil {
		b.t.Fatal(err)
	}
	return kv
}

// ownerBecomes waits until the ownership record is there, or gone.
func (b *bench) ownerBecomes(name string, there bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	kv, rev, err := b.c.Get(ctx, b.keys.Owner(name, name+".csv"))
	if err != nil {
		b.t.Fatal(err)
	}
	if (kv != nil) == there {
		return
	}
	for r := range b.c.Watch(ctx, b.keys.Owner(name, name+".csv"), rev+1) {
		for _, e := range r.Events {
			if (e.Type == lease.EventPut) == there {
				return
			}
		}
	}
	b.t.Fatalf("the ownership record of %s: there is not %v", name, there)
}

// The run fails and keeps its ownership; the next attempt cannot even ask the
// coordinator, and then the partition is wanted elsewhere. The lease lives on, so
// a key left behind would keep every other node out for ever.
func TestOwnerKeyIsDroppedThoughTheLastAttemptCouldNotAcquire(t *testing.T) {
	b := setup(t, Timing{Backoff: 400 * time.Millisecond, BackoffMax: 400 * time.Millisecond})
	var once atomic.Bool
	b.setFault(func(context.Context, *message.Batch) error {
		if once.CompareAndSwap(false, true) {
			return connectors.Connection(errors.New("gone"))
		}
		return nil
	})
	b.route("r", 1_000, "")
	b.await("r", "waiting for its next try", func(s lease.PartitionStatus) bool { return strings.Contains(s.Error, "gone") })
	b.c.SetAvailable(false)
	b.await("r", "failing to acquire", func(s lease.PartitionStatus) bool { return strings.Contains(s.Error, "acquire") })
	b.node.SetDesired(nil, nil)
	b.c.SetAvailable(true)
	before := b.session.Generation()
	b.ownerBecomes("r", false)
	if b.session.Generation() != before {
		t.Error("the key went with the lease and was not dropped")
	}
}

// The same when it is the release that the coordinator does not answer.
func TestOwnerKeyIsDroppedThoughTheReleaseFailed(t *testing.T) {
	b := setup(t, Timing{Backoff: 5 * time.Millisecond, BackoffMax: 10 * time.Millisecond, Quarantine: time.Hour})
	var batches atomic.Int64
	durable := make(chan struct{})
	b.setFault(func(ctx context.Context, _ *message.Batch) error {
		if batches.Add(1) == 1 {
			return nil
		}
		select {
		case <-durable:
		case <-ctx.Done():
		}
		b.c.SetAvailable(false)
		return connectors.Permanent(errors.New("misconfigured"), "")
	})
	b.route("r", 100, "batch_size: 50\nroll: {records: 50}")
	b.await("r", "at 50", func(s lease.PartitionStatus) bool { return s.Position == "50" })
	close(durable)
	b.state("r", lease.StateQuarantined)
	b.node.SetDesired(nil, nil)
	b.c.SetAvailable(true)
	before := b.session.Generation()
	b.ownerBecomes("r", false)
	if b.session.Generation() != before {
		t.Error("the key went with the lease and was not dropped")
	}
}

// give_up_after counts from the first failure, not from the start of a run that
// went well for longer than that.
func TestFirstFailureOfALongRunKeepsTheOwnership(t *testing.T) {
	b := setup(t, Timing{})
	long := make(chan struct{})
	var batches atomic.Int64
	b.setFault(func(ctx context.Context, _ *message.Batch) error {
		if batches.Add(1) == 2 {
			select {
			case <-long:
			case <-ctx.Done():
			}
			return connectors.Connection(errors.New("gone"))
		}
		return nil
	})
	b.route("r", 2_000, "batch_size: 1000\ngive_up_after: 1s\ncheckpoint_interval: 100ms\nroll: {records: 500}")
	s := b.state("r", lease.StateRunning)
	_, rev, err := b.c.Get(t.Context(), b.keys.Owner("r", "r.csv"))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1200*time.Millisecond, func() { close(long) })
	done := b.state("r", lease.StateDone)
	if done.Epoch <= s.Epoch {
		t.Fatalf("epoch %d: no second run", done.Epoch)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := <-b.c.Watch(ctx, b.keys.Owner("r", "r.csv"), rev+1) // the next acquire
	for _, e := range first.Events {
		if e.Type == lease.EventDelete {
			t.Fatal("the ownership was given up at the first failure")
		}
	}
}

// A sink that opens well and then refuses everything (a full disk) gets a growing
// back-off and, after give_up_after, gives the partition back.
func TestRunsThatGetNowhereBackOffAndGiveUp(t *testing.T) {
	b := setup(t, Timing{Backoff: 20 * time.Millisecond, BackoffMax: 400 * time.Millisecond, Quarantine: time.Hour})
	b.setFault(func(context.Context, *message.Batch) error { return connectors.Connection(errors.New("full")) })
	b.route("r", 100, "give_up_after: 1s")
	b.state("r", lease.StateRunning)
	b.ownerBecomes("r", false)
	s := b.state("r", lease.StateQuarantined)
	if s.Epoch > 12 {
		t.Errorf("%d runs within a second", s.Epoch)
	}
	if !strings.Contains(s.Error, "full") || s.NextTry.IsZero() {
		t.Errorf("%+v", s)
	}
	addsUp(t, s.Counters)
}

// A partition that is done runs nothing that would notice the loss of the lease,
// and with the lease its owner key went.
func TestDonePartitionIsAcquiredAgainWhenTheLeaseIsLost(t *testing.T) {
	b := setup(t, Timing{})
	b.route("r", 1_000, "exit_on_empty: true")
	s := b.state("r", lease.StateDone)
	b.ownerBecomes("r", true)
	if err := b.c.Revoke(t.Context(), b.session.Lease()); err != nil {
		t.Fatal(err)
	}
	b.await("r", "done again", func(p lease.PartitionStatus) bool { return p.State == lease.StateDone && p.Epoch > s.Epoch })
	if b.owner("r") == nil {
		t.Error("nobody holds the owner key")
	}
	if n := b.rows("r"); n != 1_000 {
		t.Errorf("%d rows", n)
	}
	b.node.SetDesired(nil, nil)
	b.ownerBecomes("r", false)
}

// While the gate is closed the partition is shown as suspended, not as acquiring.
func TestSuspendedIsShownUntilTheGateOpens(t *testing.T) {
	b := setup(t, Timing{})
	b.setFault(func(ctx context.Context, _ *message.Batch) error { <-ctx.Done(); return ctx.Err() })
	b.route("r", 100, "")
	b.state("r", lease.StateRunning)
	b.c.SetAvailable(false)
	b.state("r", lease.StateSuspended)
	for range 20 {
		synced := b.node.Changed()
		if s := b.node.Status(); len(s) == 1 && s[0].State != lease.StateSuspended {
			t.Fatalf("shown as %s", s[0].State)
		}
		select {
		case <-synced:
		case <-time.After(5 * time.Millisecond):
		}
	}
	b.setFault(func(context.Context, *message.Batch) error { return nil })
	b.c.SetAvailable(true)
	b.state("r", lease.StateDone)
}

// Between a panic and the next attempt nothing runs, and the status says so.
func TestBackingOffAfterAPanicIsNotShownAsRunning(t *testing.T) {
	b := setup(t, Timing{Backoff: time.Hour, BackoffMax: time.Hour})
	b.setFault(func(context.Context, *message.Batch) error { panic("thirteen") })
	b.route("r", 100, "")
	s := b.await("r", "failed", func(p lease.PartitionStatus) bool { return p.Error != "" })
	if s.State != lease.StateAcquiring || !strings.Contains(s.Error, "thirteen") || s.NextTry.IsZero() {
		t.Errorf("%+v", s)
	}
}

// A panic in the middle of a batch costs nothing of the budget that all routes share.
func TestPanicStormLeavesTheBudgetWhole(t *testing.T) {
	b := setup(t, Timing{Backoff: time.Millisecond, BackoffMax: 2 * time.Millisecond, Quarantine: time.Hour})
	b.setFault(func(context.Context, *message.Batch) error { panic("boom") })
	b.route("r", 1_000, "")
	b.state("r", lease.StateQuarantined)
	budget := b.node.cfg.Budget
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := budget.Acquire(ctx, budget.Size()); err != nil {
		t.Errorf("bytes are missing: %v", err)
	}
}

// One partition builds the runtime of a route for all; the others must be able to
// stop while it waits for a database that does not answer.
func TestStopIsNotHeldUpByAnotherPartitionThatConnects(t *testing.T) {
	building := make(chan struct{})
	end := make(chan struct{})
	rs := newRuntimes(Config{Registry: connectors.NewRegistry([]connectors.Type{{
		EndpointType: route.EndpointType{Name: "slow"},
		NewSource: func(any, *route.Spec, connectors.Env) (connectors.Source, error) {
			close(building)
			<-end
			return nil, errors.New("gone")
		},
	}}, nil)})
	spec := &route.Spec{Name: "r", Input: route.Endpoint{Type: "slow"}, Output: route.Endpoint{Type: "slow"}}
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _, _ = rs.get(context.Background(), "uid", 1, spec)
	}()
	<-building
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	second := make(chan error, 1)
	go func() { _, _, err := rs.get(ctx, "uid", 1, spec); second <- err }()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("waits for the other one")
	}
	close(end)
	<-first
}

// shySink is a sink whose connection fails as often as the test says.
type shySink struct {
	connectors.Sink
	fail func(*route.Spec) error
	spec *route.Spec
	open *atomic.Int64 // connections that were made and neither opened nor closed
	bad  *atomic.Int64 // those that were closed twice, or behind a writer's back
}

func (s shySink) Prepare(ctx context.Context, p connectors.Partition) (connectors.Prepared, error) {
	if err := s.fail(s.spec); err != nil {
		return nil, err
	}
	c, err := s.Sink.Prepare(ctx, p)
	s.open.Add(1)
	return &shyPrepared{Prepared: c, open: s.open, bad: s.bad}, err
}

type shyPrepared struct {
	connectors.Prepared
	open, bad *atomic.Int64
	done      bool
}

func (p *shyPrepared) Open(ctx context.Context, c connectors.Claim) (connectors.Writer, error) {
	w, err := p.Prepared.Open(ctx, c)
	if err == nil {
		p.end()
	}
	return w, err
}

func (p *shyPrepared) Close() error { p.end(); return p.Prepared.Close() }

func (p *shyPrepared) end() {
	if p.done {
		p.bad.Add(1)
		return
	}
	p.done = true
	p.open.Add(-1)
}

// The promise of an older generation is to be finished, and its sink does not
// answer at first: that is an error of the connection and no panic, and each
// connection is closed once.
func TestConnectionErrorOfTheOlderGenerationsSinkIsTriedAgain(t *testing.T) {
	var open, bad, failures atomic.Int64
	shy := file.Type()
	shy.Name, shy.Source = "shy", nil
	newSink := shy.NewSink
	b := setup(t, Timing{Backoff: time.Millisecond, BackoffMax: 5 * time.Millisecond, Intensity: 1, Quarantine: time.Hour}, func(types []connectors.Type) []connectors.Type {
		shy.NewSink = func(config any, spec *route.Spec, env connectors.Env) (connectors.Sink, error) {
			s, err := newSink(config, spec, env)
			return shySink{Sink: s, spec: spec, open: &open, bad: &bad, fail: func(spec *route.Spec) error {
				if spec.BatchSize == 7 && failures.Add(1) <= 3 {
					return connectors.Connection(errors.New("refused"))
				}
				return nil
			}}, err
		}
		return append(types, shy)
	})
	b.route("r", 20, "batch_size: 8")
	b.state("r", lease.StateDone)
	b.node.SetDesired(nil, nil)
	b.ownerBecomes("r", false)
	old := b.routes["r"].Route
	// The record as a crash right after an intent would leave it.
	store := coordinator.New(b.c, b.keys)
	key := checkpoint.Key{Cluster: "test", RouteUID: "uid-r", Partitioning: partitioning, Partition: "r.csv", Leg: theLeg}.String()
	now, err := store.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	parts, _ := filepath.Glob(filepath.Join(b.dir, "r", "part-*"))
	if len(parts) != 1 {
		t.Fatalf("%v", parts)
	}
	if err := os.Remove(parts[0]); err != nil {
		t.Fatal(err)
	}
	promised := now
	promised.Position = message.Position{Token: []byte(`{"offset":0,"record":0}`), Sort: message.SortKey(0)}
	promised.Intents = []checkpoint.Intent{{From: promised.Position, End: now.Position, Last: 19, Records: 20, Name: filepath.Base(parts[0]), Generation: 1}}
	promised.Version++
	if err := store.Swap(t.Context(), key, now.Version, promised); err != nil {
		t.Fatal(err)
	}
	yaml := strings.Replace(old.Spec, "output:\n  file:", "output:\n  shy:", 1)
	b.put("r", lease.Route{UID: old.UID, Series: old.Series, Generation: 2, Spec: yaml,
		Older: map[uint64]string{1: strings.Replace(yaml, "batch_size: 8", "batch_size: 7", 1)}})
	s := b.await("r", "done", func(p lease.PartitionStatus) bool { return p.State == lease.StateDone && p.Position == "20" })
	if n := b.rows("r"); n != 20 || failures.Load() < 4 {
		t.Errorf("%d rows after %d tries: %+v", n, failures.Load(), s)
	}
	b.node.SetDesired(nil, nil)
	b.ownerBecomes("r", false)
	if open.Load() != 0 || bad.Load() != 0 {
		t.Errorf("%d connections left, %d closed twice", open.Load(), bad.Load())
	}
}

// farSource is a source whose server does not answer at first.
type farSource struct {
	connectors.Source
	fail func() error
}

func (s farSource) Connect(context.Context) error { return s.fail() }

// A claim ends the run before it, and everybody waits while it is made: a server that
// does not answer is found out before.
func TestNothingIsClaimedWhileTheSourceIsOutOfReach(t *testing.T) {
	var tries atomic.Int64
	var b *bench
	far := file.Type()
	far.Name, far.Sink = "far", nil
	newSource := far.NewSource
	far.NewSource = func(config any, spec *route.Spec, env connectors.Env) (connectors.Source, error) {
		s, err := newSource(config, spec, env)
		return farSource{s, func() error {
			n := tries.Add(1)
			if list, err := coordinator.New(b.c, b.keys).List(t.Context(), ""); err != nil || len(list) > 0 {
				t.Errorf("try %d: claimed before: %v %v", n, list, err)
			}
			if n < 4 {
				return connectors.Connection(errors.New("refused"))
			}
			return nil
		}}, err
	}
	b = setup(t, Timing{Backoff: time.Millisecond, BackoffMax: 5 * time.Millisecond}, func(types []connectors.Type) []connectors.Type { return append(types, far) })
	in := filepath.Join(b.dir, "r.csv")
	if err := os.WriteFile(in, []byte("id\n1\n2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.put("r", lease.Route{UID: "uid-r", Series: "s1", Generation: 1,
		Spec: fmt.Sprintf("input:\n  far: {path: %q, format: csv}\noutput:\n  file: {path: %q, name_by: source_position}\nshared_storage: true\n", in, filepath.Join(b.dir, "r"))})
	b.state("r", lease.StateDone)
	if n := b.rows("r"); n != 2 || tries.Load() != 4 {
		t.Errorf("%d rows after %d tries", n, tries.Load())
	}
}

// A partition that is still connecting to a system which does not answer has
// nothing to drain: it is handed over at once.
func TestStopDoesNotWaitForASystemThatDoesNotAnswer(t *testing.T) {
	connecting := make(chan struct{})
	shy := file.Type()
	shy.Name, shy.Source = "shy", nil
	newSink := shy.NewSink
	shy.NewSink = func(config any, spec *route.Spec, env connectors.Env) (connectors.Sink, error) {
		s, err := newSink(config, spec, env)
		return silentSink{Sink: s, connecting: connecting}, err
	}
	b := setup(t, Timing{Drain: time.Hour}, func(types []connectors.Type) []connectors.Type { return append(types, shy) })
	b.route("r", 20, "")
	b.state("r", lease.StateDone)
	old := b.routes["r"].Route
	b.put("r", lease.Route{UID: old.UID, Series: old.Series, Generation: 2, Spec: strings.Replace(old.Spec, "output:\n  file:", "output:\n  shy:", 1)})
	<-connecting
	b.node.SetDesired(nil, nil)
	b.ownerBecomes("r", false)
}

type silentSink struct {
	connectors.Sink
	connecting chan struct{}
}

func (s silentSink) Prepare(ctx context.Context, _ connectors.Partition) (connectors.Prepared, error) {
	close(s.connecting)
	<-ctx.Done()
	return nil, connectors.Connection(ctx.Err())
}
