package raft

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
)

// A member that closes while proposals stand before its loop, and while it has just
// come to lead, must answer them all and end.
func TestACloseAmongProposalsThatNobodyTookDoesNotHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 25 {
		n := newNode(t, "n1", filepath.Join(dir, strconv.Itoa(i)), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for c := range 8 {
			callers.Go(func() {
				for ctx.Err() == nil {
					_, _ = n.Txn(ctx, nil, []lease.Op{lease.Put("/k"+strconv.Itoa(c), []byte("v"))})
				}
			})
		}
		if i%2 == 0 { // else it closes while it is still coming up
			_, _, _ = n.Get(ctx, "/k0")
		}
		closed := make(chan struct{})
		go func() { defer close(closed); n.stop() }()
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatal("the member does not close")
		}
		cancel()
		callers.Wait()
	}
}
