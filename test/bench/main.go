// Bench measures what docs/performance.md publishes: throughput of mqbctl run,
// counted at the sink, beside a build whose fence does not compare; the cost of
// the fence as the product counts it; what planning and an idle cluster cost at
// scale; and how long a partition stands still in a failover and in a hand-off. Variants alternate in one run, since absolute
// figures move with the machine.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/mqbridge/mqb/test/harness"
)

var (
	runs  = flag.Int("n", 5, "timed runs of each variant")
	moves = flag.Int("moves", 10, "kills, and drains, of the failover benchmark")
	only  = flag.String("only", "", "comma separated: csv, jsonl, jsonl-long, kafka-parts, kafka-postgres, scale, failover; default all")
	peer  = flag.String("peer", "", "shell command that writes $IN as JSON lines to $OUT: runs beside csv and jsonl in the same alternation")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func wanted(name string) bool {
	if *only == "" {
		return true
	}
	for s := range strings.SplitSeq(*only, ",") {
		if s == name {
			return true
		}
	}
	return false
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "mqb-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fenced, open := filepath.Join(dir, "bin"), filepath.Join(dir, "bin-unfenced")
	if err := build(ctx, fenced, ""); err != nil {
		return err
	}
	if err := build(ctx, open, "mqbnofence"); err != nil {
		return err
	}
	fmt.Printf("%s, %d CPUs, %s\n\n", cpu(), runtime.NumCPU(), runtime.Version())
	fmt.Println("| job | variant | rows/s, median [min..max] | CPU s | peak RSS MiB | fence cost % |")
	fmt.Println("|---|---|---|---|---|---|")
	w := work{dir: dir, fenced: fenced, open: open}
	defer w.stop()
	for _, j := range []struct {
		name string
		make func(context.Context) (job, error)
	}{{"csv", w.csv}, {"jsonl", w.jsonl}, {"jsonl-long", w.long}, {"kafka-parts", w.kafkaParts}, {"kafka-postgres", w.kafkaPostgres}} {
		if !wanted(j.name) {
			continue
		}
		job, err := j.make(ctx)
		if err != nil {
			return err
		}
		results, err := job.run(ctx, *runs)
		if err != nil {
			return err
		}
		for _, r := range results {
			fence := "–"
			if len(r.fence) > 0 {
				fence = fmt.Sprintf("%.2f", spreadOf(r.fence).median)
			}
			fmt.Printf("| %s | %s | %s | %.2f | %.0f | %s |\n", r.job, r.variant, r.rate, r.cpu.median, r.rssMiB, fence)
		}
	}
	if wanted("scale") {
		if err := w.scale(ctx); err != nil {
			return err
		}
	}
	if wanted("failover") {
		fmt.Printf("\n| move, TTL %v | partitions moved | standstill s, median [min..max] |\n|---|---|---|\n", failoverTTL)
		if err := w.failover(ctx, *moves, "raft", ""); err != nil {
			return err
		}
		servers := &program{ctx: ctx}
		defer servers.end()
		return w.failover(ctx, *moves, "etcd, 3 members", harness.Etcd(servers, 3).URL())
	}
	return nil
}

func build(ctx context.Context, dir, tags string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", tags, "-o", dir+"/", "./cmd/mqbd", "./cmd/mqbctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func cpu() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

// fenceCost reads the share of run time that writers waited for the record, in
// per cent, out of mqbctl run's summary.
func fenceCost(out string) (float64, bool) {
	var v struct {
		Fence float64 `json:"fence_seconds"`
		Run   float64 `json:"run_seconds"`
	}
	if json.Unmarshal([]byte(out), &v) != nil || v.Run == 0 {
		return 0, false
	}
	return 100 * v.Fence / v.Run, true
}
