package lease_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a session over a memory store inside a bubble, with a clock that can be
// moved as if the process had been stopped.
type rig struct {
	*lease.Session
	store  *memory.Store
	client *memory.Client
	jump   atomic.Int64 // added to the clock of the gate
	begun  time.Time
	cancel context.CancelFunc
	ended  chan error
}

func (r *rig) now() time.Duration { return time.Since(r.begun) + time.Duration(r.jump.Load()) }

func newRig(t *testing.T, register func(ctx context.Context, r *rig, id lease.LeaseID) error) *rig {
	t.Helper()
	store := memory.NewStore(memory.Options{})
	r := &rig{store: store, client: store.Client(), begun: time.Now(), ended: make(chan error, 1)}
	o := lease.SessionOptions{Now: r.now, Log: slog.New(slog.DiscardHandler)}
	if register != nil {
		o.Register = func(ctx context.Context, id lease.LeaseID) error { return register(ctx, r, id) }
	}
	s, err := lease.NewSession(r.client, o)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(t.Context())
	go func() { r.ended <- s.Run(ctx) }()
	synctest.Wait()
	return r
}

func (r *rig) end(t *testing.T) {
	t.Helper()
	r.cancel()
	<-r.ended
	if err := r.Close(context.Background()); err != nil && !errors.Is(err, lease.ErrUnavailable) {
		t.Error(err)
	}
	_ = r.client.Close()
	_ = r.store.Close()
}

func fired(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestGateOpensStaysOpenAndClosesBeforeTheLeaseCanEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer r.end(t)
		if err := r.Gate(); err != nil || r.Generation() != 1 {
			t.Fatalf("gate %v in generation %d", err, r.Generation())
		}
		changed := r.Changed()
		time.Sleep(time.Minute)
		if r.Gate() != nil || fired(changed) {
			t.Fatal("the gate moved while the lease was kept alive")
		}
		r.client.SetAvailable(false)
		cut := time.Now()
		<-changed // the timer announces it, nobody had to ask
		if err := r.Gate(); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate is %v after its closing was announced", err)
		}
		// The last keepalive was sent at most one interval before the cut, so the
		// lease lives until then + TTL at the earliest; the gate closes a margin before.
		if closed := time.Since(cut); closed > 2400*time.Millisecond || closed < 1700*time.Millisecond {
			t.Fatalf("closed %v after the cut", closed)
		}
		if _, err := r.store.Client().KeepAlive(t.Context(), r.Lease()); err != nil {
			t.Fatalf("the lease had ended by then: %v", err)
		}
		changed = r.Changed()
		r.client.SetAvailable(true)
		<-changed
		if r.Gate() != nil || r.Generation() != 1 {
			t.Fatalf("gate %v, generation %d: the lease was alive all along", r.Gate(), r.Generation())
		}
	})
}

func TestAProcessThatWakesFindsTheGateClosedBeforeAnyTimerRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer r.end(t)
		r.jump.Store(int64(2400 * time.Millisecond)) // TTL less margin: the first instant it may be over
		if err := r.Gate(); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate is %v", err)
		}
		if err := r.GateOf(r.Generation()); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate of the generation is %v", err)
		}
	})
}

func TestTheDeadlineIsAnchoredBeforeTheKeepaliveWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		defer r.end(t)
		// The process stops inside the call: sent long ago, answered now.
		stopped := make(chan struct{})
		r.client.SetFault(func(call string) memory.Fault {
			if r.jump.Load() != 0 {
				return memory.FaultRefuse // no further keepalive may open it
			}
			if call == "keepalive" {
				r.jump.Store(int64(time.Minute))
				close(stopped)
			}
			return memory.FaultNone
		})
		<-stopped
		synctest.Wait()
		if err := r.Gate(); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate is %v after a stop within a keepalive", err)
		}
	})
}

func TestALostLeaseIsReplacedAndOldRunsStayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var registered []lease.LeaseID
		r := newRig(t, func(ctx context.Context, r *rig, id lease.LeaseID) error {
			registered = append(registered, id)
			_, err := r.client.Txn(ctx, nil, []lease.Op{lease.PutLeased("node", nil, id)})
			return err
		})
		defer r.end(t)
		old, changed := r.Lease(), r.Changed()
		r.client.SetAvailable(false)
		time.Sleep(5 * time.Second)
		if kv, _, _ := r.store.Client().Get(t.Context(), "node"); kv != nil {
			t.Fatal("the node key outlived the lease")
		}
		r.client.SetAvailable(true)
		time.Sleep(2 * time.Second)
		if !fired(changed) || r.Gate() != nil || r.Generation() != 2 || r.Lease() == old {
			t.Fatalf("gate %v, generation %d, lease %d", r.Gate(), r.Generation(), r.Lease())
		}
		if err := r.GateOf(1); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate of the first generation is %v", err)
		}
		if len(registered) != 2 || registered[1] != r.Lease() {
			t.Fatalf("registered %v", registered)
		}
	})
}

func TestTheGateStaysClosedUntilTheNodeIsRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := errors.New("not yet")
		var ok atomic.Bool
		r := newRig(t, func(context.Context, *rig, lease.LeaseID) error {
			if !ok.Load() {
				return fail
			}
			return nil
		})
		defer r.end(t)
		time.Sleep(10 * time.Second)
		if err := r.Gate(); !errors.Is(err, lease.ErrGateClosed) || r.Generation() != 0 {
			t.Fatalf("gate is %v", err)
		}
		changed := r.Changed()
		ok.Store(true)
		<-changed
		if err := r.Gate(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseRevokes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		id := r.Lease()
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Gate(); !errors.Is(err, lease.ErrGateClosed) {
			t.Fatalf("gate is %v", err)
		}
		if _, err := r.store.Client().KeepAlive(t.Context(), id); !errors.Is(err, lease.ErrLeaseNotFound) {
			t.Fatalf("the lease outlived its session: %v", err)
		}
		if err := <-r.ended; err != nil {
			t.Fatalf("run: %v", err)
		}
		r.ended <- nil
		r.end(t)
	})
}

func TestOptionsThatCannotKeepALeaseAreRefused(t *testing.T) {
	for _, o := range []lease.SessionOptions{
		{TTL: time.Second},
		{TTL: 3 * time.Second, Margin: 2 * time.Second, Interval: time.Second},
	} {
		if _, err := lease.NewSession(memory.New(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func BenchmarkGate(b *testing.B) {
	c := memory.New()
	defer func() { _ = c.Close() }()
	s, err := lease.NewSession(c, lease.SessionOptions{})
	if err != nil {
		b.Fatal(err)
	}
	changed := s.Changed()
	go func() { _ = s.Run(b.Context()) }()
	<-changed
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Gate(); err != nil {
			b.Fatal(err)
		}
	}
	_ = s.Close(context.Background())
}
