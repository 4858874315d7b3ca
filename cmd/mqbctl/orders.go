package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/lease"
	"github.com/spf13/cobra"
)

func (c *cli) excludeCommand() *cobra.Command {
	var route string
	cmd := &cobra.Command{
		Use:   "exclude NODE",
		Short: "Give a node no more partitions; what it has stays",
		Long: `Give a node no more partitions, of all routes or of one. What it has stays with
it, and balance neither gives to it nor takes from it. Files on its own disk are
its own all the same. To empty a node, use drain.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.nodeOrder(cmd, "exclude", args[0], func(ctx context.Context, cl *client.Client) error {
				return cl.Exclude(ctx, args[0], route)
			})
		},
	}
	cmd.Flags().StringVar(&route, "route", "", "only of this `route`")
	return cmd
}

func (c *cli) includeCommand() *cobra.Command {
	var route string
	cmd := &cobra.Command{
		Use:   "include NODE",
		Short: "Let an excluded node take partitions again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.nodeOrder(cmd, "include", args[0], func(ctx context.Context, cl *client.Client) error {
				return cl.Include(ctx, args[0], route)
			})
		},
	}
	cmd.Flags().StringVar(&route, "route", "", "only of this `route`")
	return cmd
}

func (c *cli) nodeOrder(cmd *cobra.Command, verb, node string, do func(context.Context, *client.Client) error) error {
	cl, err := c.connect()
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := do(cmd.Context(), cl); err != nil {
		return err
	}
	return c.done(map[string]string{"node": node, "done": verb})
}

// moveTimeout is longer than a drain of a partition and its take-over may take.
const moveTimeout = 2 * time.Minute

func (c *cli) moveCommand() *cobra.Command {
	var to string
	var release, noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "move ROUTE/PARTITION (--to NODE | --release)",
		Short: "Move a partition to a node and keep it there",
		Long: `Move a partition to a node and keep it there, whatever the balance, until
--release or until the node has been gone for some minutes. While the node is
away or drains, the partition is where the scheduler puts it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (to == "") != release {
				return &api.Error{Message: "a move needs either --to NODE or --release", Code: api.CodeUsage}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			route, partition, err := locate(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			if release {
				if err := cl.Release(cmd.Context(), route, partition); err != nil {
					return err
				}
				return c.done(map[string]string{"partition": args[0], "done": "release"})
			}
			if err := cl.Move(cmd.Context(), route, partition, to); err != nil {
				return err
			}
			if !noWait {
				err := c.until(cmd.Context(), timeout, func(ctx context.Context) error { return movedTo(ctx, cl, route, partition, to) })
				if err != nil {
					return err
				}
			}
			return c.done(map[string]string{"partition": args[0], "node": to, "done": "move"})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the `node`")
	cmd.Flags().BoolVar(&release, "release", false, "take the order back")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	cmd.Flags().DurationVar(&timeout, "timeout", moveTimeout, "give up waiting after this long; the order stays")
	return cmd
}

// locate finds what ROUTE/PARTITION names: either may have slashes of its own.
func locate(ctx context.Context, cl *client.Client, what string) (route, partition string, err error) {
	v, err := cl.Leases(ctx, "")
	if err != nil {
		return "", "", err
	}
	found := 0
	for _, l := range v.Leases {
		if l.Route+"/"+l.Partition == what {
			route, partition = l.Route, l.Partition
			found++
		}
	}
	switch found {
	case 0:
		return "", "", &api.Error{Message: "no partition " + clean(what), Code: api.CodeNotFound, Hint: "mqbctl leases lists them; write ROUTE/PARTITION"}
	case 1:
		return route, partition, nil
	}
	return "", "", &api.Error{Message: clean(what) + " names several partitions", Code: api.CodeUsage}
}

// movedTo says what a move waits for; nil when it is over.
func movedTo(ctx context.Context, cl *client.Client, route, partition, to string) error {
	v, err := cl.Leases(ctx, route)
	if err != nil {
		return err
	}
	for _, l := range v.Leases {
		if l.Partition != partition {
			continue
		}
		if l.Owner == to && (l.State == lease.StateRunning || l.State == lease.StateDone) {
			return nil
		}
		if l.State == lease.StatePaused {
			return nil // it goes there when the route goes on
		}
		return fmt.Errorf("%s/%s is %s with %s: %s", clean(route), clean(partition), l.State, clean(l.Owner), clean(l.Reason))
	}
	return fmt.Errorf("partition %s is gone", clean(partition))
}

// until asks again and again until what returns nil, and says why it gave up.
func (c *cli) until(ctx context.Context, timeout time.Duration, what func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(drainInterval)
	defer ticker.Stop()
	last := errors.New("nothing was seen")
	for {
		err := what(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return &api.Error{
				Message: fmt.Sprintf("not done after %s: %v", timeout, last), Code: api.CodeFailed,
				Hint: "the order stays; mqbctl leases shows what holds it up",
			}
		}
	}
}

func (c *cli) pauseCommand() *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "pause ROUTE",
		Short: "Stop a route and keep its positions",
		Long: `Stop a route and keep its positions. What it has read is written and committed
first; when this command is done, nobody holds any of its partitions. The route
stays paused, over restarts and changes of its specification, until resume.`,
		Args: cobra.ExactArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			if err := cl.Pause(cmd.Context(), args[0]); err != nil {
				return err
			}
			if !noWait {
				err := c.until(cmd.Context(), timeout, func(ctx context.Context) error {
					r, err := cl.Route(ctx, args[0])
					if err == nil && r.Owned > 0 {
						err = fmt.Errorf("%d of %d partitions are still held", r.Owned, r.Partitions)
					}
					return err
				})
				if err != nil {
					return err
				}
			}
			return c.done(map[string]string{"route": args[0], "done": "pause"})
		}),
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	cmd.Flags().DurationVar(&timeout, "timeout", moveTimeout, "give up waiting after this long; the route stays paused")
	return cmd
}

func (c *cli) nodesRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Forget a node that is dead for good, or lost its disk",
		Long: `Forget a node that is dead for good, or lost its disk: it leaves the embedded
raft, and orders for it, pins to it and partitions that only it could hold are
taken away. Checkpoint records stay.

A node of that name can join again, with an empty data directory.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node := args[0]
			if !yes && !c.confirm(fmt.Sprintf("Remove node %s? It can come back with an empty data directory only.", node)) {
				return &api.Error{Message: "not confirmed, nothing was changed", Code: api.CodeRefused, Hint: "answer yes, or use --yes"}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			v, err := cl.RemoveNode(cmd.Context(), node)
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) {
				var what []string
				if v.Member {
					what = append(what, "its seat in the coordinator")
				}
				for _, k := range []struct {
					n    int
					what string
				}{{v.Orders, "orders"}, {v.Pins, "pins"}, {v.Partitions, "partitions of its own"}} {
					if k.n > 0 {
						what = append(what, fmt.Sprintf("%d %s", k.n, k.what))
					}
				}
				fmt.Fprintf(w, "%s: removed, with %s\n", clean(node), strings.Join(what, ", "))
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
