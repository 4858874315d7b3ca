// Mqbd is a node: alone a whole system, with others a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line and returns its exit code (see api.Error).
func execute(args []string, out, errOut io.Writer) int {
	var began bool
	var o options
	root := &cobra.Command{
		Use:   "mqbd",
		Short: "Run a node of an mqb cluster",
		Long: `Run a node of an mqb cluster. Without arguments it is a whole system: one node
with an embedded coordinator, its state under --data-dir. With --join it becomes
part of a cluster.

Each setting is a flag, a variable (--data-dir is MQBD_DATA_DIR) and a key in the
YAML file of --config (data-dir); the first of these that is given wins.

SIGTERM or SIGINT hands everything over and stops, within --drain-timeout; a
second one stops at once, which is safe too and takes the others longer.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.load(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			began = true
			soft, hard, stop := signals()
			defer stop()
			return serve(soft, hard, o, errOut)
		},
	}
	o.flags(root.Flags())
	root.AddCommand(
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(*cobra.Command, []string) { fmt.Fprintln(out, "mqbd", cluster.Version) },
		},
		healthCommand(&began),
		restoreCommand(&began, errOut),
		drainCommand(&began),
	)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.Execute()
	if err == nil {
		return 0
	}
	if !began {
		err = &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	fmt.Fprintln(errOut, "mqbd:", err)
	return api.AsError(err).ExitCode()
}

// healthCommand is for containers, whose images have no other HTTP client.
func healthCommand(began *bool) *cobra.Command {
	var server string
	var access client.Access
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the node on this machine whether it is ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			*began = true
			c, err := client.New(server, access)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
			defer cancel()
			return c.Ready(ctx)
		},
	}
	ownNodeFlags(cmd.Flags(), &server, &access)
	return cmd
}

// ownNodeFlags are those of commands that speak to the node on this machine, whose
// environment says how.
func ownNodeFlags(fs *pflag.FlagSet, server *string, access *client.Access) {
	fs.StringVar(server, "server", client.Local(os.Getenv("MQBD_LISTEN")), "`address` of the node (MQBD_LISTEN)")
	fs.StringVar(&access.CAFile, "tls-ca", os.Getenv("MQBD_TLS_CA"), "`file` of the authority of its certificate (MQBD_TLS_CA)")
	fs.StringVar(&access.CertFile, "tls-cert", os.Getenv("MQBD_TLS_CERT"), "`file` of a certificate to show (MQBD_TLS_CERT)")
	fs.StringVar(&access.KeyFile, "tls-key", os.Getenv("MQBD_TLS_KEY"), "`file` of its key (MQBD_TLS_KEY)")
	fs.StringVar(&access.ServerName, "tls-server-name", os.Getenv("MQBD_TLS_SERVER_NAME"), "`name` in the node's certificate (MQBD_TLS_SERVER_NAME)")
	fs.StringVar(&access.TokenFile, "token-file", os.Getenv("MQBD_TOKEN_FILE"), "`file` of the token (MQBD_TOKEN_FILE)")
}

// errStopped cancels the context of a stop that was asked for.
var errStopped = errors.New("asked to stop")

// signals returns a context that ends with the first signal and one that ends
// with the second.
func signals() (soft, hard context.Context, stop func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	soft, endSoft := context.WithCancelCause(context.Background())
	hard, endHard := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		for _, end := range []context.CancelCauseFunc{endSoft, endHard} {
			select {
			case <-ch:
				end(errStopped)
			case <-done:
				return
			}
		}
	}()
	return soft, hard, func() {
		signal.Stop(ch)
		close(done)
		endSoft(nil)
		endHard(nil)
	}
}
