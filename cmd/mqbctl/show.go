package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
	"github.com/spf13/cobra"
)

func (c *cli) leasesCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "leases [ROUTE]",
		Short: "Show who holds which partition, and what it does",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			return show(cmd.Context(), c, watch, func(ctx context.Context) (api.Leases, error) {
				return cl.Leases(ctx, strings.Join(args, ""))
			}, func(w io.Writer, v api.Leases) { leasesTable(w, v, time.Now()) })
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again whenever it changes")
	return cmd
}

func leasesTable(w io.Writer, v api.Leases, now time.Time) {
	rows := make([][]string, 0, len(v.Leases))
	for _, l := range v.Leases {
		epoch := ""
		if l.Epoch > 0 {
			epoch = fmt.Sprint(l.Epoch)
		}
		rows = append(rows, []string{
			l.Route, l.Partition, l.Owner, epoch, string(l.State), l.Position, number(l.Lag), l.Guarantee, age(l.Since, now),
		})
	}
	columns(w, "ROUTE PARTITION OWNER EPOCH STATE POSITION LAG GUARANTEE SINCE", rows)
	reasons(w, v.Leases)
	for _, p := range v.Problems {
		fmt.Fprintf(w, "\n%s: %s\n", clean(p.Route), clean(p.Error))
	}
	fmt.Fprintf(w, "\n%s\n", v.Summary.Text)
}

// reasons says under the table why partitions do not run, the many that wait for
// the same thing in one line.
func reasons(w io.Writer, leases []api.Lease) {
	type group struct{ route, state, reason string }
	var order []group
	members := map[group][]string{}
	for _, l := range leases {
		if l.Reason == "" || l.State == lease.StateRunning || l.State == lease.StateDone {
			continue
		}
		g := group{l.Route, string(l.State), l.Reason}
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], l.Partition)
	}
	if len(order) > 0 {
		fmt.Fprintln(w)
	}
	for _, g := range order {
		who := strings.Join(members[g], ", ")
		if n := len(members[g]); n > 3 {
			who = fmt.Sprintf("%d partitions", n)
		}
		fmt.Fprintf(w, "%s %s: %s: %s\n", clean(g.route), clean(who), g.state, clean(g.reason))
	}
}

func (c *cli) routesCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "routes [ROUTE]",
		Short: "List the routes, or show one with its specification",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			if len(args) == 0 {
				return show(cmd.Context(), c, watch, cl.Routes, func(w io.Writer, v api.Routes) { routesTable(w, v.Routes) })
			}
			return show(cmd.Context(), c, watch, func(ctx context.Context) (api.Route, error) {
				return cl.Route(ctx, args[0])
			}, func(w io.Writer, v api.Route) {
				routesTable(w, []api.Route{v})
				fmt.Fprintf(w, "\nuid %s, series %s\n\n%s", v.UID, v.Series, v.Spec)
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again whenever it changes")
	return cmd
}

func routesTable(w io.Writer, routes []api.Route) {
	rows := make([][]string, 0, len(routes))
	for _, r := range routes {
		rows = append(rows, []string{
			r.Name, r.Input, r.Output, fmt.Sprint(r.Generation), string(r.State),
			fmt.Sprintf("%d/%d", r.Owned, r.Partitions), fmt.Sprint(r.Written), number(r.Lag), r.Guarantee,
		})
	}
	columns(w, "ROUTE INPUT OUTPUT GENERATION STATE OWNED WRITTEN LAG GUARANTEE", rows)
	for _, r := range routes {
		if r.Error != "" {
			fmt.Fprintf(w, "\n%s: %s\n", clean(r.Name), clean(r.Error))
		}
	}
}

func (c *cli) nodesCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			return show(cmd.Context(), c, watch, cl.Nodes, func(w io.Writer, v api.Nodes) { nodesTable(w, v, time.Now()) })
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again whenever it changes")
	return cmd
}

func nodesTable(w io.Writer, v api.Nodes, now time.Time) {
	rows := make([][]string, 0, len(v.Nodes))
	for _, n := range v.Nodes {
		var roles []string
		if n.Voter {
			roles = append(roles, "voter")
		}
		if n.Scheduler {
			roles = append(roles, "scheduler")
		}
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
			labels = append(labels, k+"="+n.Labels[k])
		}
		rows = append(rows, []string{
			n.Name, n.Address, string(n.State), fmt.Sprint(n.Partitions), strings.Join(roles, ","), n.Version, age(n.Started, now), strings.Join(labels, ","),
		})
	}
	columns(w, "NODE ADDRESS STATE PARTITIONS ROLE VERSION UPTIME LABELS", rows)
}
