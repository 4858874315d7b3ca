// Mqbctl operates an mqb cluster, and runs routes without one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	// The second signal finds the default handler again and ends the process, but for
	// one that comes with the first: timeout(1) signals a process and then its group.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// sameSignal is how close two signals are that were meant as one.
const sameSignal = 500 * time.Millisecond

// cli is what all commands share.
type cli struct {
	in       io.Reader
	out, err io.Writer
	server   string
	access   client.Access
	format   string
	// began: a command's own code runs, so an error is no longer one of usage.
	began bool
}

// execute runs one command line and returns its exit code (see api.Error).
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	c := &cli{in: in, out: out, err: errOut}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !c.began {
		err = &api.Error{Message: err.Error(), Code: api.CodeUsage, Hint: usageHint(cmd)}
	}
	e := api.AsError(err)
	if !errors.As(err, &reported{}) {
		fmt.Fprintln(errOut, "mqbctl:", e)
	}
	return e.ExitCode()
}

// usageHint says where the words of a command are listed.
func usageHint(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return "mqbctl help lists the commands"
	}
	return fmt.Sprintf("%s (see %s --help)", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())
}

// reported is an error that is on the screen already.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "mqbctl",
		Short: "Operate an mqb cluster, and run routes without one",
		Long: `Operate an mqb cluster, and run routes without one.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 invalid configuration,
4 cluster or system not reachable, 5 refused because it would lose, repeat or
weaken something; the message says what to do.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if err := checkFormat(c.format); err != nil {
				return err
			}
			c.began = true
			return nil
		},
	}
	server := os.Getenv("MQBCTL_SERVER")
	root.PersistentFlags().StringVar(&c.server, "server", server, "`address` of any node, host:port or a URL (MQBCTL_SERVER), default "+client.DefaultServer)
	root.PersistentFlags().StringVar(&c.access.CAFile, "ca", os.Getenv("MQBCTL_CA"), "`file` of the authority of the nodes' certificates (MQBCTL_CA)")
	root.PersistentFlags().StringVar(&c.access.TokenFile, "token-file", os.Getenv("MQBCTL_TOKEN_FILE"), "`file` of the token that nodes want to see (MQBCTL_TOKEN_FILE)")
	root.PersistentFlags().StringVar(&c.access.CertFile, "cert", os.Getenv("MQBCTL_CERT"), "`file` of a client certificate (MQBCTL_CERT)")
	root.PersistentFlags().StringVar(&c.access.KeyFile, "key", os.Getenv("MQBCTL_KEY"), "`file` of its key (MQBCTL_KEY)")
	root.PersistentFlags().StringVarP(&c.format, "output", "o", "table", "output `format`: table, json or yaml")
	root.AddCommand(
		c.applyCommand(), c.deleteCommand(), c.validateCommand(), c.explainCommand(), c.runCommand(), c.copyCommand(), c.schemaCommand(),
		c.routesCommand(), c.leasesCommand(), c.nodesCommand(),
		c.drainCommand(), c.undrainCommand(), c.excludeCommand(), c.includeCommand(), c.moveCommand(), c.pauseCommand(), c.resumeCommand(),
		c.checkpointCommand(), c.eventsCommand(), c.topCommand(), c.doctorCommand(), c.backupCommand(), c.versionCommand(),
	)
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	c.complete(root)
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError names the flags that an unknown one is close to.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	words := &cobra.Command{SuggestionsMinimumDistance: 2} // what is close is cobra's to say, as for commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			words.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := words.SuggestionsFor(unknown.GetSpecifiedName()); len(near) > 0 {
		return fmt.Errorf("%w (did you mean --%s?)", err, strings.Join(near, " or --"))
	}
	return err
}

// connect makes the client. The caller closes it.
func (c *cli) connect() (*client.Client, error) { return client.New(c.server, c.access) }

// connected is the body of a command that talks to a node: it gets a client,
// which is closed after it.
func (c *cli) connected(run func(cmd *cobra.Command, args []string, cl *client.Client) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cl, err := c.connect()
		if err != nil {
			return err
		}
		defer cl.Close()
		return run(cmd, args, cl)
	}
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of mqbctl",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return c.print(api.Version{Version: cluster.Version}, func(w io.Writer) { fmt.Fprintln(w, "mqbctl", cluster.Version) })
		},
	}
}
