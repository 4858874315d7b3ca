package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/cobra"
)

// maxFile is more than any file that decodes.
const maxFile = route.MaxFileBytes + 1

// readFile reads a configuration; "-" is standard input.
func (c *cli) readFile(path string) (name string, text []byte, err error) {
	var r io.Reader = c.in
	name = "stdin"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", nil, &api.Error{Message: err.Error(), Code: api.CodeUsage}
		}
		defer f.Close()
		r, name = f, filepath.Base(path)
	}
	text, err = io.ReadAll(io.LimitReader(r, maxFile))
	if err != nil {
		return "", nil, &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	return name, text, nil
}

func (c *cli) applyCommand() *cobra.Command {
	var file, position string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Bring the routes of a file into the cluster",
		Long: `Bring the routes of a file into the cluster. Routes that the file does not
name stay as they are. Variables (${NAME}) are filled in from the environment of
this command.

A changed route goes on at its position. Where the change gives the position
another meaning (another input or output), the route is refused until --position
says what is meant.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && file != "":
				return &api.Error{Message: "two files: " + file + " and " + args[0], Code: api.CodeUsage, Hint: "apply them one after the other"}
			case len(args) > 0:
				file = args[0]
			case file == "":
				return &api.Error{Message: "apply needs a file", Code: api.CodeUsage, Hint: "mqbctl apply FILE, - for standard input"}
			}
			name, text, err := c.readFile(file)
			if err != nil {
				return err
			}
			f := api.File{Name: name, Text: string(text), Env: map[string]string{}}
			// Decoded here first: errors show without a cluster, and the variables
			// that the file names are known, so that nothing else of this
			// environment leaves it.
			overrides := route.OverridesFrom(os.Environ())
			for _, o := range overrides {
				f.Env[o.Name] = o.Value
			}
			decoded, err := route.Decode(name, text, builtin.Registry(), route.Options{Overrides: overrides, LookupEnv: func(key string) (string, bool) {
				v, ok := os.LookupEnv(key)
				if ok {
					f.Env[key] = v
				}
				return v, ok
			}})
			if err != nil {
				return invalid(err)
			}
			for _, w := range decoded.Warnings {
				fmt.Fprintln(c.err, "warning:", w)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			res, err := cl.Apply(cmd.Context(), f, position, dryRun)
			if err != nil {
				return err
			}
			if err := c.print(res, func(w io.Writer) { appliedTable(w, res) }); err != nil {
				return err
			}
			return c.appliedError(res)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the `file`, as FILE is; - for standard input")
	cmd.Flags().StringVar(&position, "position", "", "where a changed route goes on: keep or earliest")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, change nothing")
	return cmd
}

func appliedTable(w io.Writer, res api.ApplyResult) {
	rows := make([][]string, 0, len(res.Routes))
	for _, r := range res.Routes {
		generation := ""
		if r.Generation > 0 {
			generation = fmt.Sprint(r.Generation)
		}
		rows = append(rows, []string{r.Route, r.Outcome, generation, r.Guarantee, r.Position})
	}
	columns(w, "ROUTE OUTCOME GENERATION GUARANTEE POSITION", rows)
	if res.DryRun {
		fmt.Fprintln(w, "\nnothing was changed (dry run)")
	}
}

// appliedError reports routes that were refused; the exit code is that of the first.
func (c *cli) appliedError(res api.ApplyResult) error {
	var first *api.Error
	for _, r := range res.Routes {
		if r.Error == nil {
			continue
		}
		fmt.Fprintln(c.err, "mqbctl:", r.Error)
		if first == nil {
			first = r.Error
		}
	}
	if first == nil {
		return nil
	}
	return reported{first}
}

func (c *cli) deleteCommand() *cobra.Command {
	return c.routeCommand("delete", "Remove a route; what it wrote stays", (*client.Client).Delete)
}

func (c *cli) resumeCommand() *cobra.Command {
	return c.routeCommand("resume", "Let a paused route go on", (*client.Client).Resume)
}

func (c *cli) routeCommand(verb, short string, do func(*client.Client, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " ROUTE",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			if err := do(cl, cmd.Context(), args[0]); err != nil {
				return err
			}
			return c.done(map[string]string{"route": args[0], "done": verb})
		}),
	}
}

// done confirms a change.
func (c *cli) done(v map[string]string) error {
	return c.print(v, func(w io.Writer) {
		what := cmp.Or(v["route"], v["partition"], v["node"])
		fmt.Fprintf(w, "%s: %s done\n", clean(what), v["done"])
	})
}

func (c *cli) drainCommand() *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move everything away from a node and give it nothing new",
		Args:  cobra.ExactArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			node := args[0]
			if err := cl.Drain(cmd.Context(), node); err != nil {
				return err
			}
			if !noWait {
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				defer cancel()
				if err := c.drained(ctx, cl, node, timeout); err != nil {
					return err
				}
			}
			return c.done(map[string]string{"node": node, "done": "drain"})
		}),
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "give up waiting after this long; the order stays")
	return cmd
}

// drainInterval is shorter than a watch's, since scripts wait for it.
const drainInterval = 100 * time.Millisecond

// drained waits until the node holds nothing, and says how far it is.
func (c *cli) drained(ctx context.Context, cl *client.Client, node string, timeout time.Duration) error {
	ticker := time.NewTicker(drainInterval)
	defer ticker.Stop()
	left := -1
	for {
		v, err := cl.Nodes(ctx)
		if err == nil {
			now, busy := 0, false
			for _, n := range v.Nodes {
				if n.Name == node && n.State == api.NodeDraining {
					now, busy = n.Partitions, true
				}
			}
			if !busy {
				return nil
			}
			if now != left && now > 0 {
				fmt.Fprintf(c.err, "%s: %d partitions left\n", clean(node), now)
			}
			left = now
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return &api.Error{
				Message: fmt.Sprintf("node %s is not empty after %s: %d partitions left", node, timeout, max(left, 0)), Code: api.CodeFailed,
				Hint: "mqbctl leases shows what holds them; the order to drain stays until undrain",
			}
		}
	}
}

func (c *cli) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain NODE",
		Short: "Let a drained node take partitions again",
		Args:  cobra.ExactArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			if err := cl.Undrain(cmd.Context(), args[0]); err != nil {
				return err
			}
			return c.done(map[string]string{"node": args[0], "done": "undrain"})
		}),
	}
}

func (c *cli) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Show, set, reset, move or adopt the positions of a route",
		RunE: func(*cobra.Command, []string) error {
			return &api.Error{Message: "checkpoint needs show, set, reset or adopt", Code: api.CodeUsage, Hint: "mqbctl help checkpoint"}
		},
	}
	cmd.AddCommand(c.showCheckpointsCommand(), c.setCommand(), c.resetCommand(), c.adoptCommand())
	return cmd
}

func (c *cli) showCheckpointsCommand() *cobra.Command {
	var dir string
	var copied copyOptions
	cmd := &cobra.Command{
		Use:   "show (ROUTE | SRC DST)",
		Short: "Show the checkpoint records of a route, or of a copy",
		Long: `Show the checkpoint records of a route of the cluster, or with --data-dir those
that mqbctl run keeps there while it does not run. With SRC and DST it is those of
a copy that was cut short or ran with --resume: the same words, and --filter if it
had one, in the same directory.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if len(args) == 2 {
				copied.from, copied.to = args[0], args[1]
				name = copied.id()
				dir = copied.state(cmp.Or(dir, defaultDataDir))
				if !hasState(dir) {
					return &api.Error{
						Message: "no copy of this SRC, DST and --filter has left a position in " + dir, Code: api.CodeNotFound,
						Hint: "a copy that came to its end without --resume leaves none",
					}
				}
			} else if copied.filter != "" {
				return &api.Error{Message: "--filter is part of a copy, with SRC and DST", Code: api.CodeUsage}
			}
			v, err := c.checkpoints(cmd.Context(), dir, name)
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) { checkpointsTable(w, v) })
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "`directory` of a run without a cluster; of a copy .mqb, unless it had another one")
	cmd.Flags().StringVar(&copied.filter, "filter", "", "the `expression` that the copy had")
	return cmd
}

func (c *cli) checkpoints(ctx context.Context, dir, name string) (api.Checkpoints, error) {
	if dir != "" {
		return localCheckpoints(ctx, dir, name)
	}
	cl, err := c.connect()
	if err != nil {
		return api.Checkpoints{}, err
	}
	defer cl.Close()
	v, err := cl.Checkpoints(ctx, name)
	if e := api.AsError(err); err != nil && e.Code == api.CodeUnreachable && hasState(defaultDataDir) {
		e.Hint = fmt.Sprintf("start mqbd, or name another one with --server; for a route of mqbctl run: mqbctl checkpoint show %s --data-dir %s", name, defaultDataDir)
		return v, e
	}
	return v, err
}

func checkpointsTable(w io.Writer, v api.Checkpoints) {
	rows := make([][]string, 0, len(v.Checkpoints))
	for _, r := range v.Checkpoints {
		rows = append(rows, []string{
			r.Partition, r.Leg, r.Position, fmt.Sprint(r.Epoch), fmt.Sprint(r.Generation), r.Series,
			fmt.Sprint(r.Version), fmt.Sprint(r.Intents), r.Store,
		})
	}
	columns(w, "PARTITION LEG POSITION EPOCH GENERATION SERIES VERSION INTENTS STORE", rows)
	for _, r := range v.Checkpoints {
		if r.Error != "" {
			fmt.Fprintf(w, "\n%s: %s\n", clean(r.Partition), clean(r.Error))
		}
	}
}

func (c *cli) resetCommand() *cobra.Command {
	var yes bool
	var partition string
	cmd := &cobra.Command{
		Use:   "reset ROUTE",
		Short: "Send a route back to the start of its input",
		Long: `Send a route back to the start of its input. Running owners are fenced and
start anew. A whole route gets a new series, under which everything is written
again: into a prefix that holds the parts of another series only with
existing_parts: skip, into a table beside the rows that are there.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "route " + args[0]
			if partition != "" {
				what += " partition " + partition
			}
			if !yes && !c.confirm("Read "+what+" again from the start, and write it again?") {
				return &api.Error{Message: "not confirmed, nothing was changed", Code: api.CodeRefused, Hint: "answer yes, or use --yes"}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			v, err := cl.ResetCheckpoints(cmd.Context(), args[0], partition)
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "reset; the positions were:\n")
				rows := make([][]string, 0, len(v.Checkpoints))
				for _, r := range v.Checkpoints {
					rows = append(rows, []string{r.Partition, r.Leg, r.Position, r.Series})
				}
				columns(w, "PARTITION LEG POSITION SERIES", rows)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&partition, "partition", "", "only this `partition`")
	return cmd
}

// confirm asks on standard error, so that standard output stays parseable.
func (c *cli) confirm(question string) bool {
	fmt.Fprintf(c.err, "%s [y/N] ", clean(question))
	line, _ := bufio.NewReader(io.LimitReader(c.in, 100)).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}
