package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/cobra"
)

// invalid gives what the decoder returned its exit code.
func invalid(err error) error {
	var list route.Errors
	if errors.As(err, &list) {
		return &catalog.Invalid{Problems: list.Unwrap()}
	}
	return &catalog.Invalid{Problems: []error{err}}
}

// decode reads a file here, without any cluster.
func (c *cli) decode(path string) ([]catalog.Explanation, error) {
	name, text, err := c.readFile(path)
	if err != nil {
		return nil, err
	}
	list, warnings, err := catalog.Explain(builtin.Registry(), text, name, os.LookupEnv, route.OverridesFrom(os.Environ()))
	for _, w := range warnings {
		fmt.Fprintln(c.err, "warning:", w)
	}
	return list, err
}

// checked is what validate says of one route.
type checked struct {
	Route     string `json:"route"`
	Guarantee string `json:"guarantee"`
	Input     string `json:"input,omitempty"`
	Output    string `json:"output,omitempty"`
}

// connectTimeout bounds the check of one system.
const connectTimeout = 15 * time.Second

func (c *cli) validateCommand() *cobra.Command {
	var connect bool
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a file of routes, all errors at once",
		Long: `Check a file of routes, all errors at once, without a cluster. With --connect
the systems that it names are asked too; nothing is changed in them.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := c.decode(args[0])
			if err != nil {
				return err
			}
			if err := c.checkFiles(list); err != nil {
				return err
			}
			out := make([]checked, 0, len(list))
			var first error
			for _, e := range list {
				row := checked{Route: e.Spec.Name, Guarantee: string(e.Inference.Guarantee)}
				if connect && e.Spec.Enabled {
					in, sink := c.checkInput(cmd.Context(), e.Spec), c.checkOutput(cmd.Context(), e.Spec)
					row.Input, row.Output = verdict(in), verdict(sink)
					if first == nil {
						first = errors.Join(in, sink)
					}
				}
				out = append(out, row)
			}
			if err := c.print(out, func(w io.Writer) { checkedTable(w, out, connect) }); err != nil {
				return err
			}
			if first == nil {
				return nil
			}
			code := api.CodeUnreachable
			if connectors.Classify(first) == connectors.ClassPermanent {
				code = api.CodeInvalid
			}
			return reported{&api.Error{Message: first.Error(), Code: code}}
		},
	}
	cmd.Flags().BoolVar(&connect, "connect", false, "ask the systems too")
	return cmd
}

// checkFiles looks into the files that the nodes will read, as far as they are here.
func (c *cli) checkFiles(list []catalog.Explanation) error {
	var errs []error
	for _, e := range list {
		missing, err := e.Spec.CheckFiles()
		for _, m := range missing {
			fmt.Fprintln(c.err, "warning:", m)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if errs != nil {
		return &catalog.Invalid{Problems: errs}
	}
	return nil
}

func (c *cli) checkInput(ctx context.Context, spec *route.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := builtin.Registry().Source(spec, localEnv())
	if err != nil {
		return err
	}
	return errors.Join(s.Check(ctx), s.Close())
}

// checkOutput asks the output and the dlq, which a run opens at its first dead
// letter only.
func (c *cli) checkOutput(ctx context.Context, spec *route.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	check := func(e route.Endpoint) error {
		s, err := builtin.Registry().SinkOf(e, spec, localEnv())
		if err != nil {
			return err
		}
		return errors.Join(s.Check(ctx), s.Close())
	}
	err := check(spec.Output)
	if e := spec.DeadLetters(); e != nil && err == nil {
		if err = check(*e); err != nil {
			err = fmt.Errorf("dlq: %w", err)
		}
	}
	return err
}

// localNode is the name of a node that is not part of any cluster. It is part
// of the names of node-local partitions, so it never changes.
const localNode = "local"

func localEnv() connectors.Env {
	return connectors.Env{Node: localNode, Budget: message.NewBudget(message.DefaultBudget)}
}

func verdict(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}

func checkedTable(w io.Writer, list []checked, connect bool) {
	rows := make([][]string, 0, len(list))
	for _, r := range list {
		row := []string{r.Route, r.Guarantee}
		if connect {
			row = append(row, short(r.Input), short(r.Output))
		}
		rows = append(rows, row)
	}
	header := "ROUTE GUARANTEE"
	if connect {
		header += " INPUT OUTPUT"
	}
	columns(w, header, rows)
	for _, r := range list {
		for _, side := range []struct{ name, verdict string }{{"input", r.Input}, {"output", r.Output}} {
			if short(side.verdict) == failed {
				fmt.Fprintf(w, "\n%s %s: %s\n", clean(r.Route), side.name, clean(side.verdict))
			}
		}
	}
}

const failed = "failed"

// short fits a verdict into a table.
func short(verdict string) string {
	if verdict != "" && verdict != "ok" {
		return failed
	}
	return verdict
}

func (c *cli) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain FILE",
		Short: "Say what the routes of a file guarantee, and why",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := c.decode(args[0])
			if err != nil {
				return err
			}
			v := api.ExplainView(list, nil)
			return c.print(v, func(w io.Writer) {
				for i, r := range v.Routes {
					if i > 0 {
						fmt.Fprintln(w)
					}
					fmt.Fprintf(w, "%s: %s\n", r.Route, r.Guarantee)
					for _, line := range r.Text {
						fmt.Fprintf(w, "  %s\n", line)
					}
				}
			})
		},
	}
}
