package api

import (
	"context"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/lease"
)

// Measure is what a node's Vitals are made from.
type Measure struct {
	Node, Version string
	DataDir       string
	Coordinator   lease.Coordinator
	Keys          lease.Keys
	Ready         func(context.Context) error
	Lease         func() lease.Margins
	// Runs lists the partitions of this node.
	Runs func() []actors.Run
	// InCoordinator reports whether a route keeps its records there.
	InCoordinator func(ctx context.Context, route string) bool
}

// sample is over how long commits are counted.
const sample = time.Second

// Vitals measures, which takes a little more than a second.
func (m Measure) Vitals(ctx context.Context) Vitals {
	v := Vitals{Node: m.Node, Version: m.Version, DataDir: m.DataDir}
	if err := m.Ready(ctx); err != nil {
		v.NotReady = err.Error()
	}
	v.Write, v.WriteError = m.write(ctx)
	if v.WriteError == "" {
		v.Commits = m.rate(ctx)
	}
	v.Lease = m.Lease()
	v.DiskFree, v.DiskTotal = disk(m.DataDir)
	v.Time = time.Now()
	return v
}

// write puts a key of this node's own and takes it away again.
func (m Measure) write(ctx context.Context) (time.Duration, string) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout/2)
	defer cancel()
	key := m.Keys.Probe(m.Node)
	began := time.Now()
	_, err := m.Coordinator.Txn(ctx, nil, []lease.Op{lease.Put(key, nil)})
	took := time.Since(began)
	if err == nil {
		_, err = m.Coordinator.Txn(ctx, nil, []lease.Op{lease.Delete(key)})
	}
	if err != nil {
		return 0, err.Error()
	}
	return took, ""
}

// rate counts the commits in the coordinator over a sample, a second each.
func (m Measure) rate(ctx context.Context) float64 {
	before, began := m.commits(ctx), time.Now()
	t := time.NewTimer(sample)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return 0
	}
	var n int64
	for key, count := range m.commits(ctx) {
		n += max(0, count-before[key])
	}
	return float64(n) / time.Since(began).Seconds()
}

func (m Measure) commits(ctx context.Context) map[place]int64 {
	out := map[place]int64{}
	known := map[string]bool{}
	for _, r := range m.Runs() {
		in, ok := known[r.Status.Route]
		if !ok {
			in = m.InCoordinator(ctx, r.Status.Route)
			known[r.Status.Route] = in
		}
		if in {
			out[place{r.Status.Route, r.Status.Partition}] = r.Commits
		}
	}
	return out
}
