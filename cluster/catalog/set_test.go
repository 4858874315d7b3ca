package catalog

import (
	"errors"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// TestASetIntoPromisedPartsIsRefused: a part that an intent promised may be made by
// whoever was fenced, and one that starts inside it would hold its records again.
func TestASetIntoPromisedPartsIsRefused(t *testing.T) {
	t.Parallel()
	at := func(n int64) message.Position { return message.Position{Sort: message.SortKey(n)} }
	rec := checkpoint.Record{Position: at(100), Intents: []checkpoint.Intent{{From: at(100), End: at(200)}}}
	parts := definition{Spec: &route.Spec{}, sink: route.SinkCapabilities{Parts: true}}
	for n, allowed := range map[int64]bool{0: false, 99: false, 100: false, 150: false, 200: true, 300: true} {
		var refusal *Refusal
		if err := settable(Entry{}, parts, rec, at(n)); (err == nil) != allowed || err != nil && !errors.As(err, &refusal) {
			t.Errorf("parts, to %d: %v", n, err)
		}
		if err := settable(Entry{}, definition{Spec: &route.Spec{}}, rec, at(n)); err != nil {
			t.Errorf("rows, to %d: %v", n, err)
		}
	}
}

func TestSetIsRefusedWhereNobodyCanNameAPosition(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, spec(plainA, plainB), ApplyOptions{})
	r := f.route(t, "r")
	f.claim(t, r, "p0", 1)
	if _, _, err := f.SetPosition(t.Context(), "r", "p0", "5", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("a partition that nobody listed: %v", err)
	}
	put(t, f.c, f.keys.Partition("r", "p0"), string(lease.Encode(lease.Partition{ID: "p0", Node: "n7"})))
	var refusal *Refusal
	if _, _, err := f.SetPosition(t.Context(), "r", "p0", "5", false); !errors.As(err, &refusal) || refusal.Hint != "ask that node, with --server" {
		t.Errorf("data on another node: %v", err)
	}
	if rec := f.record(t, r.UID, "p0"); rec.Epoch != 1 || rec.Position.Sort != message.SortKey(1000) {
		t.Errorf("changed all the same: %+v", rec)
	}
}
