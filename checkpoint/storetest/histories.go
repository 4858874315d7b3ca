package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/message"
)

// histories runs random lives of records: owners that claim with rising epochs,
// freeze and come back, lose replies, and have writes of theirs arrive late. A
// model of one integer per field says what may happen. A failed history is run
// again alone by MQB_TEST_SEED=<seed>.
func histories(t *testing.T, h Harness, store checkpoint.Store) {
	if v := os.Getenv("MQB_TEST_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("MQB_TEST_SEED: %v", err)
		}
		if err := runHistory(t.Context(), store, seed, h.Steps, t.Logf); err != nil {
			t.Error(err)
		}
		return
	}
	first := uint64(time.Now().UnixNano())
	t.Logf("%d histories of %d steps from seed %d", h.Histories, h.Steps, first)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range h.Workers {
		wg.Go(func() {
			for !t.Failed() {
				i := next.Add(1)
				if i > int64(h.Histories) {
					return
				}
				seed := first + uint64(i)
				if err := runHistory(t.Context(), store, seed, h.Steps, func(string, ...any) {}); err != nil {
					t.Errorf("MQB_TEST_SEED=%d: %v", seed, err)
				}
			}
		})
	}
	wg.Wait()
}

// owner is one run: a node that was given an epoch.
type owner struct {
	epoch   uint64
	run     string
	claimed bool
	held    checkpoint.Record
	to      int64 // the furthest position it tried to commit; a run never goes back
	link    *faulty
}

type history struct {
	ctx    context.Context
	rng    *rand.Rand
	key    string
	store  checkpoint.Store
	logf   func(string, ...any)
	epoch  uint64 // the coordinator's counter
	owners []*owner
	late   []func() error

	// The model: what the store holds, and the highest epoch whose claim
	// returned.
	stored  checkpoint.Record
	claimed uint64
	broken  error
}

func runHistory(ctx context.Context, store checkpoint.Store, seed uint64, steps int, logf func(string, ...any)) error {
	h := &history{
		ctx: ctx, rng: rand.New(rand.NewPCG(seed, 1)), store: store, logf: logf,
		key: fmt.Sprintf("history/%d", seed),
	}
	for range steps {
		h.step()
		if h.broken != nil {
			return h.broken
		}
	}
	got, err := store.Load(ctx, h.key)
	switch {
	case h.stored.Version == 0 && errors.Is(err, checkpoint.ErrNotFound):
	case err != nil:
		return fmt.Errorf("load at the end: %w", err)
	case !same(got, h.stored):
		return fmt.Errorf("the store holds %+v at the end, the model %+v", got, h.stored)
	}
	return nil
}

func (h *history) fail(format string, args ...any) {
	if h.broken == nil {
		h.broken = fmt.Errorf(format, args...)
	}
}

func (h *history) step() {
	switch n := h.rng.IntN(10); {
	case n < 2 || len(h.owners) == 0:
		h.acquire()
	case n == 2 && len(h.late) > 0:
		h.arrive()
	default:
		o := h.owners[h.rng.IntN(len(h.owners))]
		o.link.next = none
		if h.rng.IntN(3) == 0 {
			o.link.next = fault(h.rng.IntN(int(delay) + 1))
		}
		if o.claimed {
			h.commit(o)
		} else {
			h.claim(o)
		}
		if o.link.late != nil {
			h.late = append(h.late, o.link.late)
			o.link.late = nil
		}
	}
}

// acquire gives a node the next epoch. It claims now or much later, and whoever
// owned the partition before knows nothing of it.
func (h *history) acquire() {
	h.epoch++
	o := &owner{epoch: h.epoch, run: fmt.Sprintf("run-%d", h.epoch)}
	o.link = &faulty{Store: h.store, accepted: h.accepted}
	h.owners = append(h.owners, o)
	h.logf("epoch %d acquired", o.epoch)
}

// accepted is told of each write that the store took, in the order it took them.
func (h *history) accepted(_ string, rec checkpoint.Record) {
	h.logf("accepted: epoch %d, version %d, position %s", rec.Epoch, rec.Version, rec.Position.Sort)
	was := h.stored
	switch {
	case rec.Epoch < h.claimed:
		h.fail("epoch %d was written after a claim with epoch %d (invariant 1)", rec.Epoch, h.claimed)
	case rec.Epoch < was.Epoch:
		h.fail("the epoch went from %d to %d", was.Epoch, rec.Epoch)
	case rec.Version != was.Version+1:
		h.fail("version %d was written over version %d", rec.Version, was.Version)
	case rec.Position.Compare(was.Position) < 0:
		h.fail("the position went from %q to %q (invariant 3)", was.Position.Sort, rec.Position.Sort)
	}
	h.stored = rec
}

// arrive lets a write that was on its way for long reach the store.
func (h *history) arrive() {
	i := h.rng.IntN(len(h.late))
	late := h.late[i]
	h.late = append(h.late[:i], h.late[i+1:]...)
	h.logf("a late write arrives: %v", late())
}

func (h *history) claim(o *owner) {
	before := h.stored
	c, err := checkpoint.Claim(h.ctx, o.link, request(h.key, o.epoch, o.run))
	h.logf("claim of epoch %d: %v", o.epoch, err)
	switch {
	case err == nil:
		if !same(c.Record, h.stored) {
			h.fail("a claim returned %+v, the store holds %+v", c.Record, h.stored)
		}
		o.claimed, o.held = true, c.Record
		h.claimed = max(h.claimed, o.epoch)
	case errors.Is(err, checkpoint.ErrFenced):
		h.fenced(o, before)
	case !errors.Is(err, errLost):
		h.fail("claim of epoch %d: %w", o.epoch, err)
	}
}

func (h *history) commit(o *owner) {
	before := h.stored
	next := o.held
	at, _ := next.Position.Number()
	o.to = max(o.to, at) + int64(h.rng.IntN(5))
	next.Position = message.Position{Sort: message.SortKey(o.to)}
	got, err := checkpoint.Commit(h.ctx, o.link, h.key, o.held, next)
	h.logf("commit of epoch %d at version %d: %v", o.epoch, o.held.Version, err)
	switch {
	case err == nil:
		if !same(got, h.stored) || got.Position.Compare(next.Position) != 0 {
			h.fail("a commit of %+v returned %+v, the store holds %+v", next, got, h.stored)
		}
		o.held = got
	case errors.Is(err, checkpoint.ErrFenced):
		h.fenced(o, before)
	case errors.Is(err, errLost):
		o.held = got
	default:
		h.fail("commit of epoch %d: %w", o.epoch, err)
	}
}

// fenced ends a run, which must have had its reason.
func (h *history) fenced(o *owner, before checkpoint.Record) {
	if before.Epoch <= o.epoch {
		h.fail("epoch %d was told it is fenced, but the store holds epoch %d", o.epoch, before.Epoch)
	}
	for i := range h.owners {
		if h.owners[i] == o {
			h.owners = append(h.owners[:i], h.owners[i+1:]...)
			return
		}
	}
}
