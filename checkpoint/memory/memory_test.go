package memory_test

import (
	"context"
	"errors"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/checkpoint/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: func(*testing.T) *storetest.Subject {
		s := memory.New()
		return &storetest.Subject{
			Open:   func(*testing.T) checkpoint.Store { return s },
			Tamper: func(_ *testing.T, key string, change func([]byte) []byte) { s.Tamper(key, change) },
		}
	}})
}

func TestFaults(t *testing.T) {
	s := memory.New()
	ctx := context.Background()
	rec := func(v uint64) checkpoint.Record { return checkpoint.Record{Version: v} }
	next := memory.FaultNone
	s.Fail(func(memory.Call, string) memory.Fault { return next })
	for _, c := range []struct {
		fault   memory.Fault
		want    error
		written bool
	}{
		{memory.FaultRefuse, memory.ErrLost, false},
		{memory.FaultLoseReply, memory.ErrLost, true},
		{memory.FaultConflict, checkpoint.ErrConflict, true},
		{memory.FaultNone, nil, true},
	} {
		before, _ := s.Load(ctx, "k")
		next = c.fault
		if err := s.Swap(ctx, "k", before.Version, rec(before.Version+1)); !errors.Is(err, c.want) {
			t.Errorf("fault %d: %v, want %v", c.fault, err, c.want)
		}
		next = memory.FaultNone
		if after, _ := s.Load(ctx, "k"); after.Version > before.Version != c.written {
			t.Errorf("fault %d: version went from %d to %d", c.fault, before.Version, after.Version)
		}
	}
	next = memory.FaultRefuse
	if _, err := s.Load(ctx, "k"); !errors.Is(err, memory.ErrLost) {
		t.Errorf("load: %v", err)
	}
	if _, err := s.List(ctx, ""); !errors.Is(err, memory.ErrLost) {
		t.Errorf("list: %v", err)
	}
	s.Fail(nil)
	if _, err := s.Load(ctx, "k"); err != nil {
		t.Errorf("load: %v", err)
	}
}
