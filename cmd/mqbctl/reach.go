package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file"
)

// reach asks each input what there is, so that the end is known when it comes,
// and each output whether it is there. A system out of reach gets the time that
// --connect-timeout or the route gives it; what else is wrong with an output is
// for the run to say.
func (l *localRun) reach(ctx context.Context, list []catalog.Explanation) error {
	for _, e := range list {
		if !e.Spec.Enabled {
			continue
		}
		within := cmp.Or(l.options.connectTimeout, e.Spec.GiveUpAfter)
		source, err := l.registry.Source(e.Spec, l.env)
		if err != nil {
			return err
		}
		n, err := retry(ctx, l.log.With("route", e.Spec.Name, "side", "input"), within, func(ctx context.Context) (int, error) {
			p, err := source.Partitions(ctx)
			return len(p), err
		})
		_ = source.Close()
		if err != nil {
			return fmt.Errorf("route %s: input: %w", e.Spec.Name, err)
		}
		if n == 0 {
			fmt.Fprintf(l.err, "warning: route %s: the input has no partitions\n", e.Spec.Name)
		}
		if f, ok := e.Spec.Output.Config.(*file.Config); ok && n > 1 && f.OnePartition() {
			return &api.Error{
				Message: fmt.Sprintf("route %s: %s can be appended to by one partition, and the input has %d: nothing was copied", e.Spec.Name, f.Path, n),
				Code:    api.CodeInvalid,
				Hint:    "a file for each, with ${partition} in its name (in quotes), or a directory of parts (a DST that ends in /, in a route name_by: source_position)",
			}
		}
		l.expected[e.Spec.Name] = n
		sink, err := l.registry.Sink(e.Spec, l.env)
		if err != nil {
			return err
		}
		_, err = retry(ctx, l.log.With("route", e.Spec.Name, "side", "output"), within, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, sink.Check(ctx)
		})
		_ = sink.Close()
		if err != nil && unreachable(err) {
			return fmt.Errorf("route %s: output: %w", e.Spec.Name, err)
		}
	}
	return nil
}

func unreachable(err error) bool {
	return connectors.Classify(err) == connectors.ClassConnection || errors.Is(err, context.DeadlineExceeded)
}

// retry asks a system again while it is out of reach, for as long as within. The
// error is the last that says why, and not the end of a wait for it.
func retry[T any](ctx context.Context, log *slog.Logger, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	deadline, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	v, err := backoff.Retry(deadline, func() (T, error) {
		v, err := ask(deadline)
		if err != nil {
			if !unreachable(err) {
				return v, backoff.Permanent(err)
			}
			if last == nil || deadline.Err() == nil {
				last = err
			}
		}
		return v, err
	}, backoff.WithMaxElapsedTime(within), backoff.WithNotify(func(err error, d time.Duration) {
		log.Warn("not reachable, trying again", "error", err, "in", d.Round(time.Millisecond))
	}))
	if err != nil && ctx.Err() == nil && unreachable(err) && last != nil {
		err = connectors.Connection(fmt.Errorf("not reachable within %s: %w", within, last))
	}
	return v, err
}
