package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/raft"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/cobra"
)

const (
	// runHeadroom is what the Go heap may take beside the messages that --memory
	// bounds; the whole process may take 64 MiB beside them.
	runHeadroom = 36 << 20
	// runDrain bounds what an interrupt waits for.
	runDrain = 10 * time.Second
	// Pace of the progress: a line that is written over, or lines of a log.
	progressTerminal, progressLines = 200 * time.Millisecond, 5 * time.Second
)

type runOptions struct {
	dataDir  string
	follow   bool
	memory   string
	position string
	logLevel string
}

func (c *cli) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Run the routes of a file here, without a cluster",
		Long: `Run the routes of a file here, in an embedded node that listens on nothing. It
ends when every input is at its end; --follow goes on. Positions are kept under
--data-dir: the same command again goes on where this one ended.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0], o) },
	}
	cmd.Flags().StringVar(&o.dataDir, "data-dir", ".mqb", "`directory` of positions and state")
	cmd.Flags().BoolVar(&o.follow, "follow", false, "go on at the end of the input")
	cmd.Flags().StringVar(&o.memory, "memory", route.Bytes(message.DefaultBudget).String(), "bound on the `bytes` of messages in this process")
	cmd.Flags().StringVar(&o.position, "position", "", "where a changed route goes on: keep or earliest")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "", "debug, info, warn or error; warn with --follow, else nothing but the summary")
	return cmd
}

func (c *cli) run(ctx context.Context, path string, o runOptions) error {
	started := time.Now()
	log, err := c.logger(o)
	if err != nil {
		return err
	}
	memory, err := route.ParseBytes(o.memory)
	if err != nil {
		return &api.Error{Message: "--memory: " + err.Error(), Code: api.CodeUsage}
	}
	slog.SetDefault(log)
	debug.SetMemoryLimit(int64(memory) + runHeadroom)
	name, text, err := c.readFile(path)
	if err != nil {
		return err
	}
	registry := builtin.Registry()
	list, warnings, err := catalog.Explain(registry, text, name, os.LookupEnv, route.OverridesFrom(os.Environ()))
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(c.err, "warning:", w)
	}

	engine, err := raft.Open(raft.Options{
		Cluster: localNode, Node: localNode, DataDir: filepath.Join(o.dataDir, "raft"),
		Advertise: localNode, Log: log,
	})
	if err != nil {
		return err
	}
	defer engine.Close()
	l := &localRun{
		cli: c, log: log, started: started, follow: o.follow,
		env:  connectors.Env{Node: localNode, DataDir: o.dataDir, Budget: message.NewBudget(int64(memory))},
		tree: make(chan *actors.Node, 1), expected: map[string]int{},
	}
	if err := l.apply(ctx, engine, text, name, list, o); err != nil {
		return err
	}
	if err := l.count(ctx, list); err != nil {
		return err
	}
	return l.run(ctx, engine)
}

// logger is silent for a run that ends by itself: its summary says what stopped it.
func (c *cli) logger(o runOptions) (*slog.Logger, error) {
	level := slog.LevelWarn
	if o.logLevel != "" {
		if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
			return nil, &api.Error{Message: "--log-level: " + err.Error(), Code: api.CodeUsage}
		}
	} else if !o.follow {
		return slog.New(slog.DiscardHandler), nil
	}
	return slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: level})), nil
}

// localRun is one life of the embedded node.
type localRun struct {
	*cli
	log     *slog.Logger
	env     connectors.Env
	started time.Time
	follow  bool
	// expected counts the partitions of each route of the file that runs.
	expected map[string]int
	tree     chan *actors.Node
}

// apply brings the file into the embedded coordinator before anything runs.
// Routes of other files that ran in the same directory stay there, paused.
func (l *localRun) apply(ctx context.Context, c lease.Coordinator, text []byte, name string, list []catalog.Explanation, o runOptions) error {
	keys := lease.NewKeys(localNode)
	cat := catalog.New(catalog.Config{
		Coordinator: c, Keys: keys, Cluster: localNode, Registry: builtin.Registry(),
		OpenStore: func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
			return actors.OpenStore(ctx, builtin.Registry(), spec, l.env, c, keys)
		},
	})
	results, err := cat.Apply(ctx, text, catalog.ApplyOptions{
		File: name, LookupEnv: os.LookupEnv, Overrides: route.OverridesFrom(os.Environ()), Position: catalog.Position(o.position), ExitOnEmpty: !o.follow,
	})
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	here := map[string]bool{}
	for _, e := range list {
		here[e.Spec.Name] = true
	}
	all, err := cat.List(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		switch {
		case here[e.Name] && e.Route.Paused:
			err = cat.Resume(ctx, e.Name)
		case !here[e.Name] && !e.Route.Paused:
			err = cat.Pause(ctx, e.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// count asks each input what there is, so that the end is known when it comes.
// A system that cannot be reached gets the time that the route gives it.
func (l *localRun) count(ctx context.Context, list []catalog.Explanation) error {
	for _, e := range list {
		if !e.Spec.Enabled {
			continue
		}
		source, err := builtin.Registry().Source(e.Spec, l.env)
		if err != nil {
			return err
		}
		n, err := backoff.Retry(ctx, func() (int, error) {
			p, err := source.Partitions(ctx)
			if err != nil && connectors.Classify(err) != connectors.ClassConnection {
				err = backoff.Permanent(err)
			}
			return len(p), err
		}, backoff.WithMaxElapsedTime(e.Spec.GiveUpAfter), backoff.WithNotify(func(err error, d time.Duration) {
			l.log.Warn("input not reachable, trying again", "route", e.Spec.Name, "error", err, "in", d.Round(time.Millisecond))
		}))
		_ = source.Close()
		if err != nil {
			return fmt.Errorf("route %s: input: %w", e.Spec.Name, err)
		}
		if n == 0 {
			fmt.Fprintf(l.err, "warning: route %s: the input has no partitions\n", e.Spec.Name)
		}
		l.expected[e.Spec.Name] = n
	}
	return nil
}

func (l *localRun) run(ctx context.Context, c lease.Coordinator) error {
	node, err := cluster.NewNode(cluster.Config{
		Name: localNode, Cluster: localNode, Address: localNode, Version: cluster.Version,
		Coordinator: c, Registry: builtin.Registry(), DataDir: l.env.DataDir, Budget: l.env.Budget, Log: l.log,
		NewRunner: func(c actors.Config) (cluster.Runner, error) {
			n, err := actors.New(c)
			if err == nil {
				l.tree <- n
			}
			return n, err
		},
	})
	if err != nil {
		return err
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- node.Run(hard) }()
	var tree *actors.Node
	select {
	case tree = <-l.tree:
	case err := <-ended:
		return err
	}

	sum, complete := l.watch(ctx, tree)
	if complete {
		// Every run has committed and ended: there is nothing to hand over.
		cancel()
	} else {
		drain, stop := context.WithTimeout(hard, runDrain)
		defer stop()
		if err := node.Stop(drain); err != nil {
			l.log.Warn("not everything was committed; it will be read again", "error", err)
		}
	}
	<-ended
	return l.finish(sum, complete)
}

// watch shows progress until every partition ended or stopped with an error
// (complete), or ctx ends.
func (l *localRun) watch(ctx context.Context, tree *actors.Node) (s summary, complete bool) {
	screen := isTerminal(l.err)
	pace := progressLines
	if screen {
		pace = progressTerminal
	}
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	defer func() {
		if screen {
			fmt.Fprint(l.err, "\r\x1b[K")
		}
	}()
	for {
		changed := tree.Changed()
		s = summarize(tree.Runs(), time.Since(l.started))
		if !l.follow && s.complete(l.expected) {
			return s, true
		}
		select {
		case <-changed:
		case <-ticker.C:
			if screen {
				fmt.Fprintf(l.err, "\r\x1b[K%s", s.line())
			} else {
				fmt.Fprintln(l.err, s.line())
			}
		case <-ctx.Done():
			return s, false
		}
	}
}

// summary is what a run did so far.
type summary struct {
	Records int64 `json:"records"`
	// Read counts what came in; the rest of Counters says what became of it.
	Read     int64          `json:"read"`
	Counters lease.Counters `json:"counters"`
	Bytes    int64          `json:"bytes"`
	Seconds  float64        `json:"seconds"`
	Rate     float64        `json:"records_per_second"`
	// FenceSeconds is the time that writers waited for claims and commits, summed
	// over partitions like RunSeconds, the time they ran.
	FenceSeconds float64  `json:"fence_seconds"`
	RunSeconds   float64  `json:"run_seconds"`
	Partitions   int      `json:"partitions"`
	Done         int      `json:"done"`
	Errors       []string `json:"errors,omitempty"`

	ended   map[string]int // by route: done or stopped with an error
	stopped []api.Lease    // those with an error
	note    string         // the last trouble of a partition that tries again
}

func summarize(runs []actors.Run, elapsed time.Duration) summary {
	s := summary{Seconds: elapsed.Seconds(), Partitions: len(runs), ended: map[string]int{}}
	slices.SortFunc(runs, func(a, b actors.Run) int {
		return cmp.Or(cmp.Compare(a.Status.Route, b.Status.Route), cmp.Compare(a.Status.Partition, b.Status.Partition))
	})
	for _, r := range runs {
		st, n := r.Status, r.Status.Counters
		s.Records += n.Written
		s.Read += n.Read
		s.Counters = addCounters(s.Counters, n)
		s.Bytes += r.Bytes
		s.FenceSeconds += r.FenceWait.Seconds()
		s.RunSeconds += r.RunTime.Seconds()
		trouble := fmt.Sprintf("route %s partition %s: %s", st.Route, st.Partition, st.Error)
		switch {
		case st.State == lease.StateDone:
			s.Done++
			s.ended[st.Route]++
		case st.State == lease.StateQuarantined:
			s.Errors = append(s.Errors, trouble)
			s.stopped = append(s.stopped, api.Lease{Route: st.Route, Partition: st.Partition, State: "stopped", Reason: st.Error})
			s.ended[st.Route]++
		case st.Error != "":
			s.note = trouble
		}
	}
	if s.Seconds > 0 {
		s.Rate = float64(s.Records) / s.Seconds
	}
	return s
}

func addCounters(a, b lease.Counters) lease.Counters {
	return lease.Counters{
		Read: a.Read + b.Read, Written: a.Written + b.Written, Covered: a.Covered + b.Covered,
		Filtered: a.Filtered + b.Filtered, Deduplicated: a.Deduplicated + b.Deduplicated,
		DeadLettered: a.DeadLettered + b.DeadLettered, Dropped: a.Dropped + b.Dropped, Returned: a.Returned + b.Returned,
	}
}

// complete reports whether each route has ended all its partitions.
func (s summary) complete(expected map[string]int) bool {
	for name, n := range expected {
		if s.ended[name] < n {
			return false
		}
	}
	return true
}

func (s summary) line() string {
	line := fmt.Sprintf("%d records, %s, %.0f/s, %d of %d partitions done", s.Records, size(s.Bytes), s.Rate, s.Done, s.Partitions)
	if trouble := append(slices.Clone(s.Errors), s.note); trouble[0] != "" {
		line += "; " + clean(trouble[0])
	}
	return line
}

// finish prints the summary and turns stopped partitions into the exit code.
func (l *localRun) finish(s summary, complete bool) error {
	err := l.print(s, func(w io.Writer) {
		fmt.Fprintf(w, "%d records, %s in %.2f s: %.0f records/s\n", s.Records, size(s.Bytes), s.Seconds, s.Rate)
		if extra := s.others(); extra != "" {
			fmt.Fprintf(w, "of %d read: %s\n", s.Read, extra)
		}
	})
	if err != nil {
		return err
	}
	if len(s.Errors) > 0 {
		return &api.Error{
			Message: fmt.Sprintf("%d of %d partitions stopped", len(s.Errors), s.Partitions), Code: api.CodeFailed, Details: s.stops(),
		}
	}
	if !complete && !l.follow {
		msg := "interrupted"
		if s.note != "" {
			msg += "; " + s.note
		}
		return &api.Error{Message: msg, Code: api.CodeFailed, Hint: "the same command goes on where this one ended"}
	}
	return nil
}

// stops lists errors once each, with who has them.
func (s summary) stops() []string {
	var b bytes.Buffer
	reasons(&b, s.stopped, time.Time{})
	return strings.Split(strings.Trim(b.String(), "\n"), "\n")
}

// others lists what was not written, so that the counts add up (invariant 4).
func (s summary) others() string {
	n := map[string]int64{
		"already covered": s.Counters.Covered, "filtered": s.Counters.Filtered, "deduplicated": s.Counters.Deduplicated,
		"dead-lettered": s.Counters.DeadLettered, "dropped": s.Counters.Dropped, "returned": s.Counters.Returned,
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		if n[k] > 0 {
			out = append(out, fmt.Sprintf("%d %s", n[k], k))
		}
	}
	return strings.Join(out, ", ")
}
