package catalog

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/file"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// next claims as the next run of a partition does.
func (f *fixture) next(t *testing.T, s checkpoint.Store, partition string) (checkpoint.Claimed, error) {
	t.Helper()
	r := f.route(t, "r")
	epoch, err := f.epochs.NextEpoch(t.Context(), r.UID, partition)
	if err != nil {
		t.Fatal(err)
	}
	req := checkpoint.ClaimRequest{Key: f.key(r.UID, partition), ClusterUID: "cluster-1", RouteUID: r.UID,
		Series: r.Series, Generation: r.Generation, Epoch: epoch, Run: "next"}
	if mark, err := f.epochs.Claimed(t.Context(), r.UID, partition, "out"); err != nil {
		t.Fatal(err)
	} else if mark != nil {
		req.Floor = &checkpoint.Floor{Store: mark.Store, Epoch: mark.Epoch, Version: mark.Version}
	}
	return checkpoint.Claim(t.Context(), s, req)
}

// withFiles makes file:// stores real.
func (f *fixture) withFiles(t *testing.T, wrap func(checkpoint.Store) checkpoint.Store) {
	t.Helper()
	plain := f.cfg.OpenStore
	f.cfg.OpenStore = func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
		if !strings.HasPrefix(spec.CheckpointStore, "file://") {
			return plain(ctx, spec)
		}
		s, err := file.Open(ctx, spec.CheckpointStore)
		if err != nil {
			return nil, nil, err
		}
		return wrap(s), s.Close, nil
	}
}

func same(s checkpoint.Store) checkpoint.Store { return s }

func TestAMovedRecordGoesOnInTheNewStoreAndNeverInTheOldOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.withFiles(t, same)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	held := f.claim(t, r, "p0", 3)
	f.claim(t, r, "p1", 1)
	url := "file://" + filepath.Join(t.TempDir(), "positions")

	dry, err := f.Adopt(t.Context(), "r", AdoptOptions{Store: url, DryRun: true})
	if err != nil || len(dry) != 2 || f.record(t, r.UID, "p0").MovedTo != "" || f.route(t, "r").Spec != r.Spec {
		t.Fatalf("dry run: %+v %v", dry, err)
	}
	done, err := f.Adopt(t.Context(), "r", AdoptOptions{Store: url})
	if err != nil || len(done) != 2 {
		t.Fatalf("%+v %v", done, err)
	}
	now := f.route(t, "r")
	if now.Paused || now.Generation != r.Generation+1 || now.Series != r.Series || !strings.Contains(now.Spec, url) {
		t.Errorf("route %+v", now)
	}
	// Who ran before the move is fenced, and whoever would go on there is told.
	next := held
	next.Position = message.Position{Sort: message.SortKey(2000)}
	if _, err := checkpoint.Commit(t.Context(), f.store, f.key(r.UID, "p0"), held, next); !errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("the run before still commits: %v", err)
	}
	s, err := file.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, p := range []string{"p0", "p1"} {
		got, err := f.next(t, s, p)
		if err != nil || got.Record.Position.Sort != message.SortKey(1000) {
			t.Errorf("%s in the new store: %+v %v", p, got, err)
		}
	}
	// The mark names the new store, so the old one is refused by its name; with the
	// mark lost, the record itself says where it went.
	if _, err := f.next(t, f.store, "p0"); !errors.Is(err, checkpoint.ErrForeign) {
		t.Errorf("in the old store: %v", err)
	}
	if _, err := f.c.Txn(t.Context(), nil, []lease.Op{lease.DeletePrefix(f.keys.ClaimedBy(r.UID))}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.next(t, f.store, "p0"); !errors.Is(err, checkpoint.ErrMoved) {
		t.Errorf("in the old store, without a mark: %v", err)
	}
	// The file that the route had before does not move it back by accident.
	var refusal *Refusal
	if res := f.apply(t, spec(plainA, plainB), ApplyOptions{Position: PositionKeep}); !errors.As(res.Err, &refusal) {
		t.Errorf("apply of the old file: %+v", res)
	}
}

// failing refuses the creation of records while it is told to.
type failing struct {
	checkpoint.Store
	down *bool
}

func (s failing) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if *s.down && strings.Contains(key, "p1") {
		return errors.New("no route to host")
	}
	return s.Store.Swap(ctx, key, expected, rec)
}

func TestAMoveThatWasCutShortIsFinishedByAskingAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	down := true
	f.withFiles(t, func(s checkpoint.Store) checkpoint.Store { return failing{s, &down} })
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 1)
	f.claim(t, r, "p1", 1)
	url := "file://" + filepath.Join(t.TempDir(), "positions")
	if _, err := f.Adopt(t.Context(), "r", AdoptOptions{Store: url}); err == nil {
		t.Fatal("moved into a store that does not answer")
	}
	if now := f.route(t, "r"); !now.Paused || now.Spec != r.Spec {
		t.Errorf("between the stores: %+v", now)
	}
	down = false
	if _, err := f.Adopt(t.Context(), "r", AdoptOptions{Store: url}); err != nil {
		t.Fatal(err)
	}
	s, err := file.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, p := range []string{"p0", "p1"} {
		if got, err := f.next(t, s, p); err != nil || got.Record.Position.Sort != message.SortKey(1000) {
			t.Errorf("%s: %+v %v", p, got, err)
		}
	}
}

func TestAdoptMakesRunsGoOnWhereAPersonDecidedSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// spoil changes the record as it is stored.
		spoil func(rec *checkpoint.Record)
		mark  *lease.Claimed
		want  error
		says  string
	}{
		"another cluster": {func(rec *checkpoint.Record) { rec.ClusterUID = "cluster-0" }, nil, checkpoint.ErrForeign, "takes it over"},
		"below the floor": {nil, &lease.Claimed{Store: "coordinator", Epoch: 9, Version: 99}, checkpoint.ErrRegressed, "written again"},
		"another store":   {nil, &lease.Claimed{Store: "postgres://h/db", Epoch: 9, Version: 99}, checkpoint.ErrForeign, "forgets"},
		"newer generation": {func(rec *checkpoint.Record) { rec.Generation = 7 }, nil, checkpoint.ErrStaleGeneration,
			"generation that the coordinator knows"},
		"series of a reset that a restored coordinator forgot": {func(rec *checkpoint.Record) { rec.Series = "later" }, nil,
			checkpoint.ErrForeign, "into the series"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.apply(t, spec(plainA, plainB), ApplyOptions{})
			r := f.route(t, "r")
			rec := f.claim(t, r, "p0", 5)
			f.claim(t, r, "fine", 1)
			if c.spoil != nil {
				next := rec
				c.spoil(&next)
				next.Version++
				if err := f.store.Swap(t.Context(), f.key(r.UID, "p0"), rec.Version, next); err != nil {
					t.Fatal(err)
				}
			}
			if c.mark != nil {
				put(t, f.c, f.keys.Claimed(r.UID, "p0", "out"), string(lease.Encode(*c.mark)))
			}
			if _, err := f.next(t, f.store, "p0"); !errors.Is(err, c.want) {
				t.Fatalf("before: %v", err)
			}
			plan, err := f.Adopt(t.Context(), "r", AdoptOptions{DryRun: true})
			if err != nil || len(plan) != 1 || plan[0].Partition != "p0" || !strings.Contains(plan[0].Action, c.says) {
				t.Fatalf("plan %+v %v", plan, err)
			}
			if _, err := f.next(t, f.store, "p0"); !errors.Is(err, c.want) {
				t.Fatalf("a dry run changed it: %v", err)
			}
			if _, err := f.Adopt(t.Context(), "r", AdoptOptions{}); err != nil {
				t.Fatal(err)
			}
			got, err := f.next(t, f.store, "p0")
			if err != nil || got.Record.Position.Sort != message.SortKey(1000) {
				t.Errorf("after: %+v %v", got, err)
			}
			if again, err := f.Adopt(t.Context(), "r", AdoptOptions{}); err != nil || len(again) != 0 {
				t.Errorf("a second time: %+v %v", again, err)
			}
		})
	}
}

func TestProbeTellsAStoreThatDoesNotCompare(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	e, err := f.Get(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds the first one's record
		if store, err := f.Probe(t.Context(), e); err != nil || store != "coordinator" {
			t.Fatalf("%s: %v", store, err)
		}
	}
	f.cfg.OpenStore = func(context.Context, *route.Spec) (checkpoint.Store, func() error, error) {
		return careless{f.store}, func() error { return nil }, nil
	}
	var unsafe *UnsafeStoreError
	if _, err := f.Probe(t.Context(), e); !errors.As(err, &unsafe) {
		t.Errorf("a store that writes whatever it is told: %v", err)
	}
}

// careless says yes to every write.
type careless struct{ checkpoint.Store }

func (s careless) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if err := s.Store.Swap(ctx, key, expected, rec); err != nil && !errors.Is(err, checkpoint.ErrConflict) {
		return err
	}
	return nil
}
