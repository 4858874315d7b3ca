package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
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
		return false, fmt.Errorf("--data-dir: %w", err)
	}
	defer engine.Close()
	if err := endDeadLease(ctx, engine); err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		return false, &api.Error{
			Message: fmt.Sprintf("--data-dir %s: %v", dir, err), Code: api.CodeFailed,
			Hint: "is it the directory of a node (mqbd)? run and copy need one of their own",
		}
	}
	l := &localRun{
		cli: c, job: j, log: log, level: level, started: started, follow: j.options.follow, screen: scr,
		env:  connectors.Env{Node: localNode, DataDir: dir, Budget: message.NewBudget(int64(memory))},
		tree: make(chan *actors.Node, 1), expected: map[string][]string{},
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
	// expected names the partitions of each route of the file that runs.
	expected map[string][]string
	tree     chan *actors.Node

	mu       sync.Mutex
	draining bool
	left     []actors.Run // partitions that left since then
}

func (l *localRun) run(ctx context.Context, c lease.Coordinator) (read int64, err error) {
	node, err := cluster.NewNode(cluster.Config{
		Name: localNode, Cluster: localNode, Address: localNode, Version: cluster.Version,
		Coordinator: c, Registry: l.registry, DataDir: l.env.DataDir, Budget: l.env.Budget, Log: l.log,
		NewRunner: func(c actors.Config) (cluster.Runner, error) {
			c.Left = l.gone
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
		sum = l.drain(hard, node, tree)
	}
	<-ended
	return sum.Read, l.finish(sum, end)
}

// drain stops the node in order and returns what the runs had done when each of
// them was over: what they commit on the way out counts.
func (l *localRun) drain(ctx context.Context, node *cluster.Node, tree *actors.Node) summary {
	ctx, cancel := context.WithTimeout(ctx, runDrain)
	defer cancel()
	// The only node of its cluster leaves: that its partitions have no place now is
	// no news.
	if l.options.logLevel == "" {
		l.level.Set(slog.LevelError)
	}
	l.mu.Lock()
	l.draining = true
	l.mu.Unlock()
	if err := node.Stop(ctx); err != nil {
		fmt.Fprintln(l.err, "warning: not everything was committed; it will be read again:", err)
	}
	last := map[[2]string]actors.Run{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range append(tree.Runs(), l.left...) {
		last[[2]string{r.Status.Route, r.Status.Partition}] = r
	}
	return summarize(slices.Collect(maps.Values(last)), time.Since(l.started))
}

// gone is told the last counts of a partition.
func (l *localRun) gone(r actors.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		l.left = append(l.left, r)
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
