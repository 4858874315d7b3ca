// Package catalog keeps the routes of a cluster in its coordinator: it is where
// apply, delete, pause and checkpoint resets happen. It writes what is wanted
// and fences what must not go on; the runs themselves follow the coordinator.
package catalog

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Config is what a Catalog works with.
type Config struct {
	Coordinator lease.Coordinator
	Keys        lease.Keys
	// Cluster is the name in checkpoint keys.
	Cluster  string
	Registry *connectors.Registry
	// OpenStore opens the checkpoint store of a route; the returned function
	// closes it. Only resets and changes of part sinks need it.
	OpenStore func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error)
	// Env is what sources are built with, to make positions of what people say.
	Env connectors.Env
	// NewID makes uids and series; nil means random ones.
	NewID func() string
}

// Catalog changes routes. Safe for concurrent use, also from several nodes: each
// write compares the revision that it was decided on.
type Catalog struct {
	cfg    Config
	epochs *lease.Owners // for its counters only: a catalog owns nothing
}

// New makes a catalog.
func New(cfg Config) *Catalog {
	if cfg.NewID == nil {
		cfg.NewID = randomID
	}
	return &Catalog{cfg: cfg, epochs: lease.NewOwners(cfg.Coordinator, cfg.Keys, "", "", nil)}
}

// randomID has 80 random bits: short enough to read in a key, too long to meet twice.
func randomID() string { return strings.ToLower(rand.Text()[:16]) }

// Entry is a route of the catalog.
type Entry struct {
	Name  string
	Route lease.Route
	// Revision of the last change, for compares.
	Revision int64
}

// Get returns one route; ErrNotFound.
func (c *Catalog) Get(ctx context.Context, name string) (Entry, error) {
	e, err := c.find(ctx, name)
	if err == nil && e == nil {
		err = fmt.Errorf("route %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return Entry{}, err
	}
	return *e, nil
}

// find returns nil if the route does not exist.
func (c *Catalog) find(ctx context.Context, name string) (*Entry, error) {
	kv, _, err := c.cfg.Coordinator.Get(ctx, c.cfg.Keys.Route(name))
	if err != nil {
		return nil, fmt.Errorf("read route %s: %w", name, err)
	}
	if kv == nil {
		return nil, nil
	}
	return entry(name, *kv)
}

func entry(name string, kv lease.KV) (*Entry, error) {
	r, err := lease.Decode[lease.Route](kv.Value)
	if err != nil {
		return nil, fmt.Errorf("read route %s: %w", name, err)
	}
	return &Entry{Name: name, Route: r, Revision: kv.ModRevision}, nil
}

// List returns every route in the order of names.
func (c *Catalog) List(ctx context.Context) ([]Entry, error) {
	kvs, _, err := c.cfg.Coordinator.List(ctx, c.cfg.Keys.Routes())
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := make([]Entry, 0, len(kvs))
	for _, kv := range kvs {
		name, ok := c.cfg.Keys.SplitName(kv.Key)
		if !ok {
			continue
		}
		e, err := entry(name, kv)
		if err != nil {
			return nil, err
		}
		out = append(out, *e)
	}
	return out, nil
}

// Delete removes a route with its assignments and partitions. Owners see it go
// and release what they hold. Epochs and low-water marks stay for ever: a frozen
// owner may still come back with one of them (invariant 6), and a route created
// again under the name gets another uid, so it never meets the old records.
func (c *Catalog) Delete(ctx context.Context, name string) error {
	for range maxTries {
		e, err := c.Get(ctx, name)
		if err != nil {
			return err
		}
		key := c.cfg.Keys.Route(name)
		res, err := c.cfg.Coordinator.Txn(ctx,
			[]lease.Compare{lease.ModRevisionIs(key, e.Revision)},
			[]lease.Op{
				lease.Delete(key),
				lease.DeletePrefix(c.cfg.Keys.Assignments(name)),
				lease.DeletePrefix(c.cfg.Keys.Partitions(name)),
				lease.DeletePrefix(c.cfg.Keys.Pins(name)),
				lease.DeletePrefix(c.cfg.Keys.Histories(e.Route.UID)),
			})
		if err != nil {
			return fmt.Errorf("delete route %s: %w", name, err)
		}
		if res.Succeeded {
			return nil
		}
	}
	return fmt.Errorf("delete route %s: %w", name, ErrContended)
}

// Pause stops a route's runs and keeps its positions.
func (c *Catalog) Pause(ctx context.Context, name string) error { return c.setPaused(ctx, name, true) }

// Resume undoes Pause.
func (c *Catalog) Resume(ctx context.Context, name string) error {
	return c.setPaused(ctx, name, false)
}

func (c *Catalog) setPaused(ctx context.Context, name string, paused bool) error {
	_, err := c.update(ctx, name, func(r *lease.Route) error {
		r.Paused = paused
		return nil
	})
	return err
}

// maxTries bounds compare-and-write loops; each loss means that somebody else's
// write went through.
const maxTries = 10

// update changes an existing route by compare and write, and returns it.
func (c *Catalog) update(ctx context.Context, name string, change func(*lease.Route) error) (Entry, error) {
	for range maxTries {
		e, err := c.Get(ctx, name)
		if err != nil {
			return Entry{}, err
		}
		if err := change(&e.Route); err != nil {
			return Entry{}, err
		}
		ok, rev, err := c.write(ctx, name, e.Revision, e.Route)
		if err != nil {
			return Entry{}, err
		}
		if ok {
			e.Revision = rev
			return e, nil
		}
	}
	return Entry{}, fmt.Errorf("change route %s: %w", name, ErrContended)
}

// write puts the route if its last change was at revision (0: if it is absent).
func (c *Catalog) write(ctx context.Context, name string, revision int64, r lease.Route) (bool, int64, error) {
	key := c.cfg.Keys.Route(name)
	res, err := c.cfg.Coordinator.Txn(ctx,
		[]lease.Compare{lease.ModRevisionIs(key, revision)},
		[]lease.Op{lease.Put(key, lease.Encode(r))})
	if err != nil {
		return false, 0, fmt.Errorf("write route %s: %w", name, err)
	}
	return res.Succeeded, res.Revision, nil
}
