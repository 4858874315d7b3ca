package leasetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
)

func testKeepAlive(t *testing.T, h *Harness) {
	ctx := within(t)
	for !keptAlive(t, h) {
		if ctx.Err() != nil {
			t.Fatal("no keepalive comes in time")
		}
	}
}

// keptAlive keeps a lease alive for four times its TTL. It reports false where that
// showed nothing of the store, since two keepalives were a TTL apart.
func keptAlive(t *testing.T, h *Harness) bool {
	k := key(t, "x")
	id, last, _ := bind(t, h, lease.Put(k, []byte("v")))
	late := func() bool { return time.Since(last) >= h.TTL }
	pace := time.NewTicker(h.TTL / 4)
	defer pace.Stop()
	for end := time.Now().Add(4 * h.TTL); time.Now().Before(end); <-pace.C {
		sent := time.Now()
		ttl, err := h.client(1).KeepAlive(within(t), id)
		if errors.Is(err, lease.ErrLeaseNotFound) && late() {
			return false
		}
		if err != nil || ttl != h.TTL {
			t.Fatalf("keepalive: %v, %v", ttl, err)
		}
		last = sent
	}
	kv := get(t, h.client(2), k)
	if kv == nil && late() {
		return false
	}
	if kv == nil || kv.Lease != id {
		t.Fatalf("%+v after four TTLs of keepalives", kv)
	}
	if err := h.client(0).Revoke(within(t), id); err != nil {
		t.Fatal(err)
	}
	return true
}

// bind puts keys under a new lease of the harness's TTL, and returns that, a time
// before its beginning and the revision. Where the lease ended before it had the keys,
// another is taken.
func bind(t *testing.T, h *Harness, puts ...lease.Op) (id lease.LeaseID, began time.Time, rev int64) {
	t.Helper()
	ctx := within(t)
	for {
		began = time.Now()
		id = grant(t, h.client(0), h.TTL)
		ops := slices.Clone(puts)
		for i := range ops {
			ops[i].Lease = id
		}
		r, err := h.client(1).Txn(ctx, nil, ops)
		if errors.Is(err, lease.ErrLeaseNotFound) && time.Since(began) >= h.TTL {
			continue
		}
		if err != nil || !r.Succeeded {
			t.Fatalf("txn: %+v, %v", r, err)
		}
		return id, began, r.Revision
	}
}

func testExpiry(t *testing.T, h *Harness) {
	a, b, c := key(t, "a"), key(t, "b"), key(t, "c")
	put(t, h.client(1), lease.Put(c, nil))
	_, before, rev := bind(t, h, lease.Put(b, nil), lease.Put(a, nil))
	for i := range h.Clients {
		w := h.client(i).Watch(within(t), key(t, ""), rev+1)
		r := next(t, w)
		if len(r.Events) != 2 || r.Events[0].Type != lease.EventDelete || r.Events[0].KV.Key != a || r.Events[1].KV.Key != b {
			t.Fatalf("watch saw %s", events(r))
		}
		if r.Events[0].KV.ModRevision != r.Revision || r.Revision <= rev {
			t.Fatalf("deleted at %d in revision %d", r.Events[0].KV.ModRevision, r.Revision)
		}
	}
	if took := time.Since(before); took < h.TTL || took > h.TTL+h.Slack {
		t.Errorf("the lease of %v ended after %v", h.TTL, took)
	}
	if get(t, h.client(1), a) != nil || get(t, h.client(2), c) == nil {
		t.Fatal("expiry deleted the wrong keys")
	}
}

func testKeepAliveAfterExpiry(t *testing.T, h *Harness) {
	id, _, rev := bind(t, h, lease.Put(key(t, "x"), nil))
	next(t, h.client(0).Watch(within(t), key(t, ""), rev+1))
	for i := range h.Clients {
		_, err := h.client(i).KeepAlive(within(t), id)
		wantErr(t, err, lease.ErrLeaseNotFound)
	}
	_, err := h.client(1).KeepAlive(within(t), 1<<60)
	wantErr(t, err, lease.ErrLeaseNotFound)
}

func testRevoke(t *testing.T, h *Harness) {
	id := grant(t, h.client(0), time.Minute)
	k := key(t, "x")
	put(t, h.client(1), lease.PutLeased(k, nil, id))
	for i := range 2 { // the second finds no lease
		if err := h.client(i+1).Revoke(within(t), id); err != nil {
			t.Fatal(err)
		}
	}
	if get(t, h.client(0), k) != nil {
		t.Fatal("the key outlived its lease")
	}
	_, err := h.client(1).KeepAlive(within(t), id)
	wantErr(t, err, lease.ErrLeaseNotFound)
}

func testUnknownLease(t *testing.T, h *Harness) {
	a, b := key(t, "a"), key(t, "b")
	_, err := h.client(1).Txn(within(t), nil, []lease.Op{lease.Put(a, nil), lease.PutLeased(b, nil, 1<<60)})
	wantErr(t, err, lease.ErrLeaseNotFound)
	if get(t, h.client(0), a) != nil {
		t.Fatal("half of a failed transaction was written")
	}
}

func testRebind(t *testing.T, h *Harness) {
	one, two := grant(t, h.client(0), time.Minute), grant(t, h.client(1), time.Minute)
	moved, freed, gone := key(t, "moved"), key(t, "freed"), key(t, "gone")
	for _, k := range []string{moved, freed, gone} {
		put(t, h.client(0), lease.PutLeased(k, nil, one))
	}
	put(t, h.client(0), lease.PutLeased(moved, nil, two), lease.Put(freed, nil))
	if err := h.client(0).Revoke(within(t), one); err != nil {
		t.Fatal(err)
	}
	if get(t, h.client(1), moved) == nil || get(t, h.client(1), freed) == nil || get(t, h.client(1), gone) != nil {
		t.Fatal("revoking took the wrong keys")
	}
	if err := h.client(0).Revoke(within(t), two); err != nil {
		t.Fatal(err)
	}
	if get(t, h.client(1), moved) != nil || get(t, h.client(1), freed) == nil {
		t.Fatal("revoking the second took the wrong keys")
	}
}

func testLeaseIDs(t *testing.T, h *Harness) {
	seen := map[lease.LeaseID]bool{}
	for i := range 10 {
		id := grant(t, h.client(i), time.Minute)
		if seen[id] {
			t.Fatalf("lease %d was given out twice", id)
		}
		seen[id] = true
		if err := h.client(i).Revoke(within(t), id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.client(0).Grant(within(t), 0); err == nil {
		t.Error("a lease of no time was granted")
	}
}

func testContext(t *testing.T, h *Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range h.Clients {
		for name, call := range calls(h.client(i), key(t, "x")) {
			if err := call(ctx); err == nil {
				t.Errorf("%s succeeded with an ended context", name)
			}
		}
	}
}

func testUnavailable(t *testing.T, h *Harness) {
	if h.SetAvailable == nil {
		return
	}
	last := len(h.Clients) - 1
	k := key(t, "x")
	rev := put(t, h.client(last), lease.Put(k, nil))
	w := h.client(last).Watch(within(t), key(t, ""), rev+1)
	h.SetAvailable(t, last, false)
	for name, call := range calls(h.client(last), k) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		begin := time.Now()
		err := call(ctx)
		cancel()
		wantErr(t, err, lease.ErrUnavailable)
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("%s took %v with a deadline of 300 ms", name, took)
		}
	}
	h.SetAvailable(t, last, true)
	ctx := within(t)
	for {
		if _, err := h.client(last).Txn(ctx, nil, []lease.Op{lease.Put(k, []byte("back"))}); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for { // the lost txn may have come through before
		r := next(t, w)
		if errors.Is(r.Err, lease.ErrCompacted) { // the way on is always to list again
			if kv := get(t, h.client(last), k); kv == nil || string(kv.Value) != "back" {
				t.Fatalf("listed %+v", kv)
			}
			return
		}
		if r.Err != nil || r.Revision <= rev {
			t.Fatalf("%+v after revision %d", r, rev)
		}
		if string(r.Events[0].KV.Value) == "back" {
			return
		}
	}
}

// calls names every call of a coordinator.
func calls(c lease.Coordinator, k string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, _, err := c.Get(ctx, k); return err },
		"list": func(ctx context.Context) error { _, _, err := c.List(ctx, k); return err },
		"txn": func(ctx context.Context) error {
			_, err := c.Txn(ctx, nil, []lease.Op{lease.Put(k, []byte("lost"))})
			return err
		},
		"grant":     func(ctx context.Context) error { _, err := c.Grant(ctx, time.Second); return err },
		"keepalive": func(ctx context.Context) error { _, err := c.KeepAlive(ctx, 1); return err },
		"revoke":    func(ctx context.Context) error { return c.Revoke(ctx, 1<<60) },
	}
}

func testClosed(t *testing.T, h *Harness) {
	last := h.client(len(h.Clients) - 1)
	w := last.Watch(within(t), key(t, ""), revision(t, last)+1)
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	for name, call := range calls(last, key(t, "x")) {
		if err := call(within(t)); err == nil {
			t.Errorf("%s succeeded after Close", name)
		} else {
			wantErr(t, err, lease.ErrClosed)
		}
	}
	for {
		select {
		case r, ok := <-w:
			if !ok {
				return
			}
			if r.Err != nil {
				t.Errorf("watch of a closed coordinator: %v", r.Err)
			}
		case <-within(t).Done():
			t.Fatal("the watch outlived its coordinator")
		}
	}
}
