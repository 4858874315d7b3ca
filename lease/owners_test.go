package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

var keys = lease.NewKeys("test")

// owner is a registered node with its session, inside a bubble.
type owner struct {
	*rig
	*lease.Owners
	node string
}

func newOwner(t *testing.T, store *memory.Store, node, instance string) *owner {
	t.Helper()
	c := store.Client()
	r := &rig{store: store, client: c, begun: time.Now(), ended: make(chan error, 1)}
	s, err := lease.NewSession(c, lease.SessionOptions{
		Now: r.now,
		Register: func(ctx context.Context, id lease.LeaseID) error {
			_, err := c.Txn(ctx, nil, []lease.Op{lease.PutLeased(keys.Node(node), lease.Encode(lease.Node{Name: node, Instance: instance}), id)})
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(t.Context())
	go func() { r.ended <- s.Run(ctx) }()
	synctest.Wait()
	return &owner{rig: r, Owners: lease.NewOwners(c, keys, node, instance, s), node: node}
}

// assign writes route and assignment and returns the request of its node.
func assign(t *testing.T, store *memory.Store, node string) lease.AcquireRequest {
	t.Helper()
	c := store.Client()
	put := func(k string, v any) int64 {
		r, err := c.Txn(t.Context(), nil, []lease.Op{lease.Put(k, lease.Encode(v))})
		if err != nil {
			t.Fatal(err)
		}
		return r.Revision
	}
	route, _, _ := c.Get(t.Context(), keys.Route("r"))
	rev := int64(0)
	if route != nil {
		rev = route.ModRevision
	} else {
		rev = put(keys.Route("r"), lease.Route{UID: "u", Generation: 3})
	}
	return lease.AcquireRequest{
		Route: "r", RouteUID: "u", Generation: 3, Partition: "p/0",
		AssignmentRev: put(keys.Assignment("r", "p/0"), lease.Assignment{Node: node}), RouteRev: rev,
	}
}

func inBubble(t *testing.T, f func(t *testing.T, s *memory.Store, a, b *owner)) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewStore(memory.Options{})
		a, b := newOwner(t, s, "a", "a1"), newOwner(t, s, "b", "b1")
		f(t, s, a, b)
		a.end(t)
		b.end(t)
	})
}

func TestAcquireReleaseAndHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, b *owner) {
		ctx := t.Context()
		ra := assign(t, s, "a")
		one, err := a.Acquire(ctx, ra)
		if err != nil || one.Epoch != 1 || one.Session != 1 {
			t.Fatalf("%+v, %v", one, err)
		}
		rb := assign(t, s, "b")
		var owned *lease.OwnedError
		if _, err := b.Acquire(ctx, rb); !errors.As(err, &owned) || owned.Owner.Node != "a" || !errors.Is(err, lease.ErrOwned) {
			t.Fatalf("acquired from under its owner: %v", err)
		}
		if _, err := a.Acquire(ctx, ra); !errors.Is(err, lease.ErrNotAssigned) {
			t.Fatalf("acquired on an old assignment: %v", err)
		}
		if err := a.Release(ctx, one); err != nil {
			t.Fatal(err)
		}
		two, err := b.Acquire(ctx, rb)
		if err != nil || two.Epoch != 2 {
			t.Fatalf("%+v, %v", two, err)
		}
		if err := a.Release(ctx, one); err != nil { // late: must not touch b's
			t.Fatal(err)
		}
		if mine, err := b.Mine(ctx, two); err != nil || !mine {
			t.Fatalf("mine %v, %v", mine, err)
		}
		if mine, err := a.Mine(ctx, one); err != nil || mine {
			t.Fatalf("still a's: %v, %v", mine, err)
		}
		if dropped, err := a.Drop(ctx, "r", "p/0"); err != nil || dropped {
			t.Fatalf("a dropped b's record: %v, %v", dropped, err)
		}
	})
}

func TestARestartOfTheSameNodeTakesANewEpoch(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
		r := assign(t, s, "a")
		for want := uint64(1); want <= 3; want++ {
			if o, err := a.Acquire(t.Context(), r); err != nil || o.Epoch != want {
				t.Fatalf("%+v, %v, want epoch %d", o, err, want)
			}
		}
	})
}

func TestAnotherProcessOfTheSameNodeIsAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
		r := assign(t, s, "a")
		if _, err := a.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		again := newOwner(t, s, "a", "a2") // takes the node key over
		defer again.end(t)
		if _, err := again.Acquire(t.Context(), r); !errors.Is(err, lease.ErrOwned) {
			t.Fatalf("took over from a process that may live: %v", err)
		}
		if _, err := a.Acquire(t.Context(), r); !errors.Is(err, lease.ErrNotAssigned) {
			t.Fatalf("a replaced process acquired: %v", err)
		}
	})
}

func TestANodeWhoseGateIsClosedAcquiresNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
		r := assign(t, s, "a")
		a.jump.Store(int64(time.Minute))
		if _, err := a.Acquire(t.Context(), r); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatal(err)
		}
	})
}

func TestAcquireResolvesALostReplyByReading(t *testing.T) {
	for _, fault := range []memory.Fault{memory.FaultLoseReply, memory.FaultRefuse} {
		inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
			r := assign(t, s, "a")
			a.client.SetFault(func(call string) memory.Fault {
				if call == "txn" {
					return fault
				}
				return memory.FaultNone
			})
			o, err := a.Acquire(t.Context(), r)
			if fault == memory.FaultRefuse {
				if !errors.Is(err, lease.ErrUnavailable) {
					t.Fatalf("%+v, %v", o, err)
				}
				return
			}
			if err != nil || o.Epoch != 1 {
				t.Fatalf("%+v, %v", o, err)
			}
			if err := a.Release(t.Context(), o); err != nil { // its reply is lost too
				t.Fatal(err)
			}
			if kv, _, _ := s.Client().Get(t.Context(), keys.Owner("r", "p/0")); kv != nil {
				t.Fatal("the record stands")
			}
		})
	}
}

func TestEpochsRiseUnderConcurrencyAndAreNotGivenOutTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, b *owner) {
		lost := 0
		a.client.SetFault(func(call string) memory.Fault {
			if lost++; call == "txn" && lost%3 == 0 {
				return memory.FaultLoseReply
			}
			return memory.FaultNone
		})
		var mu sync.Mutex
		seen := map[uint64]bool{}
		var wg sync.WaitGroup
		for _, o := range []*owner{a, b} {
			wg.Go(func() {
				for range 50 {
					e, err := o.NextEpoch(t.Context(), "u", "p/0")
					mu.Lock()
					if err != nil || seen[e] {
						t.Errorf("epoch %d again, or %v", e, err)
					}
					seen[e] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if err := a.RaiseEpoch(t.Context(), "u", "p/0", 1000); err != nil {
			t.Fatal(err)
		}
		if err := b.RaiseEpoch(t.Context(), "u", "p/0", 10); err != nil {
			t.Fatal(err)
		}
		if o, err := b.Acquire(t.Context(), assign(t, s, "b")); err != nil || o.Epoch != 1001 {
			t.Fatalf("%+v, %v", o, err)
		}
	})
}

func TestClaimedNeverGoesBackWithinAStore(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *memory.Store, a, b *owner) {
		ctx := t.Context()
		if c, err := a.Claimed(ctx, "u", "p", "l"); c != nil || err != nil {
			t.Fatalf("%+v, %v", c, err)
		}
		for _, step := range []struct{ set, want lease.Claimed }{
			{lease.Claimed{Store: "s", Epoch: 4, Version: 9}, lease.Claimed{Store: "s", Epoch: 4, Version: 9}},
			{lease.Claimed{Store: "s", Epoch: 3, Version: 8}, lease.Claimed{Store: "s", Epoch: 4, Version: 9}},
			{lease.Claimed{Store: "s", Epoch: 5, Version: 10}, lease.Claimed{Store: "s", Epoch: 5, Version: 10}},
			{lease.Claimed{Store: "other", Epoch: 1, Version: 1}, lease.Claimed{Store: "other", Epoch: 1, Version: 1}},
		} {
			if err := a.SetClaimed(ctx, "u", "p", "l", step.set); err != nil {
				t.Fatal(err)
			}
			if c, err := b.Claimed(ctx, "u", "p", "l"); err != nil || *c != step.want {
				t.Fatalf("%+v, %v, want %+v", c, err, step.want)
			}
		}
	})
}

func TestDropDeletesARecordWithoutARun(t *testing.T) {
	inBubble(t, func(t *testing.T, s *memory.Store, a, b *owner) {
		if _, err := a.Acquire(t.Context(), assign(t, s, "a")); err != nil {
			t.Fatal(err)
		}
		if dropped, err := a.Drop(t.Context(), "r", "p/0"); err != nil || !dropped {
			t.Fatalf("%v, %v", dropped, err)
		}
		if o, err := b.Acquire(t.Context(), assign(t, s, "b")); err != nil || o.Epoch != 2 {
			t.Fatalf("%+v, %v", o, err)
		}
	})
}

// Each key that Acquire read changes just before its transaction.
func TestAcquireComparesEverythingItRead(t *testing.T) {
	for name, c := range map[string]struct {
		key   string
		value any
		want  error // nil: it looks again and succeeds
		epoch uint64
	}{
		"owner":      {keys.Owner("r", "p/0"), lease.Owner{Node: "b", Instance: "b1", Epoch: 7}, lease.ErrOwned, 0},
		"counter":    {keys.Epoch("u", "p/0"), 41, nil, 42},
		"assignment": {keys.Assignment("r", "p/0"), lease.Assignment{Node: "b"}, lease.ErrNotAssigned, 0},
		"route":      {keys.Route("r"), lease.Route{UID: "u", Generation: 4}, lease.ErrNotAssigned, 0},
		"node":       {keys.Node("a"), lease.Node{Name: "a", Instance: "a2"}, lease.ErrNotAssigned, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *memory.Store, a, _ *owner) {
				r := assign(t, s, "a")
				other, done := s.Client(), false
				a.client.SetFault(func(call string) memory.Fault {
					if call == "txn" && !done {
						done = true
						if _, err := other.Txn(t.Context(), nil, []lease.Op{lease.Put(c.key, lease.Encode(c.value))}); err != nil {
							t.Error(err)
						}
					}
					return memory.FaultNone
				})
				o, err := a.Acquire(t.Context(), r)
				if !errors.Is(err, c.want) || o.Epoch != c.epoch {
					t.Fatalf("%+v, %v", o, err)
				}
			})
		})
	}
}
