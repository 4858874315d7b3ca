package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/logging"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// headroom is what the Go heap may take beside the messages that --memory bounds.
// The whole process may take 64 MiB beside them; the rest is for the pages of the
// program itself and for stacks.
const headroom = 36 << 20

// serve runs the node until soft ends, then hands over within the drain timeout,
// or until hard ends.
func serve(soft, hard context.Context, o options, logTo io.Writer) (err error) {
	log := logger(o, logTo)
	slog.SetDefault(log)
	debug.SetMemoryLimit(int64(o.Memory) + headroom)

	access, err := o.open()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer listener.Close()
	// With port 0 the system chose one.
	advertise := o.advertised(listener.Addr().String())
	coord, err := openCoordinator(soft, o, access, listener, advertise, log)
	if err != nil {
		if soft.Err() != nil {
			return nil // asked to stop while it waited for etcd
		}
		return err
	}
	defer func() { err = errors.Join(err, coord.Close()) }()

	budget := message.NewBudget(int64(o.Memory))
	registry := builtin.Registry()
	keys := lease.NewKeys(o.Cluster)
	env := connectors.Env{Node: o.Name, DataDir: o.DataDir, Budget: budget}
	var tree atomic.Pointer[actors.Node]
	node, err := cluster.NewNode(cluster.Config{
		Name: o.Name, Cluster: o.Cluster, Address: advertise, Version: cluster.Version, Labels: o.Labels,
		Coordinator: coord, Registry: registry, DataDir: o.DataDir, Budget: budget, Log: log, LeaseTTL: o.LeaseTTL, Moves: o.Moves,
		NewRunner: func(c actors.Config) (cluster.Runner, error) {
			n, err := actors.New(c)
			if err == nil {
				tree.Store(n)
			}
			return n, err
		},
	})
	if err != nil {
		return err
	}
	cat := catalog.New(catalog.Config{
		Coordinator: coord, Keys: keys, Cluster: o.Cluster, Registry: registry, Env: env,
		OpenStore: func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
			return actors.OpenStore(ctx, registry, spec, env, coord, keys)
		},
	})
	runs := func() []actors.Run {
		if n := tree.Load(); n != nil {
			return n.Runs()
		}
		return nil
	}
	host, _, _ := net.SplitHostPort(advertise)
	server := api.New(api.Config{
		Catalog: cat, Coordinator: coord, Keys: keys, Node: o.Name, Cluster: o.Cluster, Version: cluster.Version,
		Hosts: append([]string{host}, access.names...),
		Token: access.token, ClientCertificates: o.clientCertificates(), Peer: access.peer,
		Ready:  func(context.Context) error { return node.Ready() },
		Leave:  node.Leave,
		Voters: coord.voters, RemoveMember: coord.remove,
		Metrics: api.Metrics(runs),
		Events:  node.Events(), Members: coord.members, Backup: coord.backup,
		Vitals: api.Measure{
			Node: o.Name, Version: cluster.Version, DataDir: o.DataDir, Coordinator: coord, Keys: keys,
			Ready: func(context.Context) error { return node.Ready() }, Lease: node.Margins,
			Runs: runs, InCoordinator: cat.InCoordinator,
		}.Vitals,
		Log: log,
	}).HTTP()

	ended := make(chan error, 2)
	running := make(chan struct{})
	go func() {
		defer close(running)
		if err := node.Run(hard); err != nil && hard.Err() == nil {
			ended <- err
		}
	}()
	go func() {
		if err := server.Serve(coord.web); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			ended <- fmt.Errorf("serve the API: %w", err)
		}
	}()
	log.Info("node started", "node", o.Name, "address", advertise, "cluster", o.Cluster, "data_dir", o.DataDir, "version", cluster.Version)
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		if o.Routes == "" {
			return
		}
		if err := applyFile(soft, cat, o.Routes, log); err != nil && soft.Err() == nil {
			ended <- err
		}
	}()

	select {
	case err = <-ended:
	case <-soft.Done():
		log.Info("stopping: handing over what this node holds", "timeout", o.DrainTimeout)
	}
	drain, cancel := context.WithTimeout(hard, o.DrainTimeout)
	defer cancel()
	if stopErr := node.Stop(drain); stopErr != nil {
		// Others take over when the lease has ended; nothing is lost by it.
		log.Warn("not everything was handed over", "error", stopErr)
	}
	<-running
	<-applied
	closing, cancel := context.WithTimeout(hard, 2*time.Second)
	defer cancel()
	if server.Shutdown(closing) != nil {
		_ = server.Close()
	}
	log.Info("stopped", "node", o.Name)
	return err
}

// applyFile applies the routes of --routes as soon as the coordinator answers.
// Routes that are refused are logged and leave the others alone; a file that is
// no configuration ends the process, since somebody just wrote it.
func applyFile(ctx context.Context, cat *catalog.Catalog, path string, log *slog.Logger) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return &api.Error{Message: err.Error(), Code: api.CodeInvalid}
	}
	results, err := backoff.Retry(ctx, func() ([]catalog.Result, error) {
		res, err := cat.Apply(ctx, text, catalog.ApplyOptions{File: path, LookupEnv: os.LookupEnv, Overrides: route.OverridesFrom(os.Environ())})
		var invalid *catalog.Invalid
		if errors.As(err, &invalid) {
			err = backoff.Permanent(err)
		}
		for _, r := range res {
			if errors.Is(r.Err, lease.ErrUnavailable) {
				return nil, r.Err
			}
		}
		return res, err
	}, backoff.WithMaxElapsedTime(0))
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			log.Error("route not applied", "route", r.Route, "error", r.Err)
			continue
		}
		log.Info("route applied", "route", r.Route, "outcome", r.Outcome, "generation", r.Generation, "guarantee", r.Guarantee)
	}
	return nil
}

func logger(o options, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.LogLevel)) // checked
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if o.LogFormat == "json" {
		h = slog.NewJSONHandler(w, opts)
	}
	return slog.New(logging.Sample(h, logging.Interval, nil))
}
