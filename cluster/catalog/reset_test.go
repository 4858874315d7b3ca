package catalog

import (
	"errors"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

func TestResetFencesTheRunningOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, partsA), ApplyOptions{})
	r := f.route(t, "r")
	held := f.claim(t, r, "a/b.csv", 1)
	before, err := f.Reset(t.Context(), "r", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != 1 || before[0].Partition != "a/b.csv" || before[0].Record.Position.Sort != message.SortKey(1000) {
		t.Errorf("before: %+v", before)
	}
	now := f.route(t, "r")
	if now.Series == r.Series || now.Generation != r.Generation+1 || now.UID != r.UID {
		t.Errorf("route %+v, was %+v", now, r)
	}
	next := held
	next.Position = message.Position{Sort: message.SortKey(2000)}
	if _, err := checkpoint.Commit(t.Context(), f.store, f.key(r.UID, "a/b.csv"), held, next); !errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("the run before still commits: %v", err)
	}
	rec := f.record(t, r.UID, "a/b.csv")
	if !rec.Position.IsZero() || rec.Series != now.Series || len(rec.Intents) != 0 {
		t.Errorf("record %+v", rec)
	}
	// The next owner starts at the beginning, above the floor.
	mark, err := f.epochs.Claimed(t.Context(), r.UID, "a/b.csv", "out")
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := f.epochs.NextEpoch(t.Context(), r.UID, "a/b.csv")
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := checkpoint.Claim(t.Context(), f.store, checkpoint.ClaimRequest{
		Key: f.key(r.UID, "a/b.csv"), ClusterUID: "cluster-1", RouteUID: r.UID, Series: now.Series, Generation: now.Generation,
		Epoch: epoch, Run: "next", Floor: &checkpoint.Floor{Store: mark.Store, Epoch: mark.Epoch, Version: mark.Version},
	})
	if err != nil || claimed.Resumed {
		t.Errorf("claim after the reset: %+v %v", claimed, err)
	}
}

// TestResetLeavesARunOfTheNewSeriesAlone: between the two steps of a reset a
// run may have claimed under the new series and written; to rewind it would
// write that again.
func TestResetLeavesARunOfTheNewSeriesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 1)
	next := r
	next.Series, next.Generation = "new", 2
	f.claim(t, next, "p0", 2)
	e, err := f.Get(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.startSeries(t.Context(), f.store, e, next); err != nil {
		t.Fatal(err)
	}
	if rec := f.record(t, r.UID, "p0"); rec.Position.IsZero() || rec.Epoch != 2 {
		t.Errorf("record %+v", rec)
	}
}

func TestResetCuresALostRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	err := f.epochs.SetClaimed(t.Context(), r.UID, "p0", "out", lease.Claimed{Store: f.store.Identity(), Epoch: 9, Version: 40})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Reset(t.Context(), "r", ""); err != nil {
		t.Fatal(err)
	}
	rec := f.record(t, r.UID, "p0")
	mark, err := f.epochs.Claimed(t.Context(), r.UID, "p0", "out")
	if err != nil || mark.Version > rec.Version || mark.Epoch > rec.Epoch {
		t.Errorf("mark %+v above record %+v (%v)", mark, rec, err)
	}
}

func TestResetOfOnePartitionIsRefusedWhereTheSeriesNamesRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, partsA), ApplyOptions{})
	f.claim(t, f.route(t, "r"), "p0", 1)
	_, err := f.Reset(t.Context(), "r", "p0")
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v", err)
	}
}

func TestResetOfOnePartitionLeavesTheOthers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 1)
	f.claim(t, r, "p1", 1)
	if _, err := f.Reset(t.Context(), "r", "p0"); err != nil {
		t.Fatal(err)
	}
	if rec := f.record(t, r.UID, "p0"); !rec.Position.IsZero() || rec.Epoch < 2 || rec.Series != r.Series {
		t.Errorf("p0 %+v", rec)
	}
	if rec := f.record(t, r.UID, "p1"); rec.Position.IsZero() || rec.Epoch != 1 {
		t.Errorf("p1 %+v", rec)
	}
	if now := f.route(t, "r"); now.Series != r.Series || now.Generation != r.Generation {
		t.Errorf("route %+v", now)
	}
	if _, err := f.Reset(t.Context(), "r", "p9"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown partition: %v", err)
	}
}

// TestOlderSpecsStayWhileARecordNamesThem: the generation that promised a part
// finishes it, and one that still holds the record may promise another.
func TestOlderSpecsStayWhileARecordNamesThem(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, partsA), ApplyOptions{})
	r := f.route(t, "r")
	first := r.Spec
	held := f.claim(t, r, "p0", 1)
	f.apply(t, spec(plainA, partsA, "batch_size: 2"), ApplyOptions{})
	f.apply(t, spec(plainA, partsA, "batch_size: 3"), ApplyOptions{})
	r = f.route(t, "r")
	if len(r.Older) != 2 || r.Older[1] != first {
		t.Fatalf("older %v", r.Older)
	}
	// The record is claimed under generation 3, with a part that 1 promised.
	next := held
	next.Generation = 3
	next.Intents = []checkpoint.Intent{{Name: "part", Generation: 1}}
	held, err := checkpoint.Commit(t.Context(), f.store, f.key(r.UID, "p0"), held, next)
	if err != nil {
		t.Fatal(err)
	}
	f.apply(t, spec(plainA, partsA, "batch_size: 4"), ApplyOptions{})
	if r = f.route(t, "r"); r.Older[1] != first || r.Older[2] != "" || r.Older[3] == "" {
		t.Errorf("with an intent of 1: %v", r.Older)
	}
	next = held
	next.Intents, next.Generation = nil, 4
	if _, err := checkpoint.Commit(t.Context(), f.store, f.key(r.UID, "p0"), held, next); err != nil {
		t.Fatal(err)
	}
	f.apply(t, spec(plainA, partsA, "batch_size: 5"), ApplyOptions{})
	if r = f.route(t, "r"); len(r.Older) != 1 || r.Older[4] == "" {
		t.Errorf("after the intent: %v", r.Older)
	}
}
