package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// random returns a command over few keys and leases, so that they meet.
func random(r *rand.Rand) Command {
	key := func() string { return fmt.Sprintf("k/%d/%d", r.IntN(3), r.IntN(6)) }
	switch r.IntN(10) {
	case 0:
		return Command{Kind: KindGrant, TTL: time.Duration(r.IntN(1000) + 1)}
	case 1:
		return Command{Kind: KindRevoke, Lease: lease.LeaseID(r.IntN(12))}
	}
	c := Command{Kind: KindTxn, Compares: []lease.Compare{}, Ops: []lease.Op{}}
	if r.IntN(3) == 0 {
		c.Compares = append(c.Compares, lease.Compare{Key: key(), Field: lease.Field(r.IntN(4)), Number: int64(r.IntN(3)), Value: []byte("1")})
	}
	for range r.IntN(4) {
		op := lease.Op{Kind: lease.OpKind(r.IntN(3)), Key: key(), Value: fmt.Append(nil, r.IntN(3))}
		if op.Kind == lease.OpPut && r.IntN(2) == 0 {
			op.Lease = lease.LeaseID(r.IntN(8))
		}
		c.Ops = append(c.Ops, op)
	}
	return c
}

func dump(s *Store) string {
	kvs, rev := s.List("")
	return fmt.Sprint(kvs, rev, s.nextLease, s.Leases())
}

func TestTheSameCommandsGiveTheSameStore(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := New(Options{}), New(Options{})
		for i := range 150 {
			c := random(r)
			decoded, err := DecodeCommand(c.AppendBinary(nil))
			if err != nil || !reflect.DeepEqual(c, decoded) {
				t.Fatalf("%+v came back as %+v, %v", c, decoded, err)
			}
			x, y := a.Apply(c), b.Apply(decoded)
			if x.Result != y.Result || x.Lease != y.Lease || fmt.Sprint(x.Err) != fmt.Sprint(y.Err) {
				t.Fatalf("%+v gave %+v and %+v", c, x, y)
			}
			if i%40 == 39 { // and goes on the same from a snapshot
				var buf bytes.Buffer
				if n, err := b.Snapshot().WriteTo(&buf); err != nil || int(n) != buf.Len() {
					t.Fatal(n, err)
				}
				b = New(Options{})
				if err := b.Restore(&buf); err != nil {
					t.Fatal(err)
				}
			}
			if x, y := dump(a), dump(b); x != y {
				t.Fatalf("seed %d:\n%s\n%s", seed, x, y)
			}
		}
		if x, y := fmt.Sprint(a.history.since(b.history.compacted+1)), fmt.Sprint(b.history.since(0)); x != y {
			t.Fatalf("seed %d: events differ:\n%s\n%s", seed, x, y)
		}
	}
}

func TestATornSnapshotIsRefusedAndChangesNothing(t *testing.T) {
	s := New(Options{})
	id := s.Grant(time.Second)
	if _, err := s.Txn(nil, []lease.Op{lease.PutLeased("a", []byte("value"), id), lease.Put("b", nil)}); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	whole, before := buf.Bytes(), dump(s)
	for i := range whole {
		if err := s.Restore(bytes.NewReader(whole[:i])); !errors.Is(err, ErrBadSnapshot) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
		bad := bytes.Clone(whole)
		bad[i] ^= 0x40
		if err := s.Restore(bytes.NewReader(bad)); !errors.Is(err, ErrBadSnapshot) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	if dump(s) != before {
		t.Fatal("a refused snapshot changed the store")
	}
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	s := New(Options{HistoryEvents: 1 << 20, HistoryBytes: 10_000})
	for range 100 {
		if _, err := s.Txn(nil, []lease.Op{lease.Put("k", make([]byte, 1000))}); err != nil {
			t.Fatal(err)
		}
	}
	if s.history.bytes > 10_000 || len(s.history.revisions) != 9 || s.history.compacted != 91 {
		t.Fatalf("%d bytes, %d revisions, compacted %d", s.history.bytes, len(s.history.revisions), s.history.compacted)
	}
}

// Whoever forgot a watch must not keep a closed store alive.
func TestAWatchThatNobodyReadsEndsWithItsStore(t *testing.T) {
	s := New(Options{})
	const changes = 60
	for i := range changes {
		if _, err := s.Txn(nil, []lease.Op{lease.Put("k", fmt.Append(nil, i))}); err != nil {
			t.Fatal(err)
		}
	}
	w := s.Watch(context.Background(), "", 1)
	for len(w) < cap(w) {
		runtime.Gosched()
	}
	s.Close()
	// What comes now is little more than lay in the channel.
	told := 0
	for range w {
		told++
	}
	if told > changes/2 {
		t.Errorf("%d responses of a closed store", told)
	}
}

func TestCheckRefusesOverlaps(t *testing.T) {
	for _, ops := range [][]lease.Op{
		{lease.DeletePrefix("a"), lease.DeletePrefix("a/b")},
		{lease.Delete("a/b"), lease.DeletePrefix("a")},
		{lease.Put("", nil)},
		{{Kind: 9, Key: "a"}},
		{lease.Put("a", make([]byte, MaxTxnBytes))},
	} {
		if Check(nil, ops) == nil {
			t.Errorf("%.60s was accepted", fmt.Sprint(ops))
		}
	}
	if err := Check(nil, []lease.Op{lease.DeletePrefix("a/"), lease.Put("a", nil), lease.Put(strings.Repeat("x", 1<<20), nil)}); err != nil {
		t.Error(err)
	}
}

func FuzzDecodeCommand(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		c := random(r)
		f.Add(c.AppendBinary(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCommand(b)
		if err != nil {
			return
		}
		again, err := DecodeCommand(c.AppendBinary(nil))
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("%+v, %+v, %v", c, again, err)
		}
		New(Options{}).Apply(c)
	})
}

func FuzzRestore(f *testing.F) {
	s := New(Options{})
	s.Grant(time.Second)
	_, _ = s.Txn(nil, []lease.Op{lease.PutLeased("a", []byte("1"), 1)})
	var buf bytes.Buffer
	_, _ = s.Snapshot().WriteTo(&buf)
	f.Add(buf.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) { _ = New(Options{}).Restore(bytes.NewReader(b)) })
}
