package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/raft"
)

// realCluster is real nodes on real raft, in this process, with a file a
// partition, each of them read to its end.
func (w *work) realCluster(ctx context.Context) error {
	dir := w.path("scale")
	in := filepath.Join(dir, "in")
	if err := os.MkdirAll(in, 0o755); err != nil {
		return err
	}
	for i := range realPartitions {
		if err := os.WriteFile(filepath.Join(in, fmt.Sprintf("%04d.csv", i)), []byte("id\n1\n"), 0o644); err != nil {
			return err
		}
	}
	var engines []*raft.Engine
	defer func() {
		for _, e := range engines {
			_ = e.Close()
		}
	}()
	var m *members
	founder := ""
	start := func(node string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		o := raft.Options{
			Cluster: "scale", Node: node, DataDir: filepath.Join(dir, node), Advertise: l.Addr().String(), Log: slog.New(slog.DiscardHandler),
		}
		if founder != "" {
			o.Join = []string{founder}
		} else {
			founder = o.Advertise
		}
		e, err := raft.Open(o)
		if err != nil {
			return err
		}
		engines = append(engines, e)
		e.Mux(l)
		if m == nil {
			m, ctx = observe(ctx, e)
		}
		return m.start(ctx, cluster.Config{Name: node, Coordinator: e, Registry: builtin.Registry(), DataDir: filepath.Join(dir, node), LeaseTTL: realTTL})
	}
	for i := range realNodes {
		if err := start(fmt.Sprintf("n%d", i)); err != nil {
			return err
		}
	}
	defer func() { m.stop() }()
	name := fmt.Sprintf("%d × %d, raft", realNodes, realPartitions)
	spec := lease.Encode(lease.Route{UID: "u", Series: "s", Generation: 1, Spec: fmt.Sprintf(
		"input: {file: {path: %q, format: csv}}\noutput: \"null\"\nshared_storage: true\n", filepath.Join(in, "*.csv"))})
	if _, err := engines[0].Txn(ctx, nil, []lease.Op{lease.Put(m.keys.Route("r"), spec)}); err != nil {
		return err
	}
	began := time.Now()
	if err := m.even(ctx, realPartitions); err != nil {
		return err
	}
	if err := m.done(ctx); err != nil {
		return err
	}
	row(name, "all read to their end after the route was written, s", fmt.Sprintf("%.1f", time.Since(began).Seconds()), "–")
	idle := m.idle(ctx)
	row(name, fmt.Sprintf("idle, calls/s (TTL %v)", realTTL), fmt.Sprintf("%.1f", idle), maxIdleOps)

	m.moved.Store(0)
	if err := start(fmt.Sprintf("n%d", realNodes)); err != nil {
		return err
	}
	joined := time.Now()
	var first time.Time
	for m.moved.Load() == 0 && ctx.Err() == nil {
		pause(ctx, 5*time.Millisecond)
	}
	first = time.Now()
	if err := m.even(ctx, realPartitions); err != nil {
		return err
	}
	if err := m.done(ctx); err != nil {
		return err
	}
	took, moved := time.Since(first), m.moved.Load()
	limit := int64((realPartitions+realNodes)/(realNodes+1) + 1)
	row(name, "a node joins and has settled, s until all is even and runs", fmt.Sprintf("%.1f", took.Seconds()), maxRebalance.Seconds())
	row(name, "a node joins, s with its settling", fmt.Sprintf("%.1f", time.Since(joined).Seconds()), "–")
	row(name, "a node joins, moves", fmt.Sprint(moved), limit)
	var errs []error
	if idle > maxIdleOps {
		errs = append(errs, fmt.Errorf("%.1f calls/s idle, at most %.0f", idle, maxIdleOps))
	}
	if took > maxRebalance || moved > limit {
		errs = append(errs, fmt.Errorf("%d moves in %v, at most %d in %v", moved, took, limit, maxRebalance))
	}
	return errors.Join(errs...)
}
