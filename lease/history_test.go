package lease_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

func history(t *testing.T, o *owner) lease.History {
	t.Helper()
	kv, _, err := o.client.Get(t.Context(), keys.History("u", "p/0"))
	if err != nil {
		t.Fatal(err)
	}
	if kv == nil {
		return nil
	}
	h, err := lease.Decode[lease.History](kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func says(h lease.History) []string {
	var out []string
	for _, e := range h {
		out = append(out, fmt.Sprintf("%d %s %q", e.Epoch, e.Node, e.End))
	}
	return out
}

func TestHistorySaysWhoHeldAPartitionAndWhyItEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, b *owner) {
		ctx := t.Context()
		take := func(o *owner, before string) lease.Owned {
			t.Helper()
			req := assign(t, s, o.node)
			req.Before = before
			owned, err := o.Acquire(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			return owned
		}
		one := take(a, "")
		if got := says(history(t, a)); !slices.Equal(got, []string{`1 a ""`}) {
			t.Errorf("while it is held: %v", got)
		}
		time.Sleep(time.Minute) // of the bubble
		one.End = "given away"
		if err := a.Release(ctx, one); err != nil {
			t.Fatal(err)
		}
		take(b, "")
		take(b, "gate") // the key was kept over the end of the run before
		b.cancel()      // the process dies without a word
		if err := <-b.ended; err == nil {
			t.Fatal("session ended without an error")
		}
		b.ended <- nil
		deadline := time.Now().Add(time.Minute)
		for {
			synctest.Wait()
			_, err := a.Acquire(ctx, assign(t, s, "a"))
			if err == nil {
				break
			}
			if !errors.Is(err, lease.ErrOwned) || time.Now().After(deadline) {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // of the bubble
		}
		h := history(t, a)
		want := []string{`1 a "given away"`, `2 b "gate"`, fmt.Sprintf("3 b %q", lease.EndLost), `4 a ""`}
		if got := says(h); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if d := h[0].Until.Sub(h[0].From); d != time.Minute {
			t.Errorf("held for %v", d)
		}
	})
}

func TestHistoryIsBoundedAndGoesWithItsRoute(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
		ctx := t.Context()
		var last lease.Owned
		for i := range lease.HistoryLength + 5 {
			owned, err := a.Acquire(ctx, assign(t, s, "a"))
			if err != nil {
				t.Fatal(err)
			}
			if i < lease.HistoryLength+4 {
				if err := a.Release(ctx, owned); err != nil {
					t.Fatal(err)
				}
			}
			last = owned
		}
		h := history(t, a)
		if len(h) != lease.HistoryLength || h[len(h)-1].Epoch != lease.HistoryLength+5 {
			t.Errorf("%d entries: %v", len(h), says(h))
		}
		if _, err := a.client.Txn(ctx, nil, []lease.Op{lease.DeletePrefix(keys.Histories("u"))}); err != nil {
			t.Fatal(err)
		}
		if err := a.Release(ctx, last); err != nil {
			t.Fatal(err)
		}
		if mine, err := a.Mine(ctx, last); err != nil || mine {
			t.Errorf("not released: %v %v", mine, err)
		}
		if h := history(t, a); h != nil {
			t.Errorf("a late release brought the history back: %v", says(h))
		}
	})
}
