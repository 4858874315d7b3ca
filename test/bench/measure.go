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

// timed runs a variant from outside: start-up and shutdown count. One that never
// ends by itself is timed until its work is done, and then told to end.
func timed(ctx context.Context, v variant) (sample, error) {
	args := v.args()
	cmd := exec.CommandContext(ctx, v.bin, args...)
	cmd.Env = append(os.Environ(), v.env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	t := time.Now()
	if err := cmd.Start(); err != nil {
		return sample{}, err
	}
	peak := make(chan float64)
	done := make(chan struct{})
	go func() { peak <- watchPeak(cmd.Process.Pid, done) }()
	var s sample
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	if v.until == nil {
		err = <-ended
		s.wall = time.Since(t)
	} else {
		s.wall, err = await(ctx, v, t, ended)
		if err == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-ended // says that it was told to end
		}
	}
	close(done)
	s.rssMiB, s.out = <-peak, out.String()
	if err != nil {
		return s, fmt.Errorf("%s %v: %w\n%s%s", v.bin, args, err, out.Bytes(), errOut.Bytes())
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	s.cpu = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	return s, nil
}

// await asks until the variant has done its work, which it has to before it ends.
func await(ctx context.Context, v variant, start time.Time, ended <-chan error) (time.Duration, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case err := <-ended:
			return 0, fmt.Errorf("ended before its work was done: %w", err)
		}
		now := time.Since(start)
		if ok, err := v.until(ctx); err != nil || ok {
			return now, err
		}
	}
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
