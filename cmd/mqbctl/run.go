package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/raft"
	"github.com/mqbridge/mqb/logging"
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
	// defaultDataDir is where positions are, in the directory of the command.
	defaultDataDir = ".mqb"
)

// runOptions are the flags that run and copy share.
type runOptions struct {
	dataDir        string
	follow         bool
	memory         string
	position       string
	logLevel       string
	connectTimeout time.Duration
}

func (o *runOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dataDir, "data-dir", defaultDataDir, "`directory` of positions and state")
	cmd.Flags().StringVar(&o.memory, "memory", route.Bytes(message.DefaultBudget).String(), "bound on the `bytes` of messages in this process")
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
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.follow, "follow", false, "go on at the end of the input")
	cmd.Flags().StringVar(&o.position, "position", "", "where a changed route goes on: keep or earliest")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "", "debug, info, warn or error; warn with --follow, else nothing but the summary")
	cmd.Flags().DurationVar(&o.connectTimeout, "connect-timeout", 0, "give up when nothing was delivered and a system was out of reach for this long; default: give_up_after of the route, never with --follow")
	return cmd
}

func (c *cli) run(ctx context.Context, path string, o runOptions) error {
	name, text, err := c.readFile(path)
	if err != nil {
		return err
	}
	j := job{
		name: name, text: text, options: o, registry: builtin.Registry(),
		resume: "the same command goes on where this one ended",
		env:    os.LookupEnv, overrides: route.OverridesFrom(os.Environ()),
	}
	if o.logLevel == "" && !o.follow {
		// Silent: the summary says what stopped a run that ends by itself.
		j.options.logLevel = "off"
	}
	_, err = c.runJob(ctx, j)
	return err
}

// job is what an embedded node runs until it ends.
type job struct {
	name      string // of the file, for messages
	text      []byte
	options   runOptions
	registry  *connectors.Registry
	env       route.LookupEnv
	overrides []route.Override
	// fresh forgets the positions of the routes.
	fresh bool
	// summary is where the result goes; nil is standard output.
	summary io.Writer
	// resume is the hint of a job that did not come to its end.
	resume string
	// hidden is what progress leaves out: a name that nobody gave.
	hidden string
	// sample is a command that shows a record of the input, "" for none.
	sample string
}

// runJob runs a job to its end. moved is false when nothing was read.
func (c *cli) runJob(ctx context.Context, j job) (moved bool, err error) {
	started := time.Now()
	scr := newScreen(c.err)
	inner := *c
	c = &inner
	c.err = scr
	if j.summary != nil {
		c.out = j.summary
	}
	log, level, err := c.logger(j.options.logLevel)
	if err != nil {
		return false, err
	}
	memory, err := route.ParseBytes(j.options.memory)
	if err != nil {
		return false, &api.Error{Message: "--memory: " + err.Error(), Code: api.CodeUsage}
	}
	slog.SetDefault(log)
	debug.SetMemoryLimit(int64(memory) + runHeadroom)
	list, warnings, err := catalog.Explain(j.registry, j.text, j.name, j.env, j.overrides)
	if err != nil {
		return false, err
	}
	for _, w := range warnings {
		fmt.Fprintln(c.err, "warning:", w)
	}

	dir := j.options.dataDir
	engine, err := raft.Open(raft.Options{
		Cluster: localNode, Node: localNode, DataDir: filepath.Join(dir, "raft"),
		Advertise: localNode, Log: log,
	})
	if err != nil {
		return false, err
	}
	defer engine.Close()
	if err := endDeadLease(ctx, engine); err != nil {
		return false, err
	}
	l := &localRun{
		cli: c, job: j, log: log, level: level, started: started, follow: j.options.follow, screen: scr,
		env:  connectors.Env{Node: localNode, DataDir: dir, Budget: message.NewBudget(int64(memory))},
		tree: make(chan *actors.Node, 1), expected: map[string]int{},
	}
	if err := l.apply(ctx, engine, list); err != nil {
		return false, err
	}
	if err := l.reach(ctx, list); err != nil {
		return false, err
	}
	read, err := l.run(ctx, engine)
	return read > 0, err
}

// logger writes records of level and above to standard error, repeated ones now
// and then only.
func (c *cli) logger(name string) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	if name == "off" {
		return slog.New(slog.DiscardHandler), level, nil
	}
	if name != "" {
		if err := level.UnmarshalText([]byte(name)); err != nil {
			return nil, nil, &api.Error{Message: "--log-level: " + err.Error(), Code: api.CodeUsage}
		}
	}
	h := slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: level})
	return slog.New(logging.Sample(h, logging.Interval, nil)), level, nil
}

// localRun is one life of the embedded node.
type localRun struct {
	*cli
	job
	log     *slog.Logger
	level   *slog.LevelVar // of log
	env     connectors.Env
	started time.Time
	follow  bool
	screen  *screen
	// expected counts the partitions of each route of the file that runs.
	expected map[string]int
	tree     chan *actors.Node
}

// apply brings the file into the embedded coordinator before anything runs.
// Routes of other files that ran in the same directory stay there, paused.
func (l *localRun) apply(ctx context.Context, c lease.Coordinator, list []catalog.Explanation) error {
	cat := localCatalog(c, l.registry, l.env)
	if l.fresh {
		for _, e := range list {
			if err := cat.Delete(ctx, e.Spec.Name); err != nil && !errors.Is(err, catalog.ErrNotFound) {
				return err
			}
		}
	}
	if err := l.applyFile(ctx, cat); err != nil {
		return err
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

// applyFile applies the file. A route that was changed so that its position has no
// meaning any more is refused, but where nothing was ever committed there is no
// position to lose: the first try of a new user has failed, and its file was mended.
func (l *localRun) applyFile(ctx context.Context, cat *catalog.Catalog) error {
	apply := func() ([]catalog.Result, error) {
		return cat.Apply(ctx, l.text, catalog.ApplyOptions{
			File: l.name, LookupEnv: l.job.env, Overrides: l.overrides, Position: catalog.Position(l.options.position), ExitOnEmpty: !l.follow,
		})
	}
	results, err := apply()
	anew := false
	for _, r := range results {
		var refused *catalog.Refusal
		if !errors.As(r.Err, &refused) {
			continue
		}
		if list, _, err := cat.Checkpoints(ctx, r.Route); err == nil && !slices.ContainsFunc(list, committed) {
			if err := cat.Delete(ctx, r.Route); err != nil {
				return err
			}
			anew = true
			continue
		}
		refused.Hint = strings.Replace(refused.Hint, "apply again with --position", "mqbctl run "+l.name+" --position", 1)
	}
	if err == nil && anew {
		results, err = apply()
	}
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// committed: a run got further than to claim the record.
func committed(c catalog.Checkpoint) bool {
	return c.Err != nil || c.Record.Version > 0 || len(c.Record.Intents) > 0
}

// reach asks each input what there is, so that the end is known when it comes,
// and each output whether it is there. A system out of reach gets the time that
// --connect-timeout or the route gives it; what else is wrong with an output is
// for the run to say.
func (l *localRun) reach(ctx context.Context, list []catalog.Explanation) error {
	for _, e := range list {
		if !e.Spec.Enabled {
			continue
		}
		within := cmp.Or(l.options.connectTimeout, e.Spec.GiveUpAfter)
		source, err := l.registry.Source(e.Spec, l.env)
		if err != nil {
			return err
		}
		n, err := retry(ctx, l.log.With("route", e.Spec.Name, "side", "input"), within, func(ctx context.Context) (int, error) {
			p, err := source.Partitions(ctx)
			return len(p), err
		})
		_ = source.Close()
		if err != nil {
			return fmt.Errorf("route %s: input: %w", e.Spec.Name, err)
		}
		if n == 0 {
			fmt.Fprintf(l.err, "warning: route %s: the input has no partitions\n", e.Spec.Name)
		}
		if f, ok := e.Spec.Output.Config.(*file.Config); ok && n > 1 && f.OnePartition() {
			return &api.Error{
				Message: fmt.Sprintf("route %s: %s can be appended to by one partition, and the input has %d: nothing was copied", e.Spec.Name, f.Path, n),
				Code:    api.CodeInvalid,
				Hint:    "a file for each, with ${partition} in its name (in quotes), or a directory of parts (a DST that ends in /, in a route name_by: source_position)",
			}
		}
		l.expected[e.Spec.Name] = n
		sink, err := l.registry.Sink(e.Spec, l.env)
		if err != nil {
			return err
		}
		_, err = retry(ctx, l.log.With("route", e.Spec.Name, "side", "output"), within, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, sink.Check(ctx)
		})
		_ = sink.Close()
		if err != nil && unreachable(err) {
			return fmt.Errorf("route %s: output: %w", e.Spec.Name, err)
		}
	}
	return nil
}

func unreachable(err error) bool {
	return connectors.Classify(err) == connectors.ClassConnection || errors.Is(err, context.DeadlineExceeded)
}

// retry asks a system again while it is out of reach, for as long as within. The
// error is the last that says why, and not the end of a wait for it.
func retry[T any](ctx context.Context, log *slog.Logger, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	deadline, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	v, err := backoff.Retry(deadline, func() (T, error) {
		v, err := ask(deadline)
		if err != nil {
			if !unreachable(err) {
				return v, backoff.Permanent(err)
			}
			if last == nil || deadline.Err() == nil {
				last = err
			}
		}
		return v, err
	}, backoff.WithMaxElapsedTime(within), backoff.WithNotify(func(err error, d time.Duration) {
		log.Warn("not reachable, trying again", "error", err, "in", d.Round(time.Millisecond))
	}))
	if err != nil && ctx.Err() == nil && unreachable(err) && last != nil {
		err = connectors.Connection(fmt.Errorf("not reachable within %s: %w", within, last))
	}
	return v, err
}

func (l *localRun) run(ctx context.Context, c lease.Coordinator) (read int64, err error) {
	node, err := cluster.NewNode(cluster.Config{
		Name: localNode, Cluster: localNode, Address: localNode, Version: cluster.Version,
		Coordinator: c, Registry: l.registry, DataDir: l.env.DataDir, Budget: l.env.Budget, Log: l.log,
		NewRunner: func(c actors.Config) (cluster.Runner, error) {
			n, err := actors.New(c)
			if err == nil {
				l.tree <- n
			}
			return n, err
		},
	})
	if err != nil {
		return 0, err
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- node.Run(hard) }()
	var tree *actors.Node
	select {
	case tree = <-l.tree:
	case err := <-ended:
		return 0, err
	}

	sum, end := l.watch(ctx, tree)
	if end == complete {
		// Every run has committed and ended: there is nothing to hand over.
		cancel()
	} else {
		sum = l.drain(hard, node, tree, sum)
	}
	<-ended
	return sum.Read, l.finish(sum, end)
}

// drain stops the node in order and returns what the runs had done by then. They
// go one by one, and their counts with them.
func (l *localRun) drain(ctx context.Context, node *cluster.Node, tree *actors.Node, sum summary) summary {
	ctx, cancel := context.WithTimeout(ctx, runDrain)
	defer cancel()
	// The only node of its cluster leaves: that its partitions have no place now is
	// no news.
	if l.options.logLevel == "" {
		l.level.Set(slog.LevelError)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- node.Stop(ctx) }()
	for {
		changed := tree.Changed()
		if s := summarize(tree.Runs(), time.Since(l.started)); s.Read >= sum.Read {
			sum = s
		}
		select {
		case <-changed:
		case err := <-stopped:
			if err != nil {
				fmt.Fprintln(l.err, "warning: not everything was committed; it will be read again:", err)
			}
			return sum
		}
	}
}

// ending is how a run ended.
type ending int

const (
	complete    ending = iota // every partition ended or stopped with an error
	interrupted               // by the user
	outOfReach                // nothing was delivered within --connect-timeout
)

// watch shows progress until the run ends.
func (l *localRun) watch(ctx context.Context, tree *actors.Node) (s summary, end ending) {
	p := newProgress(l.screen, l.started)
	p.hidden = l.hidden
	ticker := time.NewTicker(progressTerminal)
	defer ticker.Stop()
	defer l.screen.show("")
	began := time.Now()
	for {
		changed := tree.Changed()
		runs := tree.Runs()
		s = summarize(runs, time.Since(l.started))
		if !l.follow && s.complete(l.expected) {
			return s, complete
		}
		p.update(s, runs, time.Now())
		if within := l.options.connectTimeout; within > 0 && s.note != "" && s.Read == 0 && !s.running && time.Since(began) >= within {
			return s, outOfReach
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return s, interrupted
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
	running bool           // a partition runs, or is done
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
		reason := strings.Replace(st.Error, "route "+st.Route+": ", "", 1) // it is named in front
		trouble := fmt.Sprintf("route %s partition %s: %s", st.Route, st.Partition, reason)
		s.running = s.running || st.State == lease.StateRunning || st.State == lease.StateDone
		switch {
		case st.State == lease.StateDone:
			s.Done++
			s.ended[st.Route]++
		case st.State == lease.StateQuarantined:
			s.Errors = append(s.Errors, trouble)
			s.stopped = append(s.stopped, api.Lease{Route: st.Route, Partition: st.Partition, State: "stopped", Reason: reason})
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
	line := fmt.Sprintf("%d records, %s, %.0f/s", s.Records, size(s.Bytes), s.Rate)
	if s.Partitions > 1 {
		line += fmt.Sprintf(", %d of %d partitions done", s.Done, s.Partitions)
	}
	return line
}

// trouble is the first error of a partition that stopped or tries again.
func (s summary) trouble() string {
	switch {
	case len(s.Errors) > 0:
		return s.Errors[0]
	case s.note != "":
		return "trying again: " + s.note
	}
	return ""
}

// finish prints the summary and turns stopped partitions into the exit code.
func (l *localRun) finish(s summary, end ending) error {
	err := l.print(s, func(w io.Writer) {
		if s.Read == 0 && len(s.Errors) > 0 {
			return // it never began: no count says more than the error
		}
		fmt.Fprintf(w, "%d records, %s in %.2f s: %.0f records/s\n", s.Records, size(s.Bytes), s.Seconds, s.Rate)
		if extra := s.others(); extra != "" {
			fmt.Fprintf(w, "of %d read: %s\n", s.Read, extra)
		}
	})
	if s.Read > 0 && s.Counters.Filtered == s.Read {
		note := "note: no record passed the filter; a name that a record does not have is null there"
		if l.sample != "" {
			note += "\nhint: see the names with " + l.sample
		}
		fmt.Fprintln(l.err, note)
	}
	switch {
	case err != nil:
		return err
	case len(s.Errors) > 0:
		e := &api.Error{
			Message: fmt.Sprintf("%d of %d partitions stopped", len(s.Errors), s.Partitions), Code: api.CodeFailed, Details: s.stops(),
		}
		if s.Read > 0 {
			e.Hint = l.resume
		}
		return e
	case end == outOfReach:
		return &api.Error{Message: fmt.Sprintf("nothing was delivered within %s: %s", l.options.connectTimeout, s.note), Code: api.CodeUnreachable}
	case end == interrupted && !l.follow:
		msg := "interrupted"
		if s.note != "" {
			msg += "; " + s.note
		}
		return &api.Error{Message: msg, Code: api.CodeFailed, Hint: l.resume}
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
		"dead-lettered": s.Counters.DeadLettered, "dropped": s.Counters.Dropped, "in flight when a run stopped": s.Counters.Returned,
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		if n[k] > 0 {
			out = append(out, fmt.Sprintf("%d %s", n[k], k))
		}
	}
	return strings.Join(out, ", ")
}
