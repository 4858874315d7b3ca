package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
)

const (
	failoverPartitions = 6
	failoverTTL        = 3 * time.Second
)

// failover kills owners, then drains them, and measures how long their
// partitions write nothing. Parts are rolled every 100 ms, which bounds the
// resolution; the partitions are fed slowly, so that none is ever at its end.
func (w *work) failover(ctx context.Context, moves int, name, coordinator string) (err error) {
	dir := w.path("failover-" + name)
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.MkdirAll(in, 0o755); err != nil {
		return err
	}
	var rows strings.Builder
	rows.WriteString("id\n")
	for i := range 2_000_000 {
		fmt.Fprintf(&rows, "%d\n", i)
	}
	for i := range failoverPartitions {
		if err := os.WriteFile(filepath.Join(in, fmt.Sprintf("%d.csv", i)), []byte(rows.String()), 0o644); err != nil {
			return err
		}
	}
	f := &fleet.Fleet{Bin: w.fenced, Dir: dir, TTL: failoverTTL, Coordinator: coordinator}
	defer f.StopAll()
	defer func() {
		for _, n := range []string{"n1", "n2", "n3"} {
			if log := strings.Split(f.Log(n), "\n"); err != nil {
				fmt.Fprintf(os.Stderr, "%s:\n%s\n", n, strings.Join(log[max(0, len(log)-25):], "\n"))
			}
		}
	}()
	for _, n := range []string{"n1", "n2", "n3"} {
		if err := f.Start(n); err != nil {
			return err
		}
	}
	members := func() error { return f.Voters(ctx, 3) }
	if coordinator != "" {
		members = func() error { return f.Active(ctx, 3) }
	}
	if err := members(); err != nil {
		return err
	}
	spec, err := w.spec("failover", fmt.Sprintf("routes:\n  r:\n    input:\n      middlewares: [{limiter: {messages_per_second: 1000}}]\n      file: {path: %q, format: csv}\n    output:\n      file: {path: %q, format: raw, name_by: source_position}\n    batch_size: 50\n    shared_storage: true\n    roll: {age: 100ms}\n",
		filepath.Join(in, "*.csv"), out))
	if err != nil {
		return err
	}
	if _, err := f.Ctl(ctx, "apply", "-f", spec); err != nil {
		return err
	}
	if err := f.Until(ctx, time.Minute, "all run", func(l fleet.Leases) bool { return l.Count("running", "") == failoverPartitions }); err != nil {
		return err
	}
	var unplanned, planned []float64
	for range moves {
		l, err := f.Leases(ctx)
		if err != nil {
			return err
		}
		victim := l.Busiest("")
		gap, err := standstill(ctx, out, owned(l, victim), func() error { f.Kill(victim); return nil })
		if err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		unplanned = append(unplanned, gap...)
		if err := f.Start(victim); err != nil {
			return err
		}
		if err := members(); err != nil {
			return err
		}
		if err := w.settled(ctx, f); err != nil {
			return err
		}
	}
	for range moves {
		l, err := f.Leases(ctx)
		if err != nil {
			return err
		}
		victim := l.Busiest("")
		gap, err := standstill(ctx, out, owned(l, victim), func() error { _, err := f.Ctl(ctx, "drain", victim, "--no-wait"); return err })
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		planned = append(planned, gap...)
		if err := f.MovedFrom(ctx, victim, failoverPartitions); err != nil {
			return err
		}
		if _, err := f.Ctl(ctx, "undrain", victim); err != nil {
			return err
		}
		if err := w.settled(ctx, f); err != nil {
			return err
		}
	}
	u, p := spreadOf(unplanned), spreadOf(planned)
	fmt.Printf("| %s: unplanned (%d × SIGKILL) | %d | %.2f [%.2f..%.2f], p99 %.2f |\n", name, moves, len(unplanned), u.median, u.min, u.max, p99(unplanned))
	fmt.Printf("| %s: planned (%d × drain) | %d | %.2f [%.2f..%.2f], p99 %.2f |\n", name, moves, len(planned), p.median, p.min, p.max, p99(planned))
	if p99(unplanned) > 5 || p99(planned) > 1 {
		return fmt.Errorf("%s: a standstill is over its bound: unplanned 5 s, planned 1 s per partition", name)
	}
	return nil
}

func p99(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[min(len(v)-1, len(v)*99/100)]
}

// settled waits until every partition runs. (They need not be even: a node that
// was lost a moment ago gets partitions back only when it has been stable.)
func (w *work) settled(ctx context.Context, f *fleet.Fleet) error {
	return f.Until(ctx, time.Minute, "every partition runs", func(l fleet.Leases) bool {
		return l.Count("running", "") == failoverPartitions
	})
}

func owned(l fleet.Leases, node string) (partitions []string) {
	for _, x := range l {
		if x.Owner == node {
			partitions = append(partitions, x.Partition)
		}
	}
	return partitions
}

// standstill does something and returns, for each partition, the longest time in
// seconds between two parts of it from then on, until each has written again.
// For a kill that is the time from the kill to the first part of the new owner.
func standstill(ctx context.Context, out string, partitions []string, do func() error) ([]float64, error) {
	count := func() (map[string]int, error) {
		entries, err := os.ReadDir(out)
		if err != nil {
			return nil, err
		}
		n := map[string]int{}
		for _, e := range entries {
			for _, p := range partitions {
				if strings.HasPrefix(e.Name(), "part-file-"+p+"-") {
					n[p]++
				}
			}
		}
		return n, nil
	}
	before, err := count()
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- do() }()
	last, longest, after := map[string]time.Time{}, map[string]time.Duration{}, map[string]int{}
	for _, p := range partitions {
		last[p] = start
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for time.Since(start) < 20*time.Second {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		now, err := count()
		if err != nil {
			return nil, err
		}
		// A move is over when every partition wrote ten parts without a long pause.
		over := true
		for _, p := range partitions {
			if now[p] > before[p] {
				longest[p] = max(longest[p], time.Since(last[p]))
				last[p] = time.Now()
				after[p] += now[p] - before[p]
			}
			over = over && after[p] >= 10 && time.Since(start) > failoverTTL*2
		}
		before = now
		if over {
			var gaps []float64
			for _, p := range partitions {
				gaps = append(gaps, longest[p].Seconds())
			}
			return gaps, <-done
		}
	}
	return nil, fmt.Errorf("partitions stand still: %v", after)
}
