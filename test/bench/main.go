// Bench measures what docs/performance.md publishes: throughput of mqbctl run,
// counted at the sink, beside a build whose fence does not compare and, when it is
// asked to, beside other programs that do the same work; the cost of the fence as
// the product counts it; what planning and an idle cluster cost at scale; and how
// long a partition stands still in a failover and in a hand-off. Variants alternate
// in one run, since absolute figures move with the machine.
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
	"slices"
	"strings"
	"syscall"

	"github.com/mqbridge/mqb/test/harness"
)

const defaultRows = 1_000_000

var (
	runs  = flag.Int("n", 5, "timed runs of each variant")
	rows  = flag.Int("rows", defaultRows, "rows of the fixture; the Kafka jobs without peers have six times as many")
	moves = flag.Int("moves", 10, "kills, and drains, of the failover benchmark")
	only  = flag.String("only", "", "comma separated: "+strings.Join(kindNames[:], ", ")+", kafka-parts, scale, failover, and a job's name with -long behind it for ten times the rows; default all, and jsonl-long")
	names peerNames
)

func main() {
	flag.Var(&names, "peers", "also run other programs, which are installed in the cache of the tests: -peers for all, -peers=mqbridge,duckdb for some of "+strings.Join(peerNames(nil).all(), ", "))
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
		return !strings.HasSuffix(name, "-long") || name == "jsonl-long"
	}
	return slices.Contains(strings.Split(*only, ","), name)
}

// title is a job's title; one with another number of rows says so.
func (w *work) title(name string) string {
	if w.rows == defaultRows {
		return name
	}
	return fmt.Sprintf("%s, %g million rows", name, float64(w.rows)/1e6)
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
	w := work{dir: dir, fenced: fenced, open: open}
	defer w.stop()
	installed, err := names.install(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d CPUs, %s\n\n%s\n", cpu(), runtime.NumCPU(), runtime.Version(), tableHead)
	left, err := w.jobs(ctx, installed)
	if err != nil {
		return err
	}
	printLeft(left)
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

// jobs runs those that are wanted and returns what peers could not do.
func (w *work) jobs(ctx context.Context, peers []peer) (left []leftOut, err error) {
	type entry struct {
		name string
		make func(context.Context) (job, error)
		// alone says that no peer runs: it is about our own parts, with six times
		// the rows, so that a run lasts seconds.
		alone bool
	}
	var list []entry
	for k := csvToJSONL; k <= jsonlZstdToJSONL; k++ {
		list = append(list, entry{name: k.String(), make: w.file(k)})
	}
	list = append(list,
		entry{name: kafkaToJSONL.String(), make: w.kafkaFiles(kafkaToJSONL, "Kafka → JSONL")},
		entry{name: kafkaProjected.String(), make: w.kafkaFiles(kafkaProjected, "Kafka → JSONL, 4 columns of 7")},
		entry{name: jsonlToKafka.String(), make: w.toKafka},
		entry{name: jsonlCopied.String(), make: w.jsonlPostgres(jsonlCopied, "JSONL → PostgreSQL, COPY")},
		entry{name: jsonlUpserted.String(), make: w.jsonlPostgres(jsonlUpserted, "JSONL → PostgreSQL, upsert by id")},
		entry{name: "kafka-parts", make: w.kafkaFiles(kafkaToJSONL, "Kafka → parts"), alone: true},
		entry{name: kafkaCopied.String(), make: w.kafkaPostgres, alone: true},
	)
	for _, e := range list {
		for _, long := range []bool{false, true} {
			name := e.name
			w.rows, w.peers = *rows, peers
			if e.alone {
				w.rows, w.peers = 6**rows, nil
			}
			if long {
				name += "-long"
				w.rows, w.peers = 10*w.rows, nil
			}
			if !wanted(name) {
				continue
			}
			j, err := e.make(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			results, err := j.run(ctx, *runs)
			if err != nil {
				return nil, err
			}
			for _, r := range results {
				fmt.Println(r)
			}
			left = append(left, j.left...)
		}
	}
	return left, nil
}

// printLeft prints what peers could not do, a line for each reason.
func printLeft(left []leftOut) {
	jobs := map[leftOut][]string{}
	var order []leftOut
	for _, l := range left {
		key := leftOut{peer: l.peer, why: l.why}
		if jobs[key] == nil {
			order = append(order, key)
		}
		jobs[key] = append(jobs[key], l.job)
	}
	if len(order) > 0 {
		fmt.Printf("\n| peer | left out of | why |\n|---|---|---|\n")
	}
	for _, l := range order {
		fmt.Printf("| %s | %s | %s |\n", l.peer, strings.Join(jobs[l], "; "), l.why)
	}
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
