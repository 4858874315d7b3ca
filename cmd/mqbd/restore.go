package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease/kv"
	"github.com/mqbridge/mqb/lease/raft"
	"github.com/spf13/cobra"
)

// restoreCommand makes a node's state of a backup; the node is started afterwards
// like any other.
func restoreCommand(began *bool, errOut io.Writer) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "restore --data-dir DIR FILE",
		Short: "Make the state of a new node of a backup of the embedded coordinator",
		Long: `Make the state of a new node of a backup (mqbctl backup) of the embedded
coordinator: a cluster of one, which others join with empty data directories.

First stop every node that the backup is of, for good: one that went on would be
a second cluster on the same inputs and outputs. Positions that are kept in the
coordinator go back to the time of the backup; those that outputs and other stores
keep do not, and a run that finds itself behind them lifts its epoch and goes on.
Where a run stops as regressed or foreign, mqbctl checkpoint adopt shows why.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.load(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			*began = true
			file := args[0]
			f, err := os.Open(file)
			if err != nil {
				return &api.Error{Message: err.Error(), Code: api.CodeUsage}
			}
			defer f.Close()
			err = raft.Restore(filepath.Join(o.DataDir, "raft"), o.Name, o.advertised(o.Listen), bufio.NewReader(f))
			switch {
			case errors.Is(err, raft.ErrNotEmpty):
				return &api.Error{Message: err.Error(), Code: api.CodeRefused, Hint: "name an empty --data-dir; a member's state is never overwritten"}
			case errors.Is(err, kv.ErrBadSnapshot):
				return &api.Error{Message: file + " is no complete backup: " + err.Error(), Code: api.CodeInvalid}
			case err != nil:
				return err
			}
			fmt.Fprintf(errOut, "mqbd: restored as node %s into %s; start it with the same --name and --data-dir\n", o.Name, o.DataDir)
			return nil
		},
	}
	o.flags(cmd.Flags())
	return cmd
}
