package main

import (
	"context"
	"strings"
	"time"

	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completionTimeout is the longest that somebody waits behind the tab key.
const completionTimeout = 800 * time.Millisecond

// names lists what can stand in a place of a command line; args are those before it.
type names func(ctx context.Context, cl *client.Client, args []string) ([]string, error)

// completions by the word that stands for the place in a command's usage, or for
// the value in that of a flag.
var completions = map[string]names{
	"ROUTE": routeNames,
	"NODE":  nodeNames,
	"PARTITION": func(ctx context.Context, cl *client.Client, args []string) ([]string, error) {
		return partitionNames(ctx, cl, strings.Join(args, ""))
	},
	"ROUTE/PARTITION": func(ctx context.Context, cl *client.Client, _ []string) ([]string, error) {
		v, err := cl.Leases(ctx, "")
		out := make([]string, 0, len(v.Leases))
		for _, l := range v.Leases {
			out = append(out, l.Route+"/"+l.Partition)
		}
		return out, err
	},
}

func routeNames(ctx context.Context, cl *client.Client, _ []string) ([]string, error) {
	v, err := cl.Routes(ctx)
	out := make([]string, 0, len(v.Routes))
	for _, r := range v.Routes {
		out = append(out, r.Name)
	}
	return out, err
}

func nodeNames(ctx context.Context, cl *client.Client, _ []string) ([]string, error) {
	v, err := cl.Nodes(ctx)
	out := make([]string, 0, len(v.Nodes))
	for _, n := range v.Nodes {
		out = append(out, n.Name)
	}
	return out, err
}

func partitionNames(ctx context.Context, cl *client.Client, route string) ([]string, error) {
	v, err := cl.Leases(ctx, route)
	out := make([]string, 0, len(v.Leases))
	for _, l := range v.Leases {
		out = append(out, l.Partition)
	}
	return out, err
}

// complete gives the commands their completions, by their usage. A cluster that
// does not answer in time completes nothing.
func (c *cli) complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		c.complete(sub)
	}
	var places []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word = strings.Trim(word, "[]()"); strings.HasPrefix(word, "-") {
			break // flags, which complete themselves
		}
		places = append(places, word)
	}
	switch {
	case len(places) > 0 && (places[0] == "FILE" || places[0] == "SRC"):
		// Files, which is what shells do by themselves.
	case cmd.Runnable():
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch {
			case len(args) >= len(places):
				return nil, cobra.ShellCompDirectiveNoFileComp
			case places[len(args)] == "|":
				return nil, cobra.ShellCompDirectiveDefault // the second word of another form: DST
			}
			return c.ask(cmd.Context(), completions[places[len(args)]], args)
		}
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		value, _ := pflag.UnquoteUsage(f)
		if list := completions[strings.ToUpper(value)]; list != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
				route, _ := cmd.Flags().GetString("route")
				if route != "" {
					args = []string{route}
				}
				return c.ask(cmd.Context(), list, args)
			})
		}
	})
}

func (c *cli) ask(ctx context.Context, list names, args []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if list == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	cl, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cl.Close()
	found, err := list(ctx, cl, args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
