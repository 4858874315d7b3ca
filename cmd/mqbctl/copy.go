package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/cobra"
)

type copyOptions struct {
	runOptions
	from, to    string
	drain       bool
	drainGiven  bool
	wait        time.Duration
	limit       int64
	filter      string
	resume      bool
	noResume    bool
	concurrency int
	batchSize   int
	verbose     int
	printConfig bool
	existing    string
	appendTo    bool
	onError     string
	letters     string
}

func (c *cli) copyCommand() *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "copy SRC DST",
		Short: "Copy from one system to another, without a file of routes",
		Long: `Copy from one system to another, in an embedded node as run does it.

SRC and DST are paths or URIs; the scheme picks the endpoint:

  orders.csv, data/*.jsonl.gz            files; - is standard input or output
                                         (file:-?format=csv to say more)
  out/                                   a directory of immutable part files
  kafka://broker:9092/topic?group_id=g   brokers with commas between them
  postgres://user:pw@host/db?table=t     or sqlx:?url=postgres://…
  static:text, memory:topic, null:

Keys of the query go to the endpoint's configuration ("csv.separator=;" reaches
into a mapping, {…} and […] are JSON); others stay in a database's URL and are
refused elsewhere. Values are percent-decoded, ${NAME} is a variable: passwords
need not stand on the command line. The format follows the name: csv for .csv and
.tsv, else raw, the records as they stand; .gz, .zst and .lz4 are compressed.
Middlewares follow a bar: 'orders.csv|filter?amount > 10|limiter?messages_per_second=5'.

Files and other inputs that have an end are copied to their end; others are
followed until an interrupt, or with --drain up to what is there now. A copy that
ends starts at the beginning (of a Kafka topic: at the offsets of its group_id, if
it has some); one that follows starts where the endpoint's own rule says. One that
was cut short goes on where it was with --resume, and so does a later one of the
same SRC, DST and --filter; without --resume it is refused, unless --no-resume
says that it starts anew; mqbctl checkpoint show SRC DST says where it is. A
file that is there and that no mqb wrote is appended to.

The summary is written to standard output (to standard error where that is DST),
all else to standard error. Exits with 1 if anything was not delivered.`,
		Example: `  mqbctl copy orders.csv orders.jsonl.zst
  mqbctl copy 'kafka://localhost:9092/orders' 'orders-${partition}.jsonl' --drain --filter 'amount > 100'
  mqbctl copy orders.csv 'postgres://app:${PGPASSWORD}@localhost/shop?table=orders&columns=auto&key=id'
  mqbctl copy orders.csv 'postgres://localhost/shop?table=orders&columns=auto' --dlq rejected.jsonl
  mqbctl copy orders.csv out/ --print-config`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.drainGiven = cmd.Flags().Changed("drain")
			if err := o.arguments(args); err != nil {
				return err
			}
			return c.copy(cmd.Context(), o)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "SRC")
	f.StringVar(&o.to, "to", "", "DST")
	f.BoolVar(&o.drain, "drain", false, "end at the end of the input; the default for inputs that have one, --drain=false follows them")
	f.DurationVar(&o.wait, "wait", 0, "end when nothing came for this long")
	f.Int64Var(&o.limit, "limit", 0, "end after `n` records of the input; 0 is all of them")
	f.StringVar(&o.filter, "filter", "", "copy only records for which this `expression` is true")
	f.BoolVar(&o.resume, "resume", false, "go on where the last copy of the same SRC, DST and --filter ended")
	f.BoolVar(&o.noResume, "no-resume", false, "start at the beginning, whatever an earlier copy has left")
	f.StringVar(&o.existing, "existing-parts", "fail", "when DST has files that another copy wrote: `fail`, or skip to go on behind them (a file) or beside them (parts)")
	_ = f.MarkHidden("existing-parts") // the key's own name, of which --append is one value
	f.BoolVar(&o.appendTo, "append", false, "when another copy wrote DST: go on behind what a file holds; leave out the records that a directory of parts holds")
	f.StringVar(&o.letters, "dlq", "", "`DST` of records that cannot be handled, with the reason; without it the first one stops the copy")
	f.StringVar(&o.onError, "on-error", "", "what to do about a record that cannot be handled and has no --dlq: `stop` (the default) or drop")
	f.IntVar(&o.concurrency, "concurrency", 4, "middleware workers; the order is kept")
	f.IntVar(&o.batchSize, "batch-size", 1024, "the most records in a batch")
	f.CountVarP(&o.verbose, "verbose", "v", "log what happens; twice for more")
	f.BoolVar(&o.printConfig, "print-config", false, "print the route as YAML, secrets masked, and copy nothing")
	f.DurationVar(&o.connectTimeout, "connect-timeout", 5*time.Second, "give up when nothing was delivered and a system was out of reach for this long")
	return cmd
}

func usage(format string, args ...any) error {
	return &api.Error{Message: fmt.Sprintf(format, args...), Code: api.CodeUsage, Hint: "mqbctl help copy"}
}

// arguments finds source and destination, which may be flags.
func (o *copyOptions) arguments(args []string) error {
	for _, side := range []*string{&o.from, &o.to} {
		if *side == "" && len(args) > 0 {
			*side, args = args[0], args[1:]
		}
	}
	switch {
	case o.from == "" || o.to == "":
		return usage("copy needs a source and a destination")
	case len(args) > 0:
		return &api.Error{
			Message: "one argument too many: " + route.MaskURL(args[0]), Code: api.CodeUsage,
			Hint: "quote a pattern, so that the shell leaves it as it is: mqbctl copy 'data/*.csv' out/",
		}
	case o.letters == o.to:
		return usage("--dlq and DST are the same")
	case o.resume && o.noResume:
		return usage("--resume and --no-resume")
	case o.limit < 0:
		return usage("--limit must not be negative")
	case o.wait < 0:
		return usage("--wait must not be negative")
	case o.wait > 0 && o.drainGiven && !o.drain:
		return usage("--wait ends a copy, --drain=false does not")
	}
	return nil
}

// id names a copy by what it copies, so that --resume finds it again. Passwords
// are no part of it: one that was changed is no other copy. Paths are those of
// this directory.
func (o *copyOptions) id() string {
	dir, _ := os.Getwd()
	sum := sha256.Sum256([]byte(strings.Join([]string{dir, route.MaskURL(o.from), route.MaskURL(o.to), o.filter}, "\x00")))
	return "copy-" + hex.EncodeToString(sum[:6])
}

// copiesDir holds the state of copies, beside that of run.
const copiesDir = "copies"

// state is the directory of the copy's own state.
func (o *copyOptions) state(root string) string { return filepath.Join(root, copiesDir, o.id()) }

func (c *cli) copy(ctx context.Context, o copyOptions) error {
	registry := builtin.Registry()
	id := o.id()
	spec, err := o.spec(id, registry)
	if err != nil {
		return invalid(err)
	}
	t, _ := registry.Endpoint(spec.Input.Type)
	source := t.Source(spec.Input.Config)
	why := ""
	if !source.DurablePosition {
		why = cmp.Or(source.Why, spec.Input.Type+" has no position to go on at")
	}
	if o.resume && why != "" {
		return &api.Error{Message: "--resume: " + why, Code: api.CodeRefused}
	}
	if !o.drainGiven {
		o.drain = source.EndsItself
	}
	if o.printConfig {
		return c.printConfig(spec, o)
	}

	root := o.dataDir
	info, err := os.Stat(root)
	if err == nil && !info.IsDir() {
		return &api.Error{Message: "--data-dir: " + root + " is not a directory", Code: api.CodeUsage}
	}
	theirs := err == nil && root != defaultDataDir // made by somebody else
	o.dataDir = o.state(root)
	o.follow = !o.drain && o.limit == 0 && o.wait == 0
	switch {
	case o.verbose > 0:
		o.logLevel = [...]string{"info", "debug"}[min(o.verbose, 2)-1]
	case !o.follow:
		o.logLevel = "off" // what stops a copy that ends is its last word
	}
	j := job{name: id, text: []byte(spec.Normalized()), options: o.runOptions, registry: registry, fresh: !o.resume, hidden: "route " + id + " "}
	if why == "" {
		j.resume = "the same command with --resume goes on where this one ended; its state is in " + o.dataDir
	}
	if !o.follow {
		b := newBounds(o.limit, o.wait, o.drain)
		j.registry = registry.WithSources(b.sources)
	}
	if f, ok := spec.Output.Config.(*file.Config); ok {
		if standardOutput(f) {
			j.summary = c.err
		}
		if info, err := os.Stat(f.Path); err == nil && info.IsDir() && f.NameBy != "source_position" {
			return usage("%s is a directory: write %s/ to have part files in it", o.to, o.to)
		}
	}
	began := hasState(o.dataDir)
	switch {
	case o.resume && !began:
		fmt.Fprintln(c.err, "nothing to resume: no copy of the same SRC, DST and --filter was cut short here, so this one starts at the beginning; the state of this copy is in", o.dataDir)
	case began && !o.resume && !o.noResume && why == "" && keeps(spec.Output):
		return &api.Error{
			Message: "an earlier copy of the same SRC, DST and --filter has left its position", Code: api.CodeRefused,
			Hint: "--resume goes on where it ended, --no-resume forgets that and starts at the beginning",
		}
	case o.resume || o.verbose > 0:
		fmt.Fprintln(c.err, "the state of this copy is in", o.dataDir)
	}
	if o.resume {
		// The same source and destination: what else is different was meant to be.
		j.options.position = string(catalog.PositionKeep)
	}
	if spec.Input.Type == "file" && o.filter != "" {
		j.sample = fmt.Sprintf("mqbctl copy '%s' - --limit 1", route.MaskURL(o.from))
	}
	moved, err := c.runJob(ctx, j)
	if e := api.AsError(err); err != nil && o.resume && began && e.Hint == "" {
		e.Hint = j.resume // nothing came of this attempt, and nothing was lost
		err = e
	}
	if !moved && !began || !o.resume && (!moved || err == nil && !o.follow) {
		// Nobody goes on with a copy that is complete, or that never began.
		switch err := os.RemoveAll(o.dataDir); {
		case err != nil:
			fmt.Fprintln(c.err, "warning:", err)
		case os.Remove(filepath.Join(root, copiesDir)) == nil && !theirs:
			_ = os.Remove(root) // where it is empty
		}
	}
	return unnamed(err, id)
}

// keeps reports whether an output still has what an earlier copy wrote there: to
// write that again is nothing that should happen by itself (invariant 9).
func keeps(e route.Endpoint) bool {
	switch c := e.Config.(type) {
	case *file.Config:
		return !standardOutput(c)
	default:
		return e.Type != "null" && e.Type != "memory"
	}
}

func standardOutput(c *file.Config) bool { return c.Path == "-" || c.Path == "/dev/stdout" }

// spec is the route that a copy is.
func (o *copyOptions) spec(id string, types route.Types) (*route.Spec, error) {
	keys := map[string]string{
		"concurrency": strconv.Itoa(o.concurrency), "batch_size": strconv.Itoa(o.batchSize), "existing_parts": o.existing,
	}
	if o.appendTo {
		keys["existing_parts"] = "skip"
	}
	if o.onError != "" {
		keys["on_error"] = o.onError
	}
	return route.Copy{
		Name: id, Source: o.from, Destination: o.to, Filter: o.filter, DeadLetters: o.letters, LookupEnv: os.LookupEnv, Keys: keys,
	}.Spec(types)
}

// unnamed takes the name that a copy made up for its route out of an error: the
// user has seen it nowhere.
func unnamed(err error, id string) error {
	if err == nil {
		return nil
	}
	e := *api.AsError(err)
	r := strings.NewReplacer("route "+id+": ", "", "route "+id+" ", "", id+" ", "")
	e.Message = r.Replace(e.Message)
	e.Details = slices.Clone(e.Details)
	for i, d := range e.Details {
		e.Details[i] = r.Replace(d)
	}
	return &e
}

// printConfig writes the copy as a file for run and apply.
func (c *cli) printConfig(spec *route.Spec, o copyOptions) error {
	text := spec.Masked()
	if o.drain || o.limit > 0 || o.wait > 0 {
		text += "exit_on_empty: true\n"
	}
	if c.format == "json" {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		return c.print(map[string]any{"routes": map[string]any{spec.Name: v}}, nil)
	}
	fmt.Fprintf(c.out, "routes:\n  %s:\n", spec.Name)
	for line := range strings.Lines(text) {
		if _, err := io.WriteString(c.out, "    "+line); err != nil {
			return err
		}
	}
	if strings.Contains(text, route.Mask) {
		fmt.Fprintf(c.err, "secrets are masked: write a variable, ${NAME}, for each %s\n", route.Mask)
	}
	if o.limit > 0 || o.wait > 0 {
		fmt.Fprintln(c.err, "--limit and --wait are of copy alone and not in it")
	}
	return nil
}
