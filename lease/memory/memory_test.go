package memory_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
	"github.com/mqbridge/mqb/lease/leasetest"
	"github.com/mqbridge/mqb/lease/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	const history = 4_000
	leasetest.Run(t, func(t *testing.T) *leasetest.Harness {
		s := memory.NewStore(memory.Options{History: kv.Options{HistoryEvents: history}})
		t.Cleanup(func() { _ = s.Close() })
		clients := []*memory.Client{s.Client(), s.Client(), s.Client()}
		h := &leasetest.Harness{
			TTL: 100 * time.Millisecond, HistoryEvents: history,
			SetAvailable: func(_ *testing.T, i int, up bool) { clients[i].SetAvailable(up) },
			Disturb:      func(*testing.T) { loseAnswers(clients) },
		}
		for _, c := range clients {
			h.Clients = append(h.Clients, c)
		}
		return h
	})
}

// loseAnswers refuses some calls and carries others out without an answer, until
// there were enough of each.
func loseAnswers(clients []*memory.Client) {
	var calls atomic.Int64
	enough := make(chan struct{})
	for _, c := range clients {
		c.SetFault(func(string) memory.Fault {
			n := calls.Add(1)
			if n == 400 {
				close(enough)
			}
			switch n % 7 {
			case 3:
				return memory.FaultRefuse
			case 6:
				return memory.FaultLoseReply
			}
			return memory.FaultNone
		})
	}
	<-enough
	for _, c := range clients {
		c.SetFault(nil)
	}
}

func TestLeasesFollowABubblesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memory.New()
		defer func() { _ = c.Close() }()
		id, err := c.Grant(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - 1)
		if _, err := c.KeepAlive(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + 1)
		if _, err := c.KeepAlive(t.Context(), id); !errors.Is(err, lease.ErrLeaseNotFound) {
			t.Fatalf("keepalive after the end: %v", err)
		}
	})
}

func TestALostReplyHadItsEffect(t *testing.T) {
	c := memory.New()
	defer func() { _ = c.Close() }()
	for _, k := range []struct {
		fault   memory.Fault
		written bool
	}{{memory.FaultRefuse, false}, {memory.FaultLoseReply, true}} {
		c.SetFault(func(call string) memory.Fault {
			if call == "txn" {
				return k.fault
			}
			return memory.FaultNone
		})
		if _, err := c.Txn(t.Context(), nil, []lease.Op{lease.Put("x", nil)}); !errors.Is(err, lease.ErrUnavailable) {
			t.Fatalf("fault %d: %v", k.fault, err)
		}
		if kv, _, err := c.Get(t.Context(), "x"); err != nil || (kv != nil) != k.written {
			t.Fatalf("fault %d: %+v, %v", k.fault, kv, err)
		}
	}
}
