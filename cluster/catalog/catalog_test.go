package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// endpoint is a config that every test endpoint has.
type endpoint struct {
	Where string `yaml:"where"`
	Tune  int    `yaml:"tune" default:"1"`
}

// registry has a numbered source, a sink of parts, a plain sink and a
// middleware that splits.
func registry() *connectors.Registry {
	source := route.SourceCapabilities{
		StableIdentity: true, DurablePosition: true, NumberedPosition: true, Locality: route.Shared,
	}
	typ := func(name string, caps route.SinkCapabilities) connectors.Type {
		return connectors.Type{EndpointType: route.EndpointType{
			Name: name, NewConfig: func() any { return new(endpoint) },
			Source: func(any) route.SourceCapabilities { return source },
			Sink:   func(any) route.SinkCapabilities { return caps },
		}}
	}
	return connectors.NewRegistry([]connectors.Type{
		typ("parts", route.SinkCapabilities{Tier: route.TierDeterministic, Parts: true, Durable: true, Locality: route.Shared}),
		typ("plain", route.SinkCapabilities{Tier: route.TierNone, Locality: route.Shared, Why: "plain repeats"}),
	}, []connectors.MiddlewareType{{MiddlewareType: route.MiddlewareType{
		Name: "explode", NewConfig: func() any { return new(endpoint) }, Input: true, Output: true,
		Capabilities: func(any) route.MiddlewareCapabilities {
			return route.MiddlewareCapabilities{Shape: route.ShapeSplit, ReplaySame: true}
		},
	}}})
}

type fixture struct {
	*Catalog
	c    lease.Coordinator
	keys lease.Keys
	// store is what OpenStore gives, whatever the spec says.
	store checkpoint.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	c := memory.New()
	t.Cleanup(func() { _ = c.Close() })
	f := &fixture{c: c, keys: lease.NewKeys("test")}
	put(t, c, f.keys.ClusterUID(), "cluster-1")
	f.store = coordinator.New(c, f.keys)
	t.Cleanup(func() { _ = f.store.Close() })
	var n atomic.Int64
	f.Catalog = New(Config{
		Coordinator: c, Keys: f.keys, Cluster: "test", Registry: registry(),
		OpenStore: func(_ context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
			if spec.CheckpointStore != "" {
				return elsewhere{f.store}, func() error { return nil }, nil
			}
			return f.store, func() error { return nil }, nil
		},
		NewID: func() string { return fmt.Sprintf("id%d", n.Add(1)) },
	})
	return f
}

// elsewhere is the same store under another name.
type elsewhere struct{ checkpoint.Store }

func (elsewhere) Identity() string { return "elsewhere" }

func put(t *testing.T, c lease.Coordinator, key, value string) {
	t.Helper()
	if _, err := c.Txn(t.Context(), nil, []lease.Op{lease.Put(key, []byte(value))}); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) apply(t *testing.T, text string, opts ApplyOptions) Result {
	t.Helper()
	res, err := f.Apply(t.Context(), []byte(text), opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(res) != 1 {
		t.Fatalf("%d results", len(res))
	}
	return res[0]
}

func (f *fixture) route(t *testing.T, name string) lease.Route {
	t.Helper()
	e, err := f.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return e.Route
}

// spec is a route between two test endpoints; more are lines at route level.
func spec(in, out string, more ...string) string {
	s := fmt.Sprintf("routes:\n  r:\n    input: {%s}\n    output: {%s}\n", in, out)
	for _, m := range more {
		s += "    " + m + "\n"
	}
	return s
}

const (
	plainA = "plain: {where: a}"
	plainB = "plain: {where: b}"
	partsA = "parts: {where: a}"
)

func TestApplyCreatesChangesAndLeavesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if res := f.apply(t, spec(plainA, plainB), ApplyOptions{DryRun: true}); res.Outcome != Created {
		t.Fatalf("dry run: %+v", res)
	}
	if _, err := f.Get(t.Context(), "r"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("a dry run wrote: %v", err)
	}
	res := f.apply(t, spec(plainA, plainB), ApplyOptions{})
	first := f.route(t, "r")
	if res.Outcome != Created || first.Generation != 1 || first.UID == "" || first.Series == "" || first.UID == first.Series {
		t.Fatalf("created: %+v, %+v", res, first)
	}
	if res := f.apply(t, spec(plainA, plainB)+"# a comment\n", ApplyOptions{}); res.Outcome != Unchanged || res.Generation != 1 {
		t.Fatalf("unchanged: %+v", res)
	}
	res = f.apply(t, spec(plainA, plainB, "batch_size: 7"), ApplyOptions{})
	second := f.route(t, "r")
	if res.Outcome != Changed || second.Generation != 2 || second.UID != first.UID || second.Series != first.Series {
		t.Fatalf("changed: %+v, %+v", res, second)
	}
	if len(second.Older) != 0 {
		t.Errorf("a sink without parts keeps older specs: %v", second.Older)
	}
}

func TestInvalidFileChangesNothingAndNamesEveryError(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.Apply(t.Context(), []byte("routes:\n  r:\n    input: {plain: {wher: a}}\n    output: {nope: {}}\n  ok:\n    input: {"+plainA+"}\n"), ApplyOptions{})
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	all := errors.Join(invalid.Problems...).Error()
	for _, want := range []string{"routes.yaml:3:", "wher", "nope"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in:\n%s", want, all)
		}
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("routes were written: %v %v", list, err)
	}
}

func TestRequiredDeliveryRefusesAtApply(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.Apply(t.Context(), []byte(spec(plainA, plainB, "required_delivery: exactly-once")), ApplyOptions{})
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
}

func TestPositionCarriesOverOnlyWhereItMeansTheSame(t *testing.T) {
	t.Parallel()
	base := spec(plainA, plainB)
	for name, c := range map[string]struct {
		next    string
		refused bool
	}{
		"batch size":          {spec(plainA, plainB, "batch_size: 9"), false},
		"explicit default":    {spec("plain: {where: a, tune: 1}", plainB), false},
		"another input":       {spec(plainB, plainB), true},
		"another output":      {spec(plainA, plainA), true},
		"another output type": {spec(plainA, partsA), true},
		"a split":             {spec(plainA+", middlewares: [explode: {}]", plainB), true},
		"another store":       {spec(plainA, plainB, "checkpoint_store: postgres://h/db"), true},
		"shared storage":      {spec(plainA, plainB, "shared_storage: true"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.apply(t, base, ApplyOptions{})
			before := f.route(t, "r")
			res := f.apply(t, c.next, ApplyOptions{})
			if !c.refused {
				if res.Outcome != Changed || res.Err != nil {
					t.Fatalf("got %+v", res)
				}
				return
			}
			var refusal *Refusal
			if res.Outcome != Refused || !errors.As(res.Err, &refusal) || !strings.Contains(refusal.Hint, "--position") {
				t.Fatalf("got %+v", res)
			}
			if now := f.route(t, "r"); now.Generation != before.Generation || now.Spec != before.Spec {
				t.Error("a refused change was written")
			}
		})
	}
}

func TestPositionKeepGoesOnAndKeepsTheSeries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	before := f.route(t, "r")
	res := f.apply(t, spec(plainA, plainA), ApplyOptions{Position: PositionKeep})
	now := f.route(t, "r")
	if res.Outcome != Changed || now.Generation != 2 || now.Series != before.Series {
		t.Fatalf("got %+v %+v", res, now)
	}
	res = f.apply(t, spec(plainA, plainA, "checkpoint_store: postgres://h/db"), ApplyOptions{Position: PositionKeep})
	if res.Outcome != Refused {
		t.Errorf("a record was left behind in another store: %+v", res)
	}
}

func TestPositionEarliestStartsANewSeriesAndRewindsRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 3)
	res := f.apply(t, spec(plainB, plainB), ApplyOptions{Position: PositionEarliest})
	now := f.route(t, "r")
	if res.Outcome != Changed || now.Series == r.Series || now.Generation != 2 {
		t.Fatalf("got %+v %+v", res, now)
	}
	rec := f.record(t, r.UID, "p0")
	if !rec.Position.IsZero() || rec.Series != now.Series || rec.Generation != 2 || rec.Epoch <= 3 {
		t.Errorf("record %+v", rec)
	}
}

func TestUnknownPositionsAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, p := range []Position{PositionLatest, "yesterday"} {
		_, err := f.Apply(t.Context(), []byte(spec(plainA, plainB)), ApplyOptions{Position: p})
		var refusal *Refusal
		if !errors.As(err, &refusal) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestDeleteKeepsEpochsAndARecreatedRouteIsAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 3)
	put(t, f.c, f.keys.Assignment("r", "p0"), "{}")
	put(t, f.c, f.keys.Partition("r", "p0"), "{}")
	put(t, f.c, f.keys.Partition("r2", "p0"), "{}")
	if err := f.Delete(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{
		f.keys.Assignment("r", "p0"):       false,
		f.keys.Partition("r", "p0"):        false,
		f.keys.Partition("r2", "p0"):       true,
		f.keys.Epoch(r.UID, "p0"):          true,
		f.keys.Claimed(r.UID, "p0", "out"): true,
	} {
		kv, _, err := f.c.Get(t.Context(), key)
		if err != nil || (kv != nil) != want {
			t.Errorf("%s: there=%v, want %v (%v)", key, kv != nil, want, err)
		}
	}
	if err := f.Delete(t.Context(), "r"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second delete: %v", err)
	}
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	if again := f.route(t, "r"); again.UID == r.UID || again.Series == r.Series || again.Generation != 1 {
		t.Errorf("re-created: %+v, was %+v", again, r)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	if err := f.Pause(t.Context(), "r"); err != nil || !f.route(t, "r").Paused {
		t.Fatalf("pause: %v", err)
	}
	f.apply(t, spec(plainA, plainB, "batch_size: 3"), ApplyOptions{})
	if !f.route(t, "r").Paused {
		t.Error("a change resumed a paused route")
	}
	if err := f.Resume(t.Context(), "r"); err != nil || f.route(t, "r").Paused {
		t.Fatalf("resume: %v", err)
	}
}

// overtaken lets somebody else write before the first transaction of its user.
type overtaken struct {
	lease.Coordinator
	by func()
}

func (o *overtaken) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	if by := o.by; by != nil {
		o.by = nil
		by()
	}
	return o.Coordinator.Txn(ctx, compares, ops)
}

// TestApplyOvertakenByAnotherLosesNoGeneration: a write that is not compared
// with what it was decided on would give one generation to two specs.
func TestApplyOvertakenByAnotherLosesNoGeneration(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	o := &overtaken{Coordinator: f.c, by: func() { f.apply(t, spec(plainA, plainB, "batch_size: 10"), ApplyOptions{}) }}
	cfg := f.cfg
	cfg.Coordinator = o
	res, err := New(cfg).Apply(t.Context(), []byte(spec(plainA, plainB, "batch_size: 11")), ApplyOptions{})
	if err != nil || res[0].Err != nil || res[0].Generation != 3 {
		t.Fatalf("%+v %v", res, err)
	}
	if r := f.route(t, "r"); r.Generation != 3 || !strings.Contains(r.Spec, "11") {
		t.Errorf("route %+v", r)
	}
}

func TestCreationOvertakenByAnotherMakesOneRoute(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := &overtaken{Coordinator: f.c, by: func() { f.apply(t, spec(plainA, plainB), ApplyOptions{}) }}
	cfg := f.cfg
	cfg.Coordinator = o
	res, err := New(cfg).Apply(t.Context(), []byte(spec(plainA, plainB)), ApplyOptions{})
	if err != nil || res[0].Outcome != Unchanged {
		t.Errorf("%+v %v", res, err)
	}
}

func TestDeleteOvertakenByAnApplyDeletesWhatIsThere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	o := &overtaken{Coordinator: f.c, by: func() { f.apply(t, spec(plainA, plainB, "batch_size: 10"), ApplyOptions{}) }}
	cfg := f.cfg
	cfg.Coordinator = o
	if err := New(cfg).Delete(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Get(t.Context(), "r"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// claim makes a record and its mark as a run of this epoch would.
func (f *fixture) claim(t *testing.T, r lease.Route, partition string, epoch uint64) checkpoint.Record {
	t.Helper()
	if err := f.epochs.RaiseEpoch(t.Context(), r.UID, partition, epoch); err != nil {
		t.Fatal(err)
	}
	key := f.key(r.UID, partition)
	got, err := checkpoint.Claim(t.Context(), f.store, checkpoint.ClaimRequest{
		Key: key, ClusterUID: "cluster-1", RouteUID: r.UID, Series: r.Series, Generation: r.Generation,
		Epoch: epoch, Run: "run",
	})
	if err != nil {
		t.Fatal(err)
	}
	next := got.Record
	next.Position = message.Position{Sort: message.SortKey(1000)}
	rec, err := checkpoint.Commit(t.Context(), f.store, key, got.Record, next)
	if err != nil {
		t.Fatal(err)
	}
	err = f.epochs.SetClaimed(t.Context(), r.UID, partition, "out", lease.Claimed{
		Store: f.store.Identity(), Epoch: epoch, Version: rec.Version,
	})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func (f *fixture) key(uid, partition string) string {
	return checkpoint.Key{Cluster: "test", RouteUID: uid, Partitioning: "1", Partition: partition, Leg: "out"}.String()
}

func (f *fixture) record(t *testing.T, uid, partition string) checkpoint.Record {
	t.Helper()
	rec, err := f.store.Load(t.Context(), f.key(uid, partition))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}
