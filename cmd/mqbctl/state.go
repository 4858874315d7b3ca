package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/raft"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// localCatalog is the catalog of an embedded node.
func localCatalog(c lease.Coordinator, registry *connectors.Registry, env connectors.Env) *catalog.Catalog {
	keys := lease.NewKeys(localNode)
	return catalog.New(catalog.Config{
		Coordinator: c, Keys: keys, Cluster: localNode, Registry: registry,
		OpenStore: func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
			return actors.OpenStore(ctx, registry, spec, env, c, keys)
		},
	})
}

// endDeadLease ends the lease of a run that was killed, which would keep this one
// waiting for as long as it lasts. Whoever opened the coordinator holds the lock of
// its files, and the system takes that from a process only when it is dead; what it
// had written by then is fenced by the next epoch as ever.
func endDeadLease(ctx context.Context, c lease.Coordinator) error {
	node, _, err := c.Get(ctx, lease.NewKeys(localNode).Node(localNode))
	if err != nil || node == nil {
		return err
	}
	return c.Revoke(ctx, node.Lease)
}

// localCheckpoints reads the records of a route that run or copy moved, whose state
// is in dir. No run may be using it.
func localCheckpoints(ctx context.Context, dir, name string) (api.Checkpoints, error) {
	if !hasState(dir) {
		return api.Checkpoints{}, &api.Error{
			Message: fmt.Sprintf("%s holds no state of mqbctl run or copy", dir), Code: api.CodeNotFound,
			Hint: "--data-dir is the one of the run, .mqb in the directory it ran in; a copy that was cut short names its own",
		}
	}
	c, err := raft.Open(raft.Options{
		Cluster: localNode, Node: localNode, DataDir: filepath.Join(dir, "raft"), Advertise: localNode, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return api.Checkpoints{}, err
	}
	defer c.Close()
	env := connectors.Env{Node: localNode, DataDir: dir, Budget: message.NewBudget(message.DefaultBudget)}
	list, store, err := localCatalog(c, builtin.Registry(), env).Checkpoints(ctx, name)
	if err != nil {
		return api.Checkpoints{}, err
	}
	return api.CheckpointsView(name, store, list), nil
}

func hasState(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "raft", "raft.db"))
	return err == nil
}
