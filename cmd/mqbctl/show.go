package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/lease"
	"github.com/spf13/cobra"
)

func (c *cli) leasesCommand() *cobra.Command {
	var watch, history bool
	var route, partition, node string
	cmd := &cobra.Command{
		Use:   "leases [ROUTE]",
		Short: "Show who holds which partition, and what it does",
		Long: `Show who holds which partition, and what it does. With --history, show who held
the partitions of one route under their last twenty epochs, and why that ended.`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			name := cmp.Or(route, strings.Join(args, ""))
			if history {
				return show(cmd.Context(), c, watch, func(ctx context.Context) (api.History, error) {
					return historyOf(ctx, cl, name, partition, node)
				}, func(w io.Writer, v api.History) { historyTable(w, v, time.Now()) })
			}
			return show(cmd.Context(), c, watch, func(ctx context.Context) (api.Leases, error) {
				v, err := cl.Leases(ctx, name)
				return onlyPartition(onNode(v, node), partition), err
			}, func(w io.Writer, v api.Leases) { leasesTable(w, v, time.Now()) })
		}),
	}
	cmd.Flags().StringVar(&route, "route", "", "only of this `route`")
	cmd.Flags().StringVar(&partition, "partition", "", "only this `partition`")
	cmd.Flags().StringVar(&node, "node", "", "only what this `node` holds, or held")
	cmd.Flags().BoolVar(&history, "history", false, "the last runs of each partition of a route")
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
	reasons(w, v.Leases, now)
	pins(w, v.Leases)
	for _, p := range v.Problems {
		fmt.Fprintf(w, "\n%s: %s\n", clean(p.Route), clean(p.Error))
	}
	fmt.Fprintf(w, "\n%s\n", v.Summary.Text)
}

// pins says under the table what operators moved, and to where.
func pins(w io.Writer, leases []api.Lease) {
	by := map[string][]string{}
	for _, l := range leases {
		if l.Pinned != "" {
			by[l.Pinned] = append(by[l.Pinned], clean(l.Route)+"/"+clean(l.Partition))
		}
	}
	if len(by) > 0 {
		fmt.Fprintln(w)
	}
	for _, node := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(w, "moved to %s by an operator: %s\n", clean(node), strings.Join(by[node], ", "))
	}
}

// reasons says under the table why partitions do not run, the many that wait for
// the same thing in one line. Without a time it does not say when they try again.
func reasons(w io.Writer, leases []api.Lease, now time.Time) {
	type group struct{ route, state, reason string }
	var order []group
	members := map[group][]string{}
	next := map[group]time.Time{}
	for _, l := range leases {
		if l.Reason == "" || l.State == lease.StateRunning || l.State == lease.StateDone {
			continue
		}
		g := group{l.Route, string(l.State), l.Reason}
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], l.Partition)
		if t := l.NextTry; !t.IsZero() && (next[g].IsZero() || t.Before(next[g])) {
			next[g] = t
		}
	}
	if len(order) > 0 {
		fmt.Fprintln(w)
	}
	for _, g := range order {
		who := strings.Join(members[g], ", ")
		if n := len(members[g]); n > 3 {
			who = fmt.Sprintf("%d partitions", n)
		}
		again := ""
		if t := next[g]; !t.IsZero() && !now.IsZero() {
			again = fmt.Sprintf(" (next try in %s)", max(t.Sub(now), 0).Round(time.Second))
		}
		fmt.Fprintf(w, "%s %s: %s: %s%s\n", clean(g.route), clean(who), g.state, clean(g.reason), again)
	}
}

func (c *cli) routesCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "routes [ROUTE]",
		Short: "List the routes, or show one with its specification",
		Args:  cobra.MaximumNArgs(1),
		RunE: c.connected(func(cmd *cobra.Command, args []string, cl *client.Client) error {
			if len(args) == 0 {
				return show(cmd.Context(), c, watch, cl.Routes, func(w io.Writer, v api.Routes) { routesTable(w, v.Routes) })
			}
			return show(cmd.Context(), c, watch, func(ctx context.Context) (api.Route, error) {
				return cl.Route(ctx, args[0])
			}, func(w io.Writer, v api.Route) {
				routesTable(w, []api.Route{v})
				fmt.Fprintf(w, "\nuid %s, series %s\n\n%s", v.UID, v.Series, v.Spec)
			})
		}),
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
		Short: "List the nodes, or remove one",
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
	cmd.AddCommand(c.nodesRemoveCommand())
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
			n.Name, n.Address, nodeState(n, now), fmt.Sprint(n.Partitions), strings.Join(roles, ","), n.Version, age(n.Started, now), strings.Join(labels, ","),
		})
	}
	columns(w, "NODE ADDRESS STATE PARTITIONS ROLE VERSION UPTIME LABELS", rows)
	for _, n := range v.Nodes {
		if len(n.ExcludedRoutes) > 0 {
			fmt.Fprintf(w, "\n%s is excluded for %s\n", clean(n.Name), clean(strings.Join(n.ExcludedRoutes, ", ")))
		}
	}
}

// nodeState is the state and what keeps an active node from getting partitions.
func nodeState(n api.Node, now time.Time) string {
	switch {
	case n.State != api.NodeActive:
		return string(n.State)
	case n.Excluded:
		return "excluded"
	case n.Settles.After(now):
		return "settling"
	}
	return string(n.State)
}
