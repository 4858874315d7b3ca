package message

import (
	"context"
	"testing"
	"time"
)

// whole fails unless all of the budget is free.
func whole(t *testing.T, g *Budget) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	l, err := g.Acquire(ctx, g.Size())
	if err != nil {
		t.Fatal("bytes are missing: ", err)
	}
	if more, ok := g.TryAcquire(1); ok {
		more.Release()
		t.Fatal("more bytes are free than there are")
	}
	l.Release()
}

// Whatever a run did with its share, closing it leaves the budget as it was:
// neither a byte less nor a byte more.
func TestClosedShareLeavesTheBudgetWhole(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, share *Budget){
		"nothing": func(*testing.T, *Budget) {},
		"held":    func(t *testing.T, s *Budget) { take(t, s, 300); try(t, s, 200) },
		"given back": func(t *testing.T, s *Budget) {
			a, b := take(t, s, 300), try(t, s, 200)
			a.Release()
			b.Release()
			b.Release()
		},
		"joined": func(t *testing.T, s *Budget) {
			var l Lease
			l.Join(try(t, s, 100))
			l.Join(try(t, s, 200))
			l.Release()
		},
		"half of it": func(t *testing.T, s *Budget) { take(t, s, 300); l := try(t, s, 200); l.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewBudget(1000)
			share := g.Share()
			use(t, share)
			share.Close()
			whole(t, g)
		})
	}
}

func TestLateReleaseAndLateAcquireAtAClosedShareChangeNothing(t *testing.T) {
	t.Parallel()
	g := NewBudget(1000)
	share := g.Share()
	l := take(t, share, 400)
	share.Close()
	l.Release()
	if _, err := share.Acquire(t.Context(), 1); err == nil {
		t.Error("a closed share gave room")
	}
	if _, ok := share.TryAcquire(1); ok {
		t.Error("a closed share gave room")
	}
	whole(t, g)
}

func take(t *testing.T, g *Budget, n int64) Lease {
	t.Helper()
	l, err := g.Acquire(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func try(t *testing.T, g *Budget, n int64) Lease {
	t.Helper()
	l, ok := g.TryAcquire(n)
	if !ok {
		t.Fatal("no room")
	}
	return l
}

// Readers that run ahead must not take the last of the budget from one that has
// nothing yet (invariant 8).
func TestReadingAheadLeavesAQuarterOfTheBudget(t *testing.T) {
	t.Parallel()
	g := NewBudget(1000)
	p := NewPool(g, 250)
	var held []*Batch
	for {
		b, ok := p.TryGet()
		if !ok {
			break
		}
		held = append(held, b)
	}
	if len(held) != 3 {
		t.Fatalf("%d batches of a quarter each were read ahead", len(held))
	}
	b, err := p.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append(held, b) {
		b.Release()
	}
	whole(t, g)
}
