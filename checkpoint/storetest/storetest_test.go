package storetest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/memory"
	"github.com/mqbridge/mqb/checkpoint/storetest"
)

// broken is the memory store with records that a session can lock, and with one
// fault. It exists to see the suite pass and turn red.
type broken struct {
	*memory.Store
	fault string

	mu     sync.Mutex
	before map[string]checkpoint.Record // the version before the stored one
	frozen map[string]string            // key → session
	ended  map[string]bool
}

func newBroken(fault string) *broken {
	return &broken{
		Store: memory.New(), fault: fault,
		before: map[string]checkpoint.Record{}, frozen: map[string]string{}, ended: map[string]bool{},
	}
}

func (b *broken) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	rec, err := b.Store.Load(ctx, key)
	b.mu.Lock()
	defer b.mu.Unlock()
	old, ok := b.before[key]
	if ok && (b.fault == "stale reads" && err == nil || b.fault == "torn falls back" && errors.Is(err, checkpoint.ErrRegressed)) {
		return old, nil
	}
	return rec, err
}

func (b *broken) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	b.mu.Lock()
	session := b.frozen[key]
	locked := session != "" && !b.ended[session]
	b.mu.Unlock()
	if locked {
		return checkpoint.ErrLocked
	}
	now, err := b.Store.Load(ctx, key)
	exists := err == nil
	write := false
	switch b.fault {
	case "create overwrites":
		write = expected == 0
	case "version ignored":
		write = exists && expected > 0
	case "any version may follow":
		write = exists && expected == now.Version
	case "creates what is gone":
		write = !exists && expected > 0
	case "compared before the write":
		write = expected == now.Version
		if write {
			// Room for another writer between the comparison and the write.
			<-time.After(time.Millisecond)
		}
	case "epoch instead of version compared":
		write = exists && rec.Epoch >= now.Epoch
	case "field lost":
		rec.SinkState = nil
	case "large record cut":
		if len(rec.SinkState) > 1000 {
			rec.SinkState = rec.SinkState[:1000]
		}
	}
	if exists {
		b.mu.Lock()
		b.before[key] = now
		b.mu.Unlock()
	}
	if !write {
		return b.Store.Swap(ctx, key, expected, rec)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return err
	}
	b.Tamper(key, func([]byte) []byte { return body })
	return nil
}

func (b *broken) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	if b.fault == "prefix is a pattern" {
		head, _, _ := strings.Cut(prefix, "%")
		return b.Store.List(ctx, strings.TrimSuffix(head, "_"))
	}
	got, err := b.Store.List(ctx, prefix)
	if b.fault == "list out of order" {
		slices.Reverse(got)
	}
	return got, err
}

func (b *broken) Identity() string {
	if b.fault == "secret in the identity" {
		return "memory://user:secret@here"
	}
	return b.Store.Identity()
}

func (b *broken) EndSession(_ context.Context, session string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended[session] = b.fault != "frozen session survives"
	return nil
}

func harness(fault string) storetest.Harness {
	var limit time.Duration
	if fault != "" {
		limit = 5 * time.Second // some faults are a behaviour that does not end
	}
	return storetest.Harness{Histories: 500, Timeout: limit, New: func(*testing.T) *storetest.Subject {
		b := newBroken(fault)
		return &storetest.Subject{
			Open:   func(*testing.T) checkpoint.Store { return b },
			Tamper: func(_ *testing.T, key string, change func([]byte) []byte) { b.Tamper(key, change) },
			LockRecord: func(*testing.T) (string, func(string)) {
				return "frozen", func(key string) {
					b.mu.Lock()
					defer b.mu.Unlock()
					b.frozen[key] = "frozen"
				}
			},
		}
	}}
}

func TestGoodStore(t *testing.T) { storetest.Run(t, harness("")) }

// faults names for each way to break a store a behaviour that must turn red.
var faults = []struct{ fault, behaviour string }{
	{"stale reads", "load,_swap,_list"},
	{"secret in the identity", "load,_swap,_list"},
	{"prefix is a pattern", "records_of_other_keys_are_apart"},
	{"list out of order", "records_of_other_keys_are_apart"},
	{"field lost", "every_field_comes_back"},
	{"create overwrites", "create_meets_a_record"},
	{"version ignored", "swap_meets_another_version"},
	{"any version may follow", "version_must_follow"},
	{"creates what is gone", "swap_finds_the_record_gone"},
	{"creates what is gone", "commit_never_creates"},
	{"compared before the write", "one_winner_of_each_version"},
	{"compared before the write", "concurrent_claims_never_lower_the_epoch"},
	{"version ignored", "stale_epoch"},
	{"version ignored", "stale_run_of_the_same_epoch"},
	{"version ignored", "record_went_back"},
	{"version ignored", "set_fences_the_owner"},
	{"version ignored", "tombstone"},
	{"torn falls back", "torn_record"},
	{"large record cut", "too_large"},
	{"frozen session survives", "locked_by_a_frozen_session"},
	{"version ignored", "random_histories"},
	{"epoch instead of version compared", "random_histories"},
	{"stale reads", "random_histories"},
}

const faultEnv = "STORETEST_FAULT"

// TestFault is the child of TestBrokenStoreTurnsRed; alone it has nothing to do.
func TestFault(t *testing.T) {
	if fault := os.Getenv(faultEnv); fault != "" {
		storetest.Run(t, harness(fault))
	}
}

// TestBrokenStoreTurnsRed runs the suite over each fault in a process of its own,
// since a failed test cannot be taken back.
func TestBrokenStoreTurnsRed(t *testing.T) {
	for _, f := range faults {
		t.Run(f.fault+"/"+f.behaviour, func(t *testing.T) {
			t.Parallel()
			count := "1"
			if strings.HasPrefix(f.behaviour, "concurrent") {
				count = "30" // it takes the schedule's help: one red run is enough
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFault$/^"+f.behaviour+"$", "-test.timeout=60s", "-test.count="+count)
			cmd.Env = append(os.Environ(), faultEnv+"="+f.fault)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passed a store with the fault %q:\n%s", f.fault, out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestFault/"+f.behaviour) {
				t.Fatalf("failed otherwise than by its behaviour:\n%s", out)
			}
		})
	}
}
