package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// apply brings the file into the embedded coordinator before anything runs.
// Routes of other files that ran in the same directory stay there, paused.
func (l *localRun) apply(ctx context.Context, c lease.Coordinator, list []catalog.Explanation) error {
	cat := localCatalog(c, l.registry, l.env)
	if l.fresh {
		for _, e := range list {
			if err := cat.Delete(ctx, e.Spec.Name); err != nil && !errors.Is(err, catalog.ErrNotFound) {
				return err
			}
		}
	}
	if err := l.applyFile(ctx, cat); err != nil {
		return err
	}
	here := map[string]bool{}
	for _, e := range list {
		here[e.Spec.Name] = true
	}
	all, err := cat.List(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		switch {
		case here[e.Name] && e.Route.Paused:
			err = cat.Resume(ctx, e.Name)
		case !here[e.Name] && !e.Route.Paused:
			err = cat.Pause(ctx, e.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applyFile applies the file. A route that was changed so that its position has no
// meaning any more is refused, but where nothing was ever committed there is no
// position to lose: the first try of a new user has failed, and its file was mended.
func (l *localRun) applyFile(ctx context.Context, cat *catalog.Catalog) error {
	apply := func() ([]catalog.Result, error) {
		return cat.Apply(ctx, l.text, catalog.ApplyOptions{
			File: l.name, LookupEnv: l.job.env, Overrides: l.overrides, Position: catalog.Position(l.options.position), ExitOnEmpty: !l.follow,
		})
	}
	results, err := apply()
	anew := false
	for _, r := range results {
		var refused *catalog.Refusal
		if !errors.As(r.Err, &refused) {
			continue
		}
		if list, _, err := cat.Checkpoints(ctx, r.Route); err == nil && !slices.ContainsFunc(list, committed) {
			if err := cat.Delete(ctx, r.Route); err != nil {
				return err
			}
			anew = true
			continue
		}
		refused.Hint = strings.Replace(refused.Hint, "apply again with --position", "mqbctl run "+l.name+" --position", 1)
	}
	if err == nil && anew {
		results, err = apply()
	}
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// committed: a run got further than to claim the record.
func committed(c catalog.Checkpoint) bool {
	return c.Err != nil || c.Record.Version > 0 || len(c.Record.Intents) > 0
}
