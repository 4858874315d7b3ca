package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
	"github.com/mqbridge/mqb/lease/memory"
)

func TestMirrorFollowsThroughCutsAndCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewStore(memory.Options{History: kv.Options{HistoryEvents: 100}})
		near, far := s.Client(), s.Client()
		m := lease.NewMirror(near, "/m/", nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		near.SetAvailable(false)
		go func() { ended <- m.Run(ctx) }()
		synctest.Wait()
		if m.Snapshot().Synced {
			t.Fatal("synced without a store")
		}
		put := func(ops ...lease.Op) int64 {
			r, err := far.Txn(t.Context(), nil, ops)
			if err != nil {
				t.Fatal(err)
			}
			return r.Revision
		}
		put(lease.Put("/m/a", []byte("1")), lease.Put("/other", nil))
		near.SetAvailable(true)
		first, err := m.Wait(t.Context(), 1)
		if err != nil || first.Len() != 1 {
			t.Fatalf("%d keys, %v", first.Len(), err)
		}
		changed := m.Changed()
		rev := put(lease.Put("/m/b", nil), lease.Delete("/m/a"))
		<-changed
		now, err := m.Wait(t.Context(), rev)
		if err != nil || now.Len() != 1 || now.Revision != rev {
			t.Fatalf("%d keys at %d, %v", now.Len(), now.Revision, err)
		}
		if kv, ok := first.Get("/m/a"); !ok || string(kv.Value) != "1" {
			t.Fatal("a snapshot changed")
		}
		near.SetAvailable(false)
		for i := range 500 {
			put(lease.Put(fmt.Sprintf("/m/n/%03d", i), nil))
		}
		rev = put(lease.Delete("/m/b"))
		near.SetAvailable(true)
		now, err = m.Wait(t.Context(), rev)
		if err != nil || now.Len() != 500 {
			t.Fatalf("%d keys, %v", now.Len(), err)
		}
		n := 0
		for kv := range now.All("/m/n/00") {
			if kv.Key != fmt.Sprintf("/m/n/%03d", n) {
				t.Fatalf("key %d is %s", n, kv.Key)
			}
			if n++; n == 5 {
				break
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		_ = s.Close()
		time.Sleep(time.Second)
	})
}

// watchless lists well and ends every watch at once.
type watchless struct {
	lease.Coordinator
	lists int
}

func (w *watchless) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	w.lists++
	return w.Coordinator.List(ctx, prefix)
}

func (w *watchless) Watch(context.Context, string, int64) <-chan lease.WatchResponse {
	c := make(chan lease.WatchResponse, 1)
	c <- lease.WatchResponse{Err: lease.ErrCompacted}
	close(c)
	return c
}

// A list that succeeds says nothing of the watch behind it: a mirror that lists
// everything again and again must not do it at full speed.
func TestMirrorWhoseWatchesEndAtOnceBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.NewStore(memory.Options{})
		defer store.Close()
		w := &watchless{Coordinator: store.Client()}
		defer w.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_ = lease.NewMirror(w, "/", slog.New(slog.DiscardHandler)).Run(ctx)
		if w.lists > 30 {
			t.Errorf("%d lists in ten seconds", w.lists)
		}
	})
}
