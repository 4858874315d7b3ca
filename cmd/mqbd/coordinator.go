package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/etcd"
	"github.com/mqbridge/mqb/lease/raft"
)

// coordinator is the engine of --coordinator and what depends on which it is.
type coordinator struct {
	lease.Coordinator
	// web is where the API is served: the listener, or what the embedded raft
	// leaves of it.
	web net.Listener
	// voters names the members of the embedded raft that vote; nil without it.
	voters func(context.Context) map[string]bool
	// members and backup are of the embedded raft; nil without it.
	members func(context.Context) []api.Member
	backup  func(context.Context, io.Writer) error
	// remove takes a member out of the embedded raft; nil without it.
	remove func(ctx context.Context, node string) error
}

func openCoordinator(ctx context.Context, o options, a access, l net.Listener, advertise string, log *slog.Logger) (coordinator, error) {
	l = a.listener(l)
	if o.etcd != nil {
		client, err := openEtcd(ctx, *o.etcd, log)
		return coordinator{Coordinator: client, web: l}, err
	}
	engine, err := raft.Open(raft.Options{
		Cluster: o.Cluster, Node: o.Name, DataDir: filepath.Join(o.DataDir, "raft"),
		Advertise: advertise, Join: o.Join, Voters: o.Voters, Log: log,
		Dial: a.dial, Verify: a.verify,
	})
	if err != nil {
		return coordinator{}, err
	}
	return coordinator{
		Coordinator: engine, web: engine.Mux(l),
		voters: func(ctx context.Context) map[string]bool { return voters(ctx, engine) },
		members: func(ctx context.Context) []api.Member {
			var out []api.Member
			for _, m := range engine.Members(ctx) {
				out = append(out, api.Member(m))
			}
			return out
		},
		backup: engine.Backup,
		remove: engine.Remove,
	}, nil
}

// openEtcd waits for an etcd that does not answer yet, as nodes and etcd may be
// started together.
func openEtcd(ctx context.Context, o etcd.Options, log *slog.Logger) (*etcd.Coordinator, error) {
	return backoff.Retry(ctx, func() (*etcd.Coordinator, error) {
		c, err := etcd.Open(ctx, o)
		switch {
		case err == nil:
			log.Info("coordinator", "url", o)
		case errors.Is(err, lease.ErrUnavailable):
			log.Warn("waiting for etcd", "url", o, "error", err)
		default:
			err = backoff.Permanent(err)
		}
		return c, err
	}, backoff.WithMaxElapsedTime(0))
}

// memberTimeout keeps a frozen member from delaying the list of nodes, which says
// by the leases who is alive.
const memberTimeout = 200 * time.Millisecond

func voters(ctx context.Context, engine *raft.Engine) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	out := map[string]bool{}
	for _, m := range engine.Members(ctx) {
		out[m.Node] = m.Voter
	}
	return out
}
