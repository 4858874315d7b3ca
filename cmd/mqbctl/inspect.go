package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/spf13/cobra"
)

// onNode keeps the leases that a node holds.
func onNode(v api.Leases, node string) api.Leases {
	if node != "" {
		v.Leases = slices.DeleteFunc(v.Leases, func(l api.Lease) bool { return l.Owner != node })
	}
	return v
}

// onlyPartition keeps the leases of the partitions of one name.
func onlyPartition(v api.Leases, partition string) api.Leases {
	if partition != "" {
		v.Leases = slices.DeleteFunc(v.Leases, func(l api.Lease) bool { return l.Partition != partition })
	}
	return v
}

// historyOf fetches the last runs of a route's partitions that a node had.
func historyOf(ctx context.Context, cl *client.Client, route, partition, node string) (api.History, error) {
	if route == "" {
		return api.History{}, &api.Error{Message: "--history is of one route", Code: api.CodeUsage, Hint: "mqbctl leases --route ROUTE --history"}
	}
	v, err := cl.History(ctx, route, partition)
	if node != "" {
		v.Runs = slices.DeleteFunc(v.Runs, func(r api.Run) bool { return r.Node != node })
	}
	return v, err
}

func historyTable(w io.Writer, v api.History, now time.Time) {
	rows := make([][]string, 0, len(v.Runs))
	for _, r := range v.Runs {
		until, held, end := stamp(r.Until), age(r.From, cmpTime(r.Until, now)), r.End
		if end == "" {
			until, end = "", "(holds it)"
		} else if r.Until.IsZero() {
			held = ""
		}
		rows = append(rows, []string{r.Route, r.Partition, fmt.Sprint(r.Epoch), r.Node, stamp(r.From), until, held, end})
	}
	columns(w, "ROUTE PARTITION EPOCH NODE FROM UNTIL HELD ENDED", rows)
}

func cmpTime(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// stamp is a time as short as it is clear.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func (c *cli) eventsCommand() *cobra.Command {
	var follow bool
	var route string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Tell what happened lately: acquired, fenced, suspended, handed off, quarantined, nodes that came and went",
		Long: `Tell what happened lately. Each node remembers the last thousand things that
happened on it, until it is restarted; the node that is asked gathers them from
the others, and names those that do not answer.

With --follow and -o json, each event is a line of its own.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			if follow {
				return c.followEvents(cmd.Context(), cl, route)
			}
			v, err := cl.Events(cmd.Context(), route, "")
			if err != nil {
				return err
			}
			return c.print(v, func(w io.Writer) {
				for _, e := range v.Events {
					eventLine(w, e)
				}
				c.unreachable(v.Unreachable, nil)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	cmd.Flags().StringVar(&route, "route", "", "only of this `route`")
	return cmd
}

func eventLine(w io.Writer, e events.Event) {
	fmt.Fprintf(w, "%s  %s  %s\n", stamp(e.Time), clean(e.Node), clean(e.Line()))
}

// unreachable names nodes that did not answer, those that were not named before.
func (c *cli) unreachable(list []api.Unreachable, before map[string]bool) map[string]bool {
	now := map[string]bool{}
	for _, u := range list {
		now[u.Node] = true
		if !before[u.Node] {
			fmt.Fprintf(c.err, "mqbctl: no events from %s: %s\n", clean(u.Node), clean(u.Error))
		}
	}
	return now
}

// followEvents asks again and again, which outlives the nodes that it asks.
func (c *cli) followEvents(ctx context.Context, cl *client.Client, route string) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	cursor, told := "", map[string]bool{}
	silent := map[string]bool{}
	for {
		v, err := cl.Events(ctx, route, cursor)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && api.AsError(err).Code != api.CodeUnreachable:
			return err
		case err != nil:
			silent = c.unreachable([]api.Unreachable{{Node: "the cluster", Error: api.AsError(err).Message}}, silent)
		default:
			cursor = v.Cursor
			silent = c.unreachable(v.Unreachable, silent)
			for _, e := range v.Events {
				// What every node sees may come from one of them later.
				key := string(e.Kind) + " " + e.Subject
				if e.Subject != "" && told[key] {
					continue
				}
				if len(told) > 4*events.Length {
					clear(told)
				}
				told[key] = true
				if err := c.event(e); err != nil {
					return err
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *cli) event(e events.Event) error {
	switch c.format {
	case "json":
		b, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(c.out, "%s\n", b)
		}
		return err
	case "yaml":
		text, err := asYAML(e)
		if err == nil {
			_, err = fmt.Fprintf(c.out, "---\n%s", text)
		}
		return err
	}
	eventLine(c.out, e)
	return nil
}

func (c *cli) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Examine the cluster, and say what to do about what is wrong",
		Long: `Examine the cluster: quorum and speed of the coordinator, the nodes and their
leases, versions, disks, the load of checkpoints, and whether each route's store
honours conditions. The stores are asked by the node that answers, with a record
of their own. Exits with 1 if something fails.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			defer cl.Close()
			v, err := cl.Doctor(cmd.Context())
			if err != nil {
				return err
			}
			if err := c.print(v, func(w io.Writer) { doctorTable(w, v) }); err != nil {
				return err
			}
			if v.Failed > 0 {
				return reported{&api.Error{Message: fmt.Sprintf("%d checks failed", v.Failed), Code: api.CodeFailed}}
			}
			return nil
		},
	}
}

func doctorTable(w io.Writer, v api.Report) {
	for _, k := range v.Checks {
		what := k.Check
		if k.Subject != "" {
			what += " " + k.Subject
		}
		fmt.Fprintf(w, "%-4s  %s: %s\n", k.Verdict, clean(what), clean(k.Detail))
		if k.Advice != "" {
			fmt.Fprintf(w, "      %s\n", clean(k.Advice))
		}
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join([]string{
		fmt.Sprintf("%d ok", len(v.Checks)-v.Failed-v.Warned), fmt.Sprintf("%d warnings", v.Warned), fmt.Sprintf("%d failures", v.Failed),
	}, ", "))
}
