package actors

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/checkpoint/file"
	"github.com/mqbridge/mqb/checkpoint/mongodb"
	"github.com/mqbridge/mqb/checkpoint/mysql"
	"github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/checkpoint/s3"
	"github.com/mqbridge/mqb/checkpoint/sqlite"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// OpenStore opens the checkpoint store of a route: the sink itself where it is
// transactional, else the one that checkpoint_store names, else the coordinator.
// The returned function closes what was opened, the sink included.
func OpenStore(ctx context.Context, registry *connectors.Registry, spec *route.Spec, env connectors.Env,
	c lease.Coordinator, keys lease.Keys) (checkpoint.Store, func() error, error) {
	sink, err := registry.Sink(spec, env)
	if err != nil {
		return nil, nil, err
	}
	store, closeStore, err := openStore(ctx, sink, spec, c, keys)
	if err != nil {
		_ = sink.Close()
		return nil, nil, err
	}
	return store, func() error {
		err := closeStore()
		if sinkErr := sink.Close(); err == nil {
			err = sinkErr
		}
		return err
	}, nil
}

func openStore(ctx context.Context, sink connectors.Sink, spec *route.Spec, c lease.Coordinator, keys lease.Keys) (checkpoint.Store, func() error, error) {
	if tx, ok := sink.(connectors.TxSink); ok {
		if spec.Commit == route.CommitSeparate || spec.CheckpointStore != "" {
			return nil, nil, connectors.Permanent(fmt.Errorf("route %s: a transactional sink keeps its record itself; another place for it is not supported yet", spec.Name),
				"leave commit and checkpoint_store out")
		}
		store, err := tx.Store(ctx)
		return store, func() error { return nil }, err // closed with the sink
	}
	if spec.CheckpointStore == "" || spec.CheckpointStore == "coordinator" {
		s := coordinator.New(c, keys)
		return s, s.Close, nil
	}
	// Not by net/url: a list of hosts is no URL to it.
	scheme, _, _ := strings.Cut(spec.CheckpointStore, "://")
	switch scheme {
	case "postgres", "postgresql":
		u, err := url.Parse(spec.CheckpointStore)
		if err != nil {
			return nil, nil, connectors.Permanent(fmt.Errorf("checkpoint_store of route %s is no URL", spec.Name), "")
		}
		// postgres://host/db/table names the table behind the database.
		table := ""
		if db, t, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/"); ok {
			u.Path, table = "/"+db, t
		}
		return opened(postgres.Open(ctx, u.String(), table))
	case "mysql", "mariadb":
		return opened(mysql.Open(ctx, spec.CheckpointStore))
	case "mongodb", "mongodb+srv":
		return opened(mongodb.Open(ctx, spec.CheckpointStore))
	case "s3":
		s, err := s3.Open(ctx, spec.CheckpointStore)
		var unsafe *s3.UnsafeError
		if errors.As(err, &unsafe) {
			err = connectors.Permanent(err, "upgrade it, or use another store")
		}
		return opened(s, err)
	case "file":
		return opened(file.Open(ctx, spec.CheckpointStore))
	case "sqlite":
		return opened(sqlite.Open(ctx, spec.CheckpointStore))
	}
	return nil, nil, connectors.Permanent(fmt.Errorf("checkpoint_store %s: not supported yet", route.MaskURL(spec.CheckpointStore)),
		"use the default, or postgres://")
}

// opened adds the function that closes a store to what its Open returned.
func opened[S checkpoint.Store](s S, err error) (checkpoint.Store, func() error, error) {
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}
