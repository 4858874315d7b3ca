// Demo shows the whole of mqb on one machine: three nodes with the embedded raft
// move 1.2 million CSV rows into JSONL parts, while one owner is killed and
// another one is frozen and woken again. It only uses the commands that an
// operator has, and ends with a count by code that knows nothing of the product.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
)

var (
	binDir = flag.String("bin", "bin", "directory of mqbd and mqbctl")
	files  = flag.Int("files", 24, "number of CSV files")
	rows   = flag.Int("rows", 50000, "rows in each file")
	rate   = flag.Int("rate", 1150, "rows per second and partition")
	ttl    = flag.Duration("lease-ttl", 3*time.Second, "lease TTL of the nodes")
	keep   = flag.Bool("keep", false, "keep the directory with data and logs")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "mqb-demo-")
	if err != nil {
		return err
	}
	c := &stage{Fleet: &fleet.Fleet{Bin: *binDir, Dir: dir, TTL: *ttl}, started: time.Now()}
	defer func() {
		c.StopAll()
		if *keep || err != nil {
			fmt.Println("data and logs are in", dir)
			return
		}
		_ = os.RemoveAll(dir)
	}()

	total := int64(*files) * int64(*rows)
	c.say("writing %d CSV files, %d rows in all", *files, total)
	if err := writeInput(filepath.Join(dir, "in")); err != nil {
		return err
	}
	c.say("starting three nodes")
	for _, name := range []string{"n1", "n2", "n3"} {
		if err := c.Start(name); err != nil {
			return err
		}
	}
	if err := c.Voters(ctx, 3); err != nil {
		return err
	}
	spec := fmt.Sprintf(`routes:
  orders:
    input:
      middlewares:
        - limiter: {messages_per_second: %d}
      file: {path: "%s", format: csv}
    output:
      file: {path: "%s", format: raw, name_by: source_position}
    shared_storage: true
    roll: {age: 2s}
`, *rate, filepath.Join(dir, "in", "*.csv"), filepath.Join(dir, "out"))
	specFile := filepath.Join(dir, "orders.yaml")
	if err := os.WriteFile(specFile, []byte(spec), 0o644); err != nil {
		return err
	}
	if err := c.show(ctx, "apply", "-f", specFile); err != nil {
		return err
	}
	if err := c.Until(ctx, time.Minute, "every partition runs", func(l fleet.Leases) bool { return l.Count("running", "") == *files }); err != nil {
		return err
	}
	if err := c.show(ctx, "explain", specFile); err != nil {
		return err
	}
	if err := c.show(ctx, "leases"); err != nil {
		return err
	}
	before, err := c.Leases(ctx)
	if err != nil {
		return err
	}

	// A kill.
	victim := before.Busiest("")
	c.say("kill -9 %s, which owns %d partitions", victim, before.Count("", victim))
	killed := time.Now()
	c.Kill(victim)
	if err := c.MovedFrom(ctx, victim, *files); err != nil {
		return err
	}
	c.say("its partitions run elsewhere %.1f s after the kill", time.Since(killed).Seconds())
	if err := c.show(ctx, "leases"); err != nil {
		return err
	}
	c.say("starting %s again", victim)
	if err := c.Start(victim); err != nil {
		return err
	}
	if err := c.Voters(ctx, 3); err != nil {
		return err
	}
	if err := c.show(ctx, "nodes"); err != nil {
		return err
	}

	// A freeze.
	between, err := c.Leases(ctx)
	if err != nil {
		return err
	}
	frozen := between.Busiest(victim)
	c.say("freezing %s (SIGSTOP), which owns %d partitions", frozen, between.Count("", frozen))
	frozeAt := time.Now()
	c.Freeze(frozen)
	if err := c.MovedFrom(ctx, frozen, *files); err != nil {
		return err
	}
	c.say("its partitions run elsewhere %.1f s after the freeze", time.Since(frozeAt).Seconds())
	if err := c.show(ctx, "leases"); err != nil {
		return err
	}
	if d := 2**ttl - time.Since(frozeAt); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.say("waking %s (SIGCONT): a zombie with open spools and a stale epoch", frozen)
	c.Thaw(frozen)

	if err := c.Until(ctx, 2*time.Minute, "every file is done", func(l fleet.Leases) bool { return l.Count("done", "") == *files }); err != nil {
		return err
	}
	if err := c.show(ctx, "leases"); err != nil {
		return err
	}
	after, err := c.Leases(ctx)
	if err != nil {
		return err
	}
	if err := epochsRose(before, between, after); err != nil {
		return err
	}
	c.say("what the woken node said:")
	if err := c.lost(frozen); err != nil {
		return err
	}
	report, err := checker.Parts(filepath.Join(dir, "out"), total)
	if err != nil {
		return err
	}
	c.say("checker: %s", report)
	if !report.OK() {
		return errors.New("rows were lost or doubled")
	}
	c.say("each of the %d rows is there exactly once", total)
	return nil
}

// writeInput writes the CSV files; ids run from 1 through all of them.
func writeInput(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	id := 0
	for f := range *files {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("orders-%02d.csv", f)))
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(file, 1<<20)
		fmt.Fprintln(w, "id,customer,amount,note")
		for range *rows {
			id++
			fmt.Fprintf(w, "%d,customer-%d,%d.%02d,\"a \"\"quoted\"\", note\"\n", id, id%977, id%10000, id%100)
		}
		if err := errors.Join(w.Flush(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

// stage is the fleet with its narration.
type stage struct {
	*fleet.Fleet
	started time.Time
}

func (c *stage) say(format string, args ...any) {
	fmt.Printf("\n[%5.1fs] %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// show runs a command and prints it with what it prints; it tries again while
// the cluster elects.
func (c *stage) show(ctx context.Context, args ...string) error {
	var out []byte
	err := fleet.Eventually(ctx, 15*time.Second, func() (err error) { out, err = c.Ctl(ctx, args...); return err })
	fmt.Printf("\n$ mqbctl %s\n%s", strings.Join(args, " "), out)
	return err
}

func epochsRose(snapshots ...fleet.Leases) error {
	for i := 1; i < len(snapshots); i++ {
		rose := 0
		before := map[string]uint64{}
		for _, x := range snapshots[i-1] {
			before[x.Partition] = x.Epoch
		}
		for _, x := range snapshots[i] {
			if x.Epoch < before[x.Partition] {
				return fmt.Errorf("the epoch of %s went back from %d to %d", x.Partition, before[x.Partition], x.Epoch)
			}
			if x.Epoch > before[x.Partition] {
				rose++
			}
		}
		if rose == 0 {
			return errors.New("partitions moved but no epoch rose")
		}
	}
	return nil
}

// lost prints what the woken node logged about its partitions and fails on a
// stack trace.
func (c *stage) lost(name string) error {
	n := 0
	for line := range strings.Lines(c.Log(name)) {
		if strings.Contains(line, "lost ownership") {
			if n++; n <= 3 {
				fmt.Print("  ", line)
			}
		}
		if strings.Contains(line, "goroutine ") && strings.Contains(line, "[running]") {
			return fmt.Errorf("stack trace in %s", c.LogPath(name))
		}
	}
	fmt.Printf("  … %d lines in all, one for each partition it had\n", n)
	if n == 0 {
		return errors.New("the woken node did not say that it lost its partitions")
	}
	return nil
}
