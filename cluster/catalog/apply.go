package catalog

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Position is where a changed route goes on when it cannot simply go on.
type Position string

const (
	// PositionAuto goes on where that is safe and refuses where it is not.
	PositionAuto Position = ""
	// PositionKeep goes on at the position as it stands.
	PositionKeep Position = "keep"
	// PositionEarliest starts a new series at the start of the input.
	PositionEarliest Position = "earliest"
	// PositionLatest is of the dialect and not supported yet.
	PositionLatest Position = "latest"
)

// ApplyOptions of one Apply.
type ApplyOptions struct {
	Position Position
	// DryRun decides everything and writes nothing.
	DryRun bool
	// File names the file in errors; "" is fine.
	File string
	// LookupEnv fills ${VAR}; nil leaves it as it is.
	LookupEnv route.LookupEnv
	// Overrides set values over those of the file.
	Overrides []route.Override
	// ExitOnEmpty sets exit_on_empty on every route, whatever the file says.
	ExitOnEmpty bool
}

// Outcome is what an apply did to one route.
type Outcome string

const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
	Refused   Outcome = "refused"
)

// Result is what an apply did, or with DryRun would do, to one route.
type Result struct {
	Route      string
	Outcome    Outcome
	Generation uint64
	Guarantee  route.Guarantee
	// Position says in words where the route goes on; "" when unchanged.
	Position string
	// Changes are those because of which a position cannot simply carry over.
	Changes []string
	// Err is set when the outcome is refused.
	Err error
}

// maxOlder bounds the older specs of a route. Each is needed only while a record
// names its generation, which ends with the next claim of that partition.
const maxOlder = 16

// Apply brings the routes of a file into the catalog. Routes that the file does
// not name stay as they are. An invalid file (*Invalid) changes nothing; after
// that each route succeeds or is refused by itself, in one step.
func (c *Catalog) Apply(ctx context.Context, file []byte, opts ApplyOptions) ([]Result, error) {
	switch opts.Position {
	case PositionAuto, PositionKeep, PositionEarliest:
	case PositionLatest:
		return nil, &Refusal{Reason: "position latest is not supported yet", Hint: "use keep or earliest"}
	default:
		return nil, &Refusal{Reason: fmt.Sprintf("unknown position %q", opts.Position), Hint: "use keep or earliest"}
	}
	defs, _, err := decode(c.cfg.Registry, file, opts.File, opts.LookupEnv, opts.Overrides)
	if err != nil {
		return nil, err
	}
	out := make([]Result, 0, len(defs))
	for _, def := range defs {
		if opts.ExitOnEmpty {
			if def, err = c.stored(def.Spec.Name, withExitOnEmpty(def.YAML)); err != nil {
				return nil, err
			}
		}
		res, err := c.applyOne(ctx, def, opts)
		if err != nil {
			res = Result{Route: def.Spec.Name, Outcome: Refused, Err: err}
		}
		res.Guarantee = def.inferred.Guarantee
		out = append(out, res)
	}
	return out, nil
}

func (c *Catalog) applyOne(ctx context.Context, def definition, opts ApplyOptions) (Result, error) {
	name := def.Spec.Name
	for range maxTries {
		e, err := c.find(ctx, name)
		if err != nil {
			return Result{}, err
		}
		if e == nil {
			res := Result{Route: name, Outcome: Created, Generation: 1, Position: "starts at the beginning"}
			if opts.DryRun {
				return res, nil
			}
			ok, _, err := c.write(ctx, name, 0, lease.Route{
				UID: c.cfg.NewID(), Series: c.cfg.NewID(), Generation: 1, Spec: def.YAML,
			})
			if err != nil || ok {
				return res, err
			}
			continue
		}
		if e.Route.Spec == def.YAML {
			return Result{Route: name, Outcome: Unchanged, Generation: e.Route.Generation}, nil
		}
		res, ok, err := c.change(ctx, *e, def, opts)
		if err != nil || ok {
			return res, err
		}
	}
	return Result{}, fmt.Errorf("apply route %s: %w", name, ErrContended)
}

// change writes a new generation over e; ok is false when somebody was faster.
func (c *Catalog) change(ctx context.Context, e Entry, def definition, opts ApplyOptions) (res Result, ok bool, err error) {
	next := e.Route
	next.Generation++
	next.Spec = def.YAML
	next.Older = nil
	res = Result{Route: e.Name, Outcome: Changed, Generation: next.Generation, Position: "goes on"}

	old, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		// Written by a version that knows more than this one.
		res.Changes = []string{"the spec before cannot be read any more"}
	} else {
		res.Changes = old.breaks(def)
	}
	if opts.Position == PositionEarliest {
		res.Position = "starts anew at the beginning"
		next.Series = c.cfg.NewID()
		if opts.DryRun {
			return res, true, nil
		}
		err := c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
			return c.startSeries(ctx, s, e, next)
		})
		return res, err == nil, err
	}
	if len(res.Changes) > 0 && opts.Position == PositionAuto {
		return res, false, &Refusal{
			Route:  e.Name,
			Reason: "its position cannot simply carry over: " + strings.Join(res.Changes, ", "),
			Hint:   "apply again with --position keep to go on where it stands, or --position earliest to start anew",
		}
	}
	if err == nil {
		if err := c.reachable(ctx, e.Name, old, def); err != nil {
			return res, false, err
		}
		if old.sink.Parts {
			if next.Older, err = c.older(ctx, e, old); err != nil {
				return res, false, err
			}
		}
	}
	if opts.DryRun {
		return res, true, nil
	}
	ok, _, err = c.write(ctx, e.Name, e.Revision, next)
	return res, ok, err
}

// reachable refuses to keep a position whose record the new generation would
// not find: under another name, or in another store.
func (c *Catalog) reachable(ctx context.Context, name string, old, def definition) error {
	const hint = "apply with --position earliest to start anew"
	if old.Spec.SharedStorage != def.Spec.SharedStorage {
		return &Refusal{Route: name, Reason: "its partitions are named otherwise under another shared_storage", Hint: hint}
	}
	if old.sameStore(def) && old.sameEndpoint(def, route.Output) {
		return nil
	}
	var before, after string
	for _, s := range []struct {
		spec *route.Spec
		into *string
	}{{old.Spec, &before}, {def.Spec, &after}} {
		err := c.withStore(ctx, s.spec, func(store checkpoint.Store) error {
			*s.into = store.Identity()
			return nil
		})
		if err != nil {
			return err
		}
	}
	if before != after {
		return &Refusal{
			Route:  name,
			Reason: fmt.Sprintf("its position is kept in %s and would be looked for in %s", before, after),
			Hint:   "move it with mqbctl checkpoint adopt --store and apply again, or " + hint,
		}
	}
	return nil
}

// older is what next generations may still have to finish: the specs of every
// generation that a record or one of its intents names. A run of an older
// generation can promise parts until its record is claimed under a newer one,
// so the record's own generation counts too, and the one that is replaced now.
func (c *Catalog) older(ctx context.Context, e Entry, old definition) (map[uint64]string, error) {
	out := map[uint64]string{e.Route.Generation: e.Route.Spec}
	if len(e.Route.Older) == 0 {
		return out, nil
	}
	err := c.withStore(ctx, old.Spec, func(s checkpoint.Store) error {
		records, err := c.records(ctx, s, e.Route.UID)
		if err != nil {
			return err
		}
		needed := map[uint64]bool{}
		for _, cp := range records {
			if cp.Err != nil {
				// Unreadable: it may name any of them.
				maps.Copy(out, e.Route.Older)
				return nil
			}
			needed[cp.Record.Generation] = true
			for _, in := range cp.Record.Intents {
				needed[in.Generation] = true
			}
		}
		for g, spec := range e.Route.Older {
			if needed[g] {
				out[g] = spec
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) > maxOlder {
		return nil, &Refusal{
			Route:  e.Name,
			Reason: fmt.Sprintf("parts of %d older generations are not finished yet", len(out)),
			Hint:   "wait until its partitions run again; mqbctl leases shows what holds them up",
		}
	}
	return out, nil
}
