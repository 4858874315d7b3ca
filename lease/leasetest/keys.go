package leasetest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mqbridge/mqb/lease"
)

func testAbsent(t *testing.T, h *Harness) {
	for i := range h.Clients {
		if kv := get(t, h.client(i), key(t, "x")); kv != nil {
			t.Fatalf("found %+v", kv)
		}
	}
	kvs, _, err := h.client(0).List(within(t), key(t, ""))
	if err != nil || len(kvs) != 0 {
		t.Fatalf("list: %v, %v", kvs, err)
	}
}

func testVersions(t *testing.T, h *Harness) {
	k := key(t, "x")
	r1 := put(t, h.client(0), lease.Put(k, []byte("1")))
	r2 := put(t, h.client(1), lease.Put(k, []byte("2")))
	if r2 <= r1 {
		t.Fatalf("revision went from %d to %d", r1, r2)
	}
	kv := get(t, h.client(2), k)
	if kv.Key != k || string(kv.Value) != "2" || kv.Version != 2 || kv.CreateRevision != r1 || kv.ModRevision != r2 || kv.Lease != 0 {
		t.Fatalf("%+v, want version 2 created at %d and changed at %d", kv, r1, r2)
	}
	put(t, h.client(0), lease.Delete(k))
	r4 := put(t, h.client(0), lease.Put(k, []byte("3")))
	if kv = get(t, h.client(1), k); kv.Version != 1 || kv.CreateRevision != r4 {
		t.Fatalf("after a deletion: %+v, want version 1 created at %d", kv, r4)
	}
}

func testList(t *testing.T, h *Harness) {
	for i, name := range []string{"b", "a", "a/b", "c", "aa", "\xff"} {
		put(t, h.client(i), lease.Put(key(t, name), []byte(name)))
	}
	kvs, rev, err := h.client(1).List(within(t), key(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, kv := range kvs {
		got += string(kv.Value) + " "
	}
	if want := "a a/b aa b c \xff "; got != want {
		t.Fatalf("listed %q, want %q", got, want)
	}
	if last := kvs[len(kvs)-1].ModRevision; rev < last {
		t.Fatalf("list at revision %d shows revision %d", rev, last)
	}
	if kvs, _, err = h.client(0).List(within(t), key(t, "a")); err != nil || len(kvs) != 3 {
		t.Fatalf("%d keys under a, %v", len(kvs), err)
	}
}

func testCompares(t *testing.T, h *Harness) {
	k, none := key(t, "x"), key(t, "none")
	create := put(t, h.client(0), lease.Put(k, []byte("1")))
	mod := put(t, h.client(0), lease.Put(k, []byte("2")))
	for i, c := range []struct {
		compare lease.Compare
		holds   bool
	}{
		{lease.Absent(none), true},
		{lease.Absent(k), false},
		{lease.VersionIs(k, 2), true},
		{lease.VersionIs(k, 1), false},
		{lease.VersionIs(none, 0), true},
		{lease.ModRevisionIs(k, mod), true},
		{lease.ModRevisionIs(k, create), false},
		{lease.ModRevisionIs(none, 0), true},
		{lease.ModRevisionIs(k, 0), false},
		{lease.CreateRevisionIs(k, create), true},
		{lease.CreateRevisionIs(k, mod), false},
		{lease.CreateRevisionIs(none, 0), true},
		{lease.ValueIs(k, []byte("2")), true},
		{lease.ValueIs(k, []byte("1")), false},
		{lease.ValueIs(none, nil), false},
		{lease.ValueIs(none, []byte{}), false},
	} {
		mark := key(t, fmt.Sprintf("mark%d", i))
		r, err := h.client(i).Txn(within(t), []lease.Compare{lease.VersionIs(k, 2), c.compare}, []lease.Op{lease.Put(mark, nil)})
		if err != nil {
			t.Fatal(err)
		}
		if r.Succeeded != c.holds || (get(t, h.client(i+1), mark) != nil) != c.holds {
			t.Errorf("compare %d %+v: succeeded %v, want %v", i, c.compare, r.Succeeded, c.holds)
		}
	}
}

func testAtomic(t *testing.T, h *Harness) {
	a, b := key(t, "a"), key(t, "b")
	rev := put(t, h.client(0), lease.Put(a, []byte("1")), lease.Put(b, []byte("1")))
	if x, y := get(t, h.client(1), a), get(t, h.client(1), b); x.ModRevision != rev || y.ModRevision != rev {
		t.Fatalf("one transaction wrote at revisions %d and %d, result said %d", x.ModRevision, y.ModRevision, rev)
	}
	r, err := h.client(1).Txn(within(t),
		[]lease.Compare{lease.VersionIs(a, 1), lease.VersionIs(b, 7)},
		[]lease.Op{lease.Put(a, []byte("2")), lease.Delete(b)})
	if err != nil || r.Succeeded || r.Revision < rev {
		t.Fatalf("%+v, %v", r, err)
	}
	if x, y := get(t, h.client(0), a), get(t, h.client(0), b); string(x.Value) != "1" || y == nil {
		t.Fatalf("a transaction that failed left %+v and %+v", x, y)
	}
}

func testNoEffect(t *testing.T, h *Harness) {
	before := revision(t, h.client(0))
	r, err := h.client(0).Txn(within(t), []lease.Compare{lease.Absent(key(t, "x"))}, []lease.Op{lease.Delete(key(t, "x"))})
	if err != nil || !r.Succeeded || r.Revision != before {
		t.Fatalf("%+v, %v, want success at revision %d", r, err, before)
	}
}

func testDeletePrefix(t *testing.T, h *Harness) {
	for _, name := range []string{"d/1", "d/2", "d", "e"} {
		put(t, h.client(0), lease.Put(key(t, name), nil))
	}
	put(t, h.client(1), lease.DeletePrefix(key(t, "d/")), lease.Put(key(t, "f"), nil))
	kvs, _, err := h.client(2).List(within(t), key(t, ""))
	if err != nil || len(kvs) != 3 {
		t.Fatalf("%d keys left, %v", len(kvs), err)
	}
}

func testDuplicate(t *testing.T, h *Harness) {
	k := key(t, "x")
	for _, ops := range [][]lease.Op{
		{lease.Put(k, nil), lease.Put(k, nil)},
		{lease.Put(k, nil), lease.Delete(k)},
		{lease.Put(k, nil), lease.DeletePrefix(key(t, ""))},
	} {
		if _, err := h.client(1).Txn(within(t), nil, ops); err == nil {
			t.Errorf("%+v was accepted", ops)
		}
	}
	if get(t, h.client(0), k) != nil {
		t.Error("a refused transaction left a key")
	}
}

func testOversized(t *testing.T, h *Harness) {
	if _, err := h.client(1).Txn(within(t), nil, []lease.Op{lease.Put(key(t, "x"), make([]byte, 4<<20))}); err == nil {
		t.Error("4 MiB were accepted")
	}
	put(t, h.client(1), lease.Put(key(t, "y"), make([]byte, 1<<20))) // and what is allowed goes through
}

func testBinary(t *testing.T, h *Harness) {
	k, v := key(t, "\x00\xff/ü"), []byte("\x00\xff\n\"")
	put(t, h.client(1), lease.Put(k, v))
	if kv := get(t, h.client(2), k); kv == nil || string(kv.Value) != string(v) {
		t.Fatalf("%+v", kv)
	}
	put(t, h.client(1), lease.Put(k, nil))
	if kv := get(t, h.client(0), k); kv == nil || len(kv.Value) != 0 {
		t.Fatalf("empty value: %+v", kv)
	}
}

func testLinearizable(t *testing.T, h *Harness) {
	k := key(t, "x")
	for i := range 60 {
		want := strconv.Itoa(i)
		put(t, h.client(i), lease.Put(k, []byte(want)))
		if kv := get(t, h.client(i+1), k); string(kv.Value) != want {
			t.Fatalf("read %s after %s was written", kv.Value, want)
		}
		kvs, _, err := h.client(i+2).List(within(t), k)
		if err != nil || len(kvs) != 1 || string(kvs[0].Value) != want {
			t.Fatalf("listed %v after %s was written, %v", kvs, want, err)
		}
	}
}

func testCounters(t *testing.T, h *Harness) {
	const workers, rounds = 8, 12
	k := key(t, "n")
	ctx := within(t)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for range rounds {
				if err := increment(ctx, h.client(i), k); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if kv := get(t, h.client(0), k); string(kv.Value) != strconv.Itoa(workers*rounds) || kv.Version != workers*rounds {
		t.Fatalf("counter is %s after %d increments", kv.Value, workers*rounds)
	}
}

func increment(ctx context.Context, c lease.Coordinator, k string) error {
	for {
		kv, _, err := c.Get(ctx, k)
		if err != nil {
			return err
		}
		n, mod := 0, int64(0)
		if kv != nil {
			n, _ = strconv.Atoi(string(kv.Value))
			mod = kv.ModRevision
		}
		r, err := c.Txn(ctx, []lease.Compare{lease.ModRevisionIs(k, mod)}, []lease.Op{lease.Put(k, []byte(strconv.Itoa(n+1)))})
		if err != nil || r.Succeeded {
			return err
		}
	}
}

func testCreators(t *testing.T, h *Harness) {
	k := key(t, "x")
	ctx := within(t)
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			r, err := h.client(i).Txn(ctx, []lease.Compare{lease.Absent(k)}, []lease.Op{lease.Put(k, nil)})
			if err != nil {
				t.Error(err)
			}
			if r.Succeeded {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d creators won", won.Load())
	}
}
