// Package simulation runs whole clusters in testing/synctest bubbles: the real
// nodes, scheduler, actors and pipelines over a coordinator, a source and two sinks
// in memory that lose replies, come late and stop in the middle of a step. A seed
// decides what happens; the clock only moves when all wait, so a minute of a
// cluster takes some milliseconds.
//
//	MQB_SIM_SEED=17 go test ./test/simulation     one seed (-count 50 for other interleavings)
//	MQB_SIM_COUNT=100                             that many, from 1 on
//	MQB_SIM_SECONDS=600                           new seeds for that long (make soak)
//	MQB_TEST_LOG=1                                the nodes' logs in the history of a failure
//
// A seed fixes what happens and when, and what becomes of each call; it does not
// fix which of two goroutines that can run runs first, nor the product's own jitter.
package simulation

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds is how many run in make test, atOnce how many at the same time.
const (
	seeds  = 2000
	atOnce = 2
)

func TestSeeds(t *testing.T) {
	if s := os.Getenv("MQB_SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("MQB_SIM_SEED: %v", err)
		}
		simulate(t, seed)
		return
	}
	count := number(t, "MQB_SIM_COUNT", seeds)
	if testing.Short() {
		count = min(count, 50)
	}
	first, until := uint64(1), time.Time{}
	if d := number(t, "MQB_SIM_SECONDS", 0); d > 0 {
		first, until = uint64(time.Now().UnixNano()), time.Now().Add(time.Duration(d)*time.Second)
	}
	var next atomic.Uint64
	next.Store(first)
	began := time.Now()
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				if until.IsZero() && seed >= first+uint64(count) || !until.IsZero() && time.Now().After(until) || t.Failed() {
					return
				}
				t.Run(fmt.Sprint(seed), func(t *testing.T) { simulate(t, seed) })
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds in %v", next.Load()-first-atOnce, time.Since(began).Round(time.Millisecond))
}

func number(t *testing.T, name string, otherwise int) int {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// simulate runs the history of one seed. A bubble in which everybody waits for
// ever, and one that ends with goroutines left, panics here.
func simulate(t *testing.T, seed uint64) {
	defer func() {
		if v := recover(); v != nil {
			t.Errorf("MQB_SIM_SEED=%d: %v\n%s", seed, v, debug.Stack())
		} else if t.Failed() {
			t.Errorf("again: MQB_SIM_SEED=%d go test ./test/simulation", seed)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		defer w.report()
		w.history()
	})
}
