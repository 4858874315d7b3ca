package actors

import (
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/mqbridge/mqb/lease"
)

// view is what anyone may read of a partition: its state, set by its actor and
// its attempt, and its counters.
type view struct {
	node  *Node
	key   partitionKey
	stats pipeline.Stats

	mu        sync.Mutex
	state     lease.State
	epoch     uint64
	since     time.Time
	err       string
	nextTry   time.Time
	guarantee string
}

// set changes the state. An error stays visible until the partition runs.
func (v *view) set(s lease.State) {
	v.mu.Lock()
	if v.state == s {
		v.mu.Unlock()
		return
	}
	v.state, v.since = s, time.Now()
	if s == lease.StateRunning || s == lease.StateDone {
		v.err = ""
	}
	if s != lease.StateQuarantined {
		v.nextTry = time.Time{}
	}
	v.mu.Unlock()
	v.node.touch()
}

func (v *view) setEpoch(e uint64) {
	v.mu.Lock()
	v.epoch = e
	v.mu.Unlock()
}

func (v *view) setGuarantee(g string) {
	v.mu.Lock()
	v.guarantee = g
	v.mu.Unlock()
}

func (v *view) fail(s lease.State, err error, next time.Time) {
	v.mu.Lock()
	if v.state != s {
		v.state, v.since = s, time.Now()
	}
	v.err, v.nextTry = err.Error(), next
	v.mu.Unlock()
	v.node.touch()
}

func (v *view) current() lease.State {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state
}

func (v *view) status() lease.PartitionStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := lease.PartitionStatus{
		Route: v.key.route, Partition: v.key.partition,
		State: v.state, Epoch: v.epoch, Since: v.since,
		Lag: v.stats.Lag.Load(), Guarantee: v.guarantee,
		Error: v.err, NextTry: v.nextTry, Counters: v.stats.Counters(),
	}
	p := v.stats.Position()
	if n, ok := p.Number(); ok {
		s.Position = formatNumber(n)
	} else {
		s.Position = p.Sort
	}
	return s
}

func (v *view) run() Run {
	return Run{
		Status:    v.status(),
		Bytes:     v.stats.Bytes.Load(),
		Commits:   v.stats.Commits.Load(),
		FenceWait: time.Duration(v.stats.FenceWait.Load()),
		RunTime:   time.Duration(v.stats.RunTime.Load()),
		Input:     v.stats.Input.Counts(),
		Output:    v.stats.Output.Counts(),
	}
}
