package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mqbridge/mqb/lease"
)

func testWatchPast(t *testing.T, h *Harness) {
	from := revision(t, h.client(0)) + 1
	var want []string
	for i := range 20 {
		k := key(t, fmt.Sprint(i%3))
		put(t, h.client(0), lease.Put("/leasetest/other/"+t.Name(), nil)) // not under the prefix
		if i%5 == 4 && get(t, h.client(0), k) != nil {
			rev := put(t, h.client(i), lease.Delete(k))
			want = append(want, fmt.Sprintf("-%s@%d ", k, rev))
		} else {
			rev := put(t, h.client(i), lease.Put(k, fmt.Append(nil, i)))
			want = append(want, fmt.Sprintf("+%s=%d@%d ", k, i, rev))
		}
	}
	for c := range h.Clients {
		w := h.client(c).Watch(within(t), key(t, ""), from)
		for i := range want {
			if got := events(next(t, w)); got != want[i] {
				t.Fatalf("client %d response %d: %s, want %s", c, i, got, want[i])
			}
		}
	}
}

func testWatchFuture(t *testing.T, h *Harness) {
	now := revision(t, h.client(0))
	w := h.client(1).Watch(within(t), key(t, ""), now+3)
	for i := range 4 {
		put(t, h.client(0), lease.Put(key(t, "x"), fmt.Append(nil, i)))
	}
	if r := next(t, w); r.Revision != now+3 || string(r.Events[0].KV.Value) != "2" {
		t.Fatalf("first response at revision %d: %s", r.Revision, events(r))
	}
}

func testWatchGrouped(t *testing.T, h *Harness) {
	w := h.client(1).Watch(within(t), key(t, ""), revision(t, h.client(0))+1)
	rev := put(t, h.client(0), lease.Put(key(t, "a"), nil), lease.Put(key(t, "b"), nil), lease.Put("/leasetest/other/"+t.Name(), nil))
	if r := next(t, w); r.Revision != rev || len(r.Events) != 2 {
		t.Fatalf("revision %d: %s, want 2 events at %d", r.Revision, events(r), rev)
	}
}

func testWatchConcurrent(t *testing.T, h *Harness) {
	const writers, rounds = 4, 15
	ctx := within(t)
	from := revision(t, h.client(0)) + 1
	var wg sync.WaitGroup
	for c := range h.Clients {
		w := h.client(c).Watch(ctx, key(t, ""), from)
		wg.Go(func() {
			// Each writer counts in its own key, so a gap shows as a skipped version.
			versions := map[string]int64{}
			last := int64(0)
			for range writers * rounds {
				r, ok := <-w
				if !ok || r.Err != nil {
					t.Errorf("watch ended: %v", r.Err)
					return
				}
				if r.Revision <= last {
					t.Errorf("revision %d after %d", r.Revision, last)
				}
				last = r.Revision
				for _, e := range r.Events {
					if e.KV.Version != versions[e.KV.Key]+1 {
						t.Errorf("%s: version %d after %d", e.KV.Key, e.KV.Version, versions[e.KV.Key])
					}
					versions[e.KV.Key] = e.KV.Version
				}
			}
		})
	}
	for i := range writers {
		wg.Go(func() {
			for range rounds {
				if _, err := h.client(i).Txn(ctx, nil, []lease.Op{lease.Put(key(t, fmt.Sprint(i)), nil)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func testWatchContext(t *testing.T, h *Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	w := h.client(1).Watch(ctx, key(t, ""), revision(t, h.client(1))+1)
	cancel()
	select {
	case r, ok := <-w:
		if ok {
			t.Fatalf("response after the end: %+v", r)
		}
	case <-within(t).Done():
		t.Fatal("the watch outlived its context")
	}
}

// fill writes until the history has lost everything from before.
func fill(t *testing.T, h *Harness) {
	t.Helper()
	const perTxn = 64
	ctx := within(t)
	var wg sync.WaitGroup
	work := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for range work {
				ops := make([]lease.Op, perTxn)
				for j := range ops {
					ops[j] = lease.Put(fmt.Sprintf("/leasetest/fill/%d/%d", i, j), nil)
				}
				// So many writes can cost a leader its office; what it did not answer is
				// written again.
				_, err := h.client(i).Txn(ctx, nil, ops)
				for errors.Is(err, lease.ErrUnavailable) && ctx.Err() == nil {
					_, err = h.client(i).Txn(ctx, nil, ops)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := 0; n <= h.HistoryEvents; n += perTxn {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	for i := range h.Clients {
		revision(t, h.client(i)) // the client has seen all of it
	}
}

func testCompacted(t *testing.T, h *Harness) {
	rev := put(t, h.client(0), lease.Put(key(t, "x"), nil))
	if h.Compact != nil {
		put(t, h.client(0), lease.Put("/leasetest/other/"+t.Name(), nil))
		h.Compact(t)
	} else {
		fill(t, h)
	}
	for i := range h.Clients {
		r := next(t, h.client(i).Watch(within(t), key(t, ""), rev))
		wantErr(t, r.Err, lease.ErrCompacted)
	}
	// Listing again is the way on.
	kvs, at, err := h.client(0).List(within(t), key(t, ""))
	if err != nil || len(kvs) != 1 {
		t.Fatalf("%v, %v", kvs, err)
	}
	w := h.client(0).Watch(within(t), key(t, ""), at+1)
	put(t, h.client(1), lease.Put(key(t, "y"), nil))
	if r := next(t, w); r.Err != nil || !strings.HasSuffix(r.Events[0].KV.Key, "/y") {
		t.Fatalf("%+v", r)
	}
}

func testSlowWatcher(t *testing.T, h *Harness) {
	for i := range h.Clients {
		w := h.client(i).Watch(within(t), "/leasetest/", revision(t, h.client(i))+1)
		fill(t, h) // would hang if a watcher that takes nothing could block the store
		fill(t, h)
		last := int64(0)
		for r := range w {
			if r.Err != nil {
				wantErr(t, r.Err, lease.ErrCompacted)
				last = -1
				continue
			}
			if last < 0 || last != 0 && r.Revision != last+1 {
				t.Fatalf("revision %d after %d", r.Revision, last)
			}
			last = r.Revision
		}
		if last != -1 {
			t.Fatal("the slow watcher was not told")
		}
	}
}
