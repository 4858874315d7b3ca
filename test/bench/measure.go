package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// sample is one timed process.
type sample struct {
	wall, cpu time.Duration
	rssMiB    float64
	out       string
}

// timed runs a command to its end, from outside: start-up and shutdown count.
func timed(ctx context.Context, path string, args ...string) (sample, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	t := time.Now()
	if err := cmd.Start(); err != nil {
		return sample{}, err
	}
	peak := make(chan float64)
	done := make(chan struct{})
	go func() { peak <- watchPeak(cmd.Process.Pid, done) }()
	err := cmd.Wait()
	s := sample{wall: time.Since(t)}
	close(done)
	s.rssMiB, s.out = <-peak, out.String()
	if err != nil {
		return s, fmt.Errorf("%s %v: %w\n%s%s", path, args, err, out.Bytes(), errOut.Bytes())
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	s.cpu = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return s, nil
}

// watchPeak returns the peak resident memory in MiB of a process that runs. (The
// figure of wait4 will not do: it begins with the memory of the parent.)
func watchPeak(pid int, done <-chan struct{}) (mib float64) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(data)) {
			var kb float64
			if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
				mib = max(mib, kb/1024)
			}
		}
		select {
		case <-tick.C:
		case <-done:
			return mib
		}
	}
}

// spread is the median with the least and the most.
type spread struct{ min, median, max float64 }

func spreadOf(v []float64) spread {
	v = slices.Clone(v)
	slices.Sort(v)
	return spread{v[0], v[len(v)/2], v[len(v)-1]}
}

func (s spread) String() string { return fmt.Sprintf("%.0f [%.0f..%.0f]", s.median, s.min, s.max) }

// job is one thing to measure, with its variants (A, B, …).
type job struct {
	name     string
	rows     int
	variants []variant
	// before runs, untimed, before each run; count says how many rows the sink holds.
	before func(ctx context.Context, v variant) error
	count  func(ctx context.Context) (int, error)
}

type variant struct {
	name string
	bin  string
	args func() []string
}

// result of one variant of a job.
type result struct {
	job, variant string
	rate, cpu    spread // rows/s, CPU seconds
	rssMiB       float64
	fence        []float64 // per cent, as the product counts it
}

// run alternates the variants, after one warm-up of each, and counts at the sink.
func (j job) run(ctx context.Context, n int) ([]result, error) {
	rates, cpus := make([][]float64, len(j.variants)), make([][]float64, len(j.variants))
	rss, fences := make([]float64, len(j.variants)), make([][]float64, len(j.variants))
	for i := range n + 1 {
		for k, v := range j.variants {
			if err := j.before(ctx, v); err != nil {
				return nil, err
			}
			syscall.Sync()
			s, err := timed(ctx, v.bin, v.args()...)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", j.name, v.name, err)
			}
			got, err := j.count(ctx)
			if err != nil {
				return nil, err
			}
			if got != j.rows {
				return nil, fmt.Errorf("%s, %s: %d rows at the sink instead of %d", j.name, v.name, got, j.rows)
			}
			if i == 0 {
				continue
			}
			rates[k] = append(rates[k], float64(j.rows)/s.wall.Seconds())
			cpus[k] = append(cpus[k], s.cpu.Seconds())
			rss[k] = max(rss[k], s.rssMiB)
			if f, ok := fenceCost(s.out); ok {
				fences[k] = append(fences[k], f)
			}
			fmt.Fprintf(os.Stderr, "  %s, %s: %.0f rows/s\n", j.name, v.name, float64(j.rows)/s.wall.Seconds())
		}
	}
	out := make([]result, len(j.variants))
	for k, v := range j.variants {
		out[k] = result{job: j.name, variant: v.name, rate: spreadOf(rates[k]), cpu: spreadOf(cpus[k]), rssMiB: rss[k], fence: fences[k]}
	}
	return out, nil
}
