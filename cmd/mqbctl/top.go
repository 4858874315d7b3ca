package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/lease"
	"github.com/spf13/cobra"
)

const (
	// topWindow is over how long rates are taken. Nodes report their counters
	// every 2 s, so that a shorter one would jump.
	topWindow = 6 * time.Second
	// topOnce is how long --once looks: it sees one report of each node at least.
	topOnce = 2500 * time.Millisecond
)

// Top is what top shows.
type Top struct {
	Routes     []TopRow `json:"routes"`
	Nodes      []TopRow `json:"nodes"`
	Partitions []TopRow `json:"partitions"`
}

// TopRow is one line: rates in records a second.
type TopRow struct {
	Route     string      `json:"route,omitempty"`
	Partition string      `json:"partition,omitempty"`
	Node      string      `json:"node,omitempty"`
	State     lease.State `json:"state,omitempty"`
	// Running of Total partitions; for routes and nodes.
	Running int     `json:"running"`
	Total   int     `json:"total"`
	Read    float64 `json:"read_per_second"`
	Written float64 `json:"written_per_second"`
	// Lag is a sum; -1 if nobody knows.
	Lag int64 `json:"lag"`
}

func (c *cli) topCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show rates and lag of routes, nodes and partitions, live",
		Long: `Show rates and lag of routes, nodes and partitions, live; q ends it. Without a
terminal, or with --once, -o json or -o yaml, it looks for two seconds and prints once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			if once || c.format != "table" || !isTerminal(c.out) {
				return c.topOnce(cmd.Context(), cl)
			}
			return c.topLive(cmd.Context(), cl)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	return cmd
}

func (c *cli) topOnce(ctx context.Context, cl *client.Client) error {
	var m meter
	v, err := cl.Leases(ctx, "")
	if err != nil {
		return err
	}
	m.see(v, time.Now())
	t := time.NewTimer(topOnce)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if v, err = cl.Leases(ctx, ""); err != nil {
		return err
	}
	top := m.see(v, time.Now())
	return c.print(top, func(w io.Writer) { topTable(w, top, 0) })
}

func (c *cli) topLive(ctx context.Context, cl *client.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if in, ok := c.in.(*os.File); ok {
		defer keys(in, func(key byte) {
			if key == 'q' || key == 'Q' || key == 3 {
				cancel()
			}
		})()
	}
	fmt.Fprint(c.out, "\x1b[?25l") // the cursor would jump about
	defer fmt.Fprint(c.out, "\x1b[?25h")
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var m meter
	for {
		v, err := cl.Leases(ctx, "")
		if ctx.Err() != nil {
			return nil
		}
		var screen bytes.Buffer
		rows, _ := windowSize(c.out)
		if err != nil {
			fmt.Fprintf(&screen, "mqbctl: %s\n", clean(api.AsError(err).Message))
		} else {
			fmt.Fprintf(&screen, "mqb top  %s   %s   q quits\n\n", time.Now().Format("15:04:05"), v.Summary.Text)
			topTable(&screen, m.see(v, time.Now()), rows-3)
		}
		fmt.Fprint(c.out, clearScreen, strings.TrimSuffix(screen.String(), "\n"))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			fmt.Fprintln(c.out)
			return nil
		}
	}
}

// topTable writes the busiest first, limit lines at most; 0 is all.
func topTable(w io.Writer, top Top, limit int) {
	var b bytes.Buffer
	rate := func(r TopRow) []string {
		return []string{fmt.Sprintf("%.0f", r.Read), fmt.Sprintf("%.0f", r.Written), number(r.Lag)}
	}
	rows := func(list []TopRow, head func(TopRow) []string) [][]string {
		out := make([][]string, 0, len(list))
		for _, r := range list {
			out = append(out, append(head(r), rate(r)...))
		}
		return out
	}
	share := func(r TopRow) string { return fmt.Sprintf("%d/%d", r.Running, r.Total) }
	columns(&b, "ROUTE RUNNING READ/S WRITTEN/S LAG", rows(top.Routes, func(r TopRow) []string { return []string{r.Route, share(r)} }))
	fmt.Fprintln(&b)
	columns(&b, "NODE RUNNING READ/S WRITTEN/S LAG", rows(top.Nodes, func(r TopRow) []string { return []string{r.Node, share(r)} }))
	fmt.Fprintln(&b)
	columns(&b, "ROUTE PARTITION NODE STATE READ/S WRITTEN/S LAG", rows(top.Partitions, func(r TopRow) []string {
		return []string{r.Route, r.Partition, r.Node, string(r.State)}
	}))
	lines := strings.SplitAfter(b.String(), "\n")
	if limit > 0 && len(lines) > limit {
		lines = lines[:limit]
	}
	fmt.Fprint(w, strings.Join(lines, ""))
}

// meter makes rates of counters that it sees again and again.
type meter struct{ samples []sample }

type sample struct {
	at     time.Time
	counts map[topKey]lease.Counters
}

// topKey: counters begin anew with another owner.
type topKey struct{ route, partition, owner string }

// see takes one look, and says how fast things went since the first in the window.
func (m *meter) see(v api.Leases, now time.Time) Top {
	s := sample{at: now, counts: make(map[topKey]lease.Counters, len(v.Leases))}
	for _, l := range v.Leases {
		if l.Counters != nil {
			s.counts[topKey{l.Route, l.Partition, l.Owner}] = *l.Counters
		}
	}
	for len(m.samples) > 1 && now.Sub(m.samples[1].at) >= topWindow {
		m.samples = m.samples[1:]
	}
	m.samples = append(m.samples, s)
	first := m.samples[0]
	elapsed := now.Sub(first.at).Seconds()

	var top Top
	routes, nodes := map[string]*TopRow{}, map[string]*TopRow{}
	add := func(to map[string]*TopRow, key string, empty, r TopRow) {
		t := to[key]
		if t == nil {
			empty.Lag = -1
			t = &empty
			to[key] = t
		}
		t.Total++
		if r.State == lease.StateRunning {
			t.Running++
		}
		t.Read += r.Read
		t.Written += r.Written
		if r.Lag >= 0 {
			t.Lag = max(t.Lag, 0) + r.Lag
		}
	}
	for _, l := range v.Leases {
		r := TopRow{Route: l.Route, Partition: l.Partition, Node: l.Owner, State: l.State, Total: 1, Lag: l.Lag}
		if l.State == lease.StateRunning {
			r.Running = 1
		}
		key := topKey{l.Route, l.Partition, l.Owner}
		if before, ok := first.counts[key]; ok && elapsed > 0 {
			after := s.counts[key]
			// A node that gave the partition away and took it again counts anew.
			r.Read = float64(max(0, after.Read-before.Read)) / elapsed
			r.Written = float64(max(0, after.Written-before.Written)) / elapsed
		}
		top.Partitions = append(top.Partitions, r)
		add(routes, l.Route, TopRow{Route: l.Route}, r)
		if l.Owner != "" {
			add(nodes, l.Owner, TopRow{Node: l.Owner}, r)
		}
	}
	for _, r := range routes {
		top.Routes = append(top.Routes, *r)
	}
	for _, r := range nodes {
		top.Nodes = append(top.Nodes, *r)
	}
	for _, list := range [][]TopRow{top.Routes, top.Nodes, top.Partitions} {
		slices.SortStableFunc(list, func(a, b TopRow) int {
			return cmp.Or(cmp.Compare(b.Written, a.Written), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Node, b.Node))
		})
	}
	return top
}
