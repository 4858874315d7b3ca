package cluster

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

// The coordinator answers before the relay runs: on a cluster where nothing else
// changes, a node that missed its first list would wait for ever, and a lone one
// would never become the scheduler.
func TestFirstListThatComesBeforeTheRelayRunsIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := memory.New()
		defer c.Close()
		m := newMirrors(c, lease.NewKeys("c"), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		mirror := m.scheduler
		before, announced := mirror.Changed(), m.Changed()
		wg.Go(func() { _ = mirror.Run(ctx) })
		synctest.Wait() // it has listed
		wg.Go(func() { m.relay(ctx, mirror, before) })
		synctest.Wait()
		select {
		case <-announced:
		default:
			t.Error("the first list is not announced")
		}
	})
}
