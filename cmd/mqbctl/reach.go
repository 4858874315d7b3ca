package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file"
	"github.com/mqbridge/mqb/route"
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
		partitions, err := retry(ctx, l, e.Spec.Name, "input", within, func(ctx context.Context) (ids []string, err error) {
			listed, err := source.Partitions(ctx)
			for _, p := range listed {
				ids = append(ids, p.ID)
			}
			return ids, err
		})
		_ = source.Close()
		if err != nil {
			return endpointError(e.Spec.Name, "input", err)
		}
		if len(partitions) == 0 {
			what := "the input has no partitions"
			if f, ok := e.Spec.Input.Config.(*file.Config); ok {
				what = "no file matches " + f.Path
			}
			who := "route " + e.Spec.Name + ": "
			if l.hidden != "" {
				who = ""
			}
			fmt.Fprintf(l.err, "warning: %s%s\n", who, clean(what))
		}
		if err := onlyFile(e.Spec, len(partitions)); err != nil {
			return err
		}
		l.expected[e.Spec.Name] = partitions
		sink, err := l.registry.Sink(e.Spec, l.env)
		if err != nil {
			return err
		}
		_, err = retry(ctx, l, e.Spec.Name, "output", within, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, sink.Check(ctx)
		})
		_ = sink.Close()
		if err != nil && unreachable(err) {
			return endpointError(e.Spec.Name, "output", err)
		}
	}
	return nil
}

// onlyFile refuses what one file cannot take: the records of several partitions,
// each of which is cut back by itself after a crash, and those of its own.
func onlyFile(spec *route.Spec, partitions int) error {
	out, ok := spec.Output.Config.(*file.Config)
	if !ok || !out.OnePartition() {
		return nil
	}
	if partitions > 1 {
		dir, name := filepath.Split(out.Path)
		stem, ext, dot := strings.Cut(name, ".")
		if dot {
			ext = "." + ext
		}
		return &api.Error{
			Message: fmt.Sprintf("route %s: %s can be appended to by one partition, and the input has %d: nothing was copied", spec.Name, out.Path, partitions),
			Code:    api.CodeInvalid,
			Hint:    fmt.Sprintf("a file for each, '%s%s-${partition}%s'; or a directory of parts (a DST that ends in /, in a route name_by: source_position)", dir, stem, ext),
		}
	}
	in, ok := spec.Input.Config.(*file.Config)
	if !ok {
		return nil
	}
	from, err := os.Stat(in.Path)
	if err != nil {
		return nil // a pattern; what is wrong with a file is for the run to say
	}
	if to, err := os.Stat(out.Path); err == nil && os.SameFile(from, to) {
		return &api.Error{Message: fmt.Sprintf("route %s: %s and %s are the same file", spec.Name, in.Path, out.Path), Code: api.CodeInvalid}
	}
	return nil
}

// endpointError names the side of a route. What is out of reach is a system, and no
// cluster, of which an error without a code of its own would speak.
func endpointError(name, side string, err error) error {
	err = fmt.Errorf("route %s: %s: %w", name, side, err)
	if unreachable(err) {
		return &api.Error{Message: err.Error(), Code: api.CodeUnreachable}
	}
	return err
}

func unreachable(err error) bool {
	return connectors.Classify(err) == connectors.ClassConnection || errors.Is(err, context.DeadlineExceeded)
}

// silence is how long a person waits without being told for what.
const silence = 2 * time.Second

// retry asks a system again while it is out of reach, for as long as within. The
// error is the last that says why, and not the end of a wait for it.
func retry[T any](ctx context.Context, l *localRun, name, side string, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	deadline, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	log := l.log.With("route", name, "side", side)
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = silence // the last try is near the end of the wait
	var last error
	started, told := time.Now(), log.Enabled(ctx, slog.LevelWarn)
	v, err := backoff.Retry(deadline, func() (T, error) {
		v, err := ask(deadline)
		if err != nil {
			if !unreachable(err) {
				return v, backoff.Permanent(err)
			}
			if last == nil || !timedOut(err) {
				last = err
			}
		}
		return v, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(within), backoff.WithNotify(func(err error, d time.Duration) {
		log.Warn("not reachable, trying again", "error", err, "in", d.Round(time.Millisecond))
		if !told && time.Since(started)+d > silence {
			told = true
			fmt.Fprintf(l.err, "warning: route %s: %s: not reachable yet, trying for %s: %v\n", name, side, within, err)
		}
	}))
	if err != nil && ctx.Err() == nil && unreachable(err) && last != nil {
		err = connectors.Connection(fmt.Errorf("not reachable within %s: %w", within, last))
	}
	return v, err
}

// timedOut: a wait was over, be it the system's or, as a dial puts it, ours.
func timedOut(err error) bool {
	var wait net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &wait) && wait.Timeout()
}
