// Package leasetest is the conformance suite of lease.Coordinator. Every engine
// runs it against real stores of its kind.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
)

// Harness is a running store, seen through one client per node. The suite uses
// keys of its own for each test, so one harness serves all of them.
type Harness struct {
	// Clients are at least one; the suite spreads its calls over them.
	Clients []lease.Coordinator
	// TTL is a lease time the engine keeps to, as short as it bears; default 400 ms.
	TTL time.Duration
	// Slack is how much later than its TTL a lease may end; default 10 s.
	Slack time.Duration
	// HistoryEvents is how many events the engine keeps for a watch at most. The
	// suite writes that many to make it compact.
	HistoryEvents int
	// Compact makes the engine forget all history, where it does not do so by itself
	// after HistoryEvents.
	Compact func(t *testing.T)
	// SetAvailable cuts client i off from the store, or connects it again. nil
	// where the engine's own tests cover it.
	SetAvailable func(t *testing.T, i int, up bool)
	// Disturb does its worst to the store or to the clients' connections for a
	// moment (kills a leader, loses replies) and returns when all is well again. nil
	// where there is nothing to disturb.
	Disturb func(t *testing.T)
}

func (h *Harness) client(i int) lease.Coordinator { return h.Clients[i%len(h.Clients)] }

// Run runs the suite.
func Run(t *testing.T, start func(t *testing.T) *Harness) {
	h := start(t)
	if h.TTL == 0 {
		h.TTL = 400 * time.Millisecond
	}
	if h.Slack == 0 {
		h.Slack = 10 * time.Second
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *Harness)
	}{
		{"get of an absent key", testAbsent},
		{"versions and revisions", testVersions},
		{"list in byte order", testList},
		{"each compare holds and fails", testCompares},
		{"a transaction is all or nothing", testAtomic},
		{"a transaction without effect takes no revision", testNoEffect},
		{"delete by prefix", testDeletePrefix},
		{"a key written twice in one transaction is refused", testDuplicate},
		{"an oversized transaction is refused", testOversized},
		{"binary keys and values survive", testBinary},
		{"writes are seen at once through every client", testLinearizable},
		{"concurrent counters lose nothing", testCounters},
		{"one of many creators wins", testCreators},
		{"a lease holds while kept alive", testKeepAlive},
		{"an expired lease deletes its keys and watchers see it", testExpiry},
		{"keepalive after expiry", testKeepAliveAfterExpiry},
		{"revoke deletes and unknown leases are no error", testRevoke},
		{"put with an unknown lease", testUnknownLease},
		{"a key rebound leaves its old lease", testRebind},
		{"lease ids are not used again", testLeaseIDs},
		{"watch from the past is gapless and ordered", testWatchPast},
		{"watch from the future waits", testWatchFuture},
		{"watch sees one response for one revision", testWatchGrouped},
		{"watch under concurrent writers is gapless", testWatchConcurrent},
		{"watch closes with its context", testWatchContext},
		{"watch of a compacted revision", testCompacted},
		{"a slow watcher is cut off and blocks nobody", testSlowWatcher},
		{"an ended context is unavailable", testContext},
		{"a client cut off is unavailable and comes back", testUnavailable},
		{"histories are linearizable", testHistory},
		{"histories under faults are linearizable", testDisturbedHistory},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
	// Last: it takes a client away.
	t.Run("closed", func(t *testing.T) { testClosed(t, h) })
}

// within bounds each test; a healthy store needs a fraction.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// key returns a key of this test alone.
func key(t *testing.T, name string) string { return "/leasetest/" + t.Name() + "/" + name }

func put(t *testing.T, c lease.Coordinator, ops ...lease.Op) int64 {
	t.Helper()
	r, err := c.Txn(within(t), nil, ops)
	if err != nil || !r.Succeeded {
		t.Fatalf("txn: %+v, %v", r, err)
	}
	return r.Revision
}

func get(t *testing.T, c lease.Coordinator, k string) *lease.KV {
	t.Helper()
	kv, _, err := c.Get(within(t), k)
	if err != nil {
		t.Fatalf("get %s: %v", k, err)
	}
	return kv
}

func grant(t *testing.T, c lease.Coordinator, ttl time.Duration) lease.LeaseID {
	t.Helper()
	id, err := c.Grant(within(t), ttl)
	if err != nil || id == 0 {
		t.Fatalf("grant: %d, %v", id, err)
	}
	return id
}

// revision is the store's revision now.
func revision(t *testing.T, c lease.Coordinator) int64 {
	t.Helper()
	_, rev, err := c.Get(within(t), key(t, "none"))
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// next receives one response of a watch.
func next(t *testing.T, w <-chan lease.WatchResponse) lease.WatchResponse {
	t.Helper()
	select {
	case r, ok := <-w:
		if !ok {
			t.Fatal("watch ended")
		}
		return r
	case <-within(t).Done():
		t.Fatal("no event")
	}
	panic("unreachable")
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func events(r lease.WatchResponse) string {
	s := ""
	for _, e := range r.Events {
		if e.Type == lease.EventDelete {
			s += fmt.Sprintf("-%s@%d ", e.KV.Key, e.KV.ModRevision)
		} else {
			s += fmt.Sprintf("+%s=%s@%d ", e.KV.Key, e.KV.Value, e.KV.ModRevision)
		}
	}
	return s
}
