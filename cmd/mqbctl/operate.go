package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/spf13/cobra"
)

func notConfirmed() error {
	return &api.Error{Message: "not confirmed, nothing was changed", Code: api.CodeRefused, Hint: "answer yes, or use --yes"}
}

func (c *cli) setCommand() *cobra.Command {
	var yes, dry bool
	cmd := &cobra.Command{
		Use:   "set ROUTE PARTITION VALUE",
		Short: "Send one partition to a position",
		Long: `Send one partition to a position: a number as mqbctl leases shows it (a Kafka
offset, the number of a record in a file), earliest or latest. The running owner
is fenced and goes on there. What lies between is left out, or written again.

Where the output knows its records by the series of the whole route (parts), a
partition is set forward only; checkpoint reset goes back.`,
		Args: cobra.ExactArgs(3),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			req := api.SetRequest{Partition: args[1], Value: args[2], DryRun: true}
			v, err := cl.SetCheckpoint(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if !dry {
				was := ""
				if len(v.Before) > 0 {
					was = v.Before[0].Position
				}
				question := fmt.Sprintf("Send %s partition %s from %s to %s? What lies between is left out, or written again.", args[0], args[1], clean(was), clean(v.Position))
				if !yes && !c.confirm(question) {
					return notConfirmed()
				}
				req.DryRun = false
				if v, err = cl.SetCheckpoint(cmd.Context(), args[0], req); err != nil {
					return err
				}
			}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "position %s; before:\n", clean(v.Position))
				rows := make([][]string, 0, len(v.Before))
				for _, r := range v.Before {
					rows = append(rows, []string{r.Partition, r.Leg, r.Position, fmt.Sprint(r.Epoch)})
				}
				columns(w, "PARTITION LEG POSITION EPOCH", rows)
				dryNote(w, v.DryRun)
			})
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would happen, change nothing")
	return cmd
}

func (c *cli) adoptCommand() *cobra.Command {
	var yes, dry bool
	var store string
	cmd := &cobra.Command{
		Use:   "adopt ROUTE",
		Short: "Take over records that runs refuse, or move them to another store",
		Long: `Take over records that runs refuse as foreign or regressed: those of another
cluster's uid, of a generation or series that a restored coordinator forgot, or
older than what the coordinator remembers. It shows what it would do, and asks,
since only a person knows that no other cluster works with them, and whether
writing something again does harm.

With --store URL, the records of the route are moved to that checkpoint_store,
and the old ones say for ever where they went. Change checkpoint_store in the
route's file too, before it is applied again.`,
		Args: cobra.ExactArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			req := api.AdoptRequest{Store: store, DryRun: true}
			v, err := cl.AdoptCheckpoints(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if !dry && (len(v.Adoptions) > 0 || store != "") {
				if !yes {
					adoptTable(c.err, v)
					if !c.confirm("Do that?") {
						return notConfirmed()
					}
				}
				req.DryRun = false
				if v, err = cl.AdoptCheckpoints(cmd.Context(), args[0], req); err != nil {
					return err
				}
			}
			return c.print(v, func(w io.Writer) {
				if len(v.Adoptions) == 0 {
					fmt.Fprintln(w, "nothing to adopt: no record of the route is refused")
					return
				}
				adoptTable(w, v)
				dryNote(w, v.DryRun)
			})
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would happen, change nothing")
	cmd.Flags().StringVar(&store, "store", "", "move the records to this checkpoint_store `URL`")
	return cmd
}

func adoptTable(w io.Writer, v api.AdoptResult) {
	for _, a := range v.Adoptions {
		fmt.Fprintf(w, "%s, position %s: %s\n  → %s\n", clean(a.Partition), clean(a.Position), clean(a.Finding), clean(a.Action))
	}
}

func dryNote(w io.Writer, dry bool) {
	if dry {
		fmt.Fprintln(w, "\nnothing was changed (dry run)")
	}
}

func (c *cli) backupCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "backup -o FILE",
		Short: "Write the state of the embedded coordinator to a file",
		Long: `Write the state of the embedded coordinator to a file: routes, epochs, and the
positions of the routes that keep them there. mqbd restore makes a node of it.
The routes' passwords are in it as they are, so the file is readable by its owner
alone. - is standard output.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			if file == "-" {
				return cl.Backup(cmd.Context(), c.out)
			}
			n, err := writeWhole(file, func(w io.Writer) error { return cl.Backup(cmd.Context(), w) })
			if err != nil {
				return err
			}
			fmt.Fprintf(c.err, "%s: %s\n", clean(file), size(n))
			return nil
		},
	}
	// It takes the place of the global -o: a backup has one format.
	cmd.Flags().StringVarP(&file, "output", "o", "", "the `file`, - for standard output")
	_ = cmd.MarkFlagRequired("output")
	return cmd
}

// writeWhole writes a file that is either complete under its name, or not there;
// one that is there is replaced.
func writeWhole(path string, write func(io.Writer) error) (n int64, err error) {
	fail := func(err error) (int64, error) {
		return 0, &api.Error{Message: err.Error(), Code: api.CodeFailed}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer func() { _ = f.Close() }()
	if err := write(f); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fail(err)
	}
	return info.Size(), nil
}
