package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Adoption is what an Adopt did, or with DryRun would do, to one record.
type Adoption struct {
	Partition, Leg string
	// Finding is why no run can go on from the record as it stands.
	Finding string
	// Action is what adopting does about it.
	Action string
	// Record is what was found; its position is where runs go on.
	Record checkpoint.Record
}

// AdoptOptions of one Adopt.
type AdoptOptions struct {
	// Store moves every record of the route to this checkpoint_store; "" takes
	// the records where they are.
	Store string
	// DryRun decides everything and writes nothing.
	DryRun bool
}

// Adopt makes a route's records such that runs go on from them, because a person
// decided so: records of another cluster's uid, of a newer generation or another
// series than a restored coordinator knows, records below the floor that the
// coordinator remembers, and, with Store, records in another store. It returns
// what it did; nothing when all records are fine.
func (c *Catalog) Adopt(ctx context.Context, name string, opts AdoptOptions) ([]Adoption, error) {
	e, err := c.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	def, err := c.stored(e.Name, e.Route.Spec)
	if err != nil {
		return nil, err
	}
	if opts.Store != "" {
		return c.move(ctx, e, def, opts)
	}
	var out []Adoption
	err = c.withStore(ctx, def.Spec, func(s checkpoint.Store) error {
		claims, err := c.claims(ctx, s, e)
		if err != nil {
			return err
		}
		uid, err := c.clusterUID(ctx)
		if err != nil {
			return err
		}
		var found []claim
		for _, cl := range claims {
			a, err := cl.judge(e, uid, s.Identity())
			if err != nil {
				return err
			}
			if a != nil {
				out, found = append(out, *a), append(found, cl)
			}
		}
		if opts.DryRun {
			return nil
		}
		for i, cl := range found {
			if err := c.adopt(ctx, s, e, uid, cl); err != nil {
				return fmt.Errorf("%w; %d of %d records were adopted, and the rest is when it is asked for again", err, i, len(found))
			}
		}
		if len(found) == 0 {
			return nil
		}
		return c.wake(ctx, e.Name)
	})
	return out, err
}

// claim is a record beside the coordinator's mark of it; either may be missing.
type claim struct {
	Checkpoint
	exists  bool
	mark    *lease.Claimed
	markRev int64
}

func (c *Catalog) claims(ctx context.Context, s checkpoint.Store, e Entry) ([]claim, error) {
	records, err := c.records(ctx, s, e.Route.UID)
	if err != nil {
		return nil, err
	}
	kvs, _, err := c.cfg.Coordinator.List(ctx, c.cfg.Keys.ClaimedBy(e.Route.UID))
	if err != nil {
		return nil, fmt.Errorf("route %s: list claims: %w", e.Name, err)
	}
	marks := make(map[string]lease.KV, len(kvs))
	for _, kv := range kvs {
		marks[kv.Key] = kv
	}
	var out []claim
	with := func(cl claim, kv lease.KV) error {
		m, err := lease.Decode[lease.Claimed](kv.Value)
		if err != nil {
			return fmt.Errorf("route %s: %s: %w", e.Name, kv.Key, err)
		}
		cl.mark, cl.markRev = &m, kv.ModRevision
		out = append(out, cl)
		return nil
	}
	for _, cp := range records {
		key := c.cfg.Keys.Claimed(e.Route.UID, cp.Partition, cp.Leg)
		kv, marked := marks[key]
		delete(marks, key)
		if !marked {
			out = append(out, claim{Checkpoint: cp, exists: true})
		} else if err := with(claim{Checkpoint: cp, exists: true}, kv); err != nil {
			return nil, err
		}
	}
	for _, kv := range kvs {
		if _, alone := marks[kv.Key]; !alone {
			continue
		}
		seg := strings.Split(strings.TrimPrefix(kv.Key, c.cfg.Keys.ClaimedBy(e.Route.UID)), "/")
		if len(seg) != 2 {
			continue
		}
		var cp Checkpoint
		cp.Partition, _ = url.PathUnescape(seg[0])
		cp.Leg, _ = url.PathUnescape(seg[1])
		cp.Key = checkpoint.Key{Cluster: c.cfg.Cluster, RouteUID: e.Route.UID, Partitioning: "1", Partition: cp.Partition, Leg: cp.Leg}.String()
		if err := with(claim{Checkpoint: cp}, kv); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// judge says what keeps runs from going on, nil if nothing does.
func (cl claim) judge(e Entry, uid, store string) (*Adoption, error) {
	refuse := func(reason, hint string) (*Adoption, error) {
		return nil, &Refusal{Route: e.Name, Reason: fmt.Sprintf("partition %s: %s", cl.Partition, reason), Hint: hint}
	}
	rec := cl.Record
	switch {
	case cl.Err != nil:
		return refuse("its record cannot be read: "+cl.Err.Error(), "restore the store, or mqbctl checkpoint reset")
	case rec.MovedTo != "":
		return refuse("its record was moved to "+rec.MovedTo, "name that store with --store")
	}
	var why, then []string
	if cl.exists {
		if rec.ClusterUID != uid {
			why = append(why, "the record belongs to cluster "+rec.ClusterUID+", this is "+uid)
			then = append(then, "takes it over")
		}
		if rec.Generation > e.Route.Generation {
			why = append(why, fmt.Sprintf("the record was claimed for generation %d, the coordinator knows %d", rec.Generation, e.Route.Generation))
			if len(rec.Intents) > 0 {
				return refuse(why[len(why)-1]+", and that generation promised the part "+rec.Intents[0].Name,
					fmt.Sprintf("apply the file that the route had last, until its generation is %d", rec.Generation))
			}
			then = append(then, "goes on under the generation that the coordinator knows")
		}
		if rec.Series != e.Route.Series && rec.Generation >= e.Route.Generation && !rec.Tombstone {
			why = append(why, fmt.Sprintf("the record is of series %s, the route is at %s", rec.Series, e.Route.Series))
			then = append(then, "takes its position into the series of the route")
		}
	}
	if m := cl.mark; m != nil {
		switch {
		case m.Store != store:
			why = append(why, fmt.Sprintf("the position was last kept in %s, the route keeps it in %s", m.Store, store))
			if !cl.exists {
				return refuse(why[len(why)-1]+", which has none", "mqbctl checkpoint reset, or apply the store it was in")
			}
			then = append(then, "forgets what is in "+m.Store)
		case !cl.exists:
			why = append(why, fmt.Sprintf("the record is gone, though version %d of epoch %d was claimed", m.Version, m.Epoch))
			then = append(then, "starts anew at the beginning")
		case rec.Version < m.Version || rec.Epoch < m.Epoch:
			why = append(why, fmt.Sprintf("the record went back to version %d of epoch %d from version %d of epoch %d", rec.Version, rec.Epoch, m.Version, m.Epoch))
			then = append(then, "goes on from the older record: what was written since is written again")
		}
	}
	if len(why) == 0 {
		return nil, nil
	}
	return &Adoption{Partition: cl.Partition, Leg: cl.Leg, Record: rec,
		Finding: strings.Join(why, "; "), Action: strings.Join(then, "; ")}, nil
}

// adopt writes the record under an unused epoch, then the mark of it. A crash
// between them leaves a record that is adopted again.
func (c *Catalog) adopt(ctx context.Context, s checkpoint.Store, e Entry, uid string, cl claim) error {
	var floor uint64
	if cl.mark != nil {
		floor = cl.mark.Epoch
	}
	own := func(old checkpoint.Record) (checkpoint.Record, error) {
		epoch, err := c.epochAbove(ctx, e, cl.Partition, max(floor, old.Epoch))
		if err != nil {
			return old, err
		}
		next := old
		next.V, next.ClusterUID, next.RouteUID, next.Series = 1, uid, e.Route.UID, e.Route.Series
		next.Generation = min(old.Generation, e.Route.Generation)
		next.Epoch, next.Run, next.Version, next.Session = epoch, "adopt-"+c.cfg.NewID(), old.Version+1, ""
		return next, nil
	}
	var rec checkpoint.Record
	var err error
	if cl.exists {
		rec, err = c.replace(ctx, s, e, cl.Checkpoint, func(checkpoint.Record) bool { return false }, own)
	} else if rec, err = own(checkpoint.Record{Generation: e.Route.Generation}); err == nil {
		err = s.Swap(ctx, cl.Key, 0, rec)
	}
	if err != nil {
		return err
	}
	key := c.cfg.Keys.Claimed(e.Route.UID, cl.Partition, cl.Leg)
	res, err := c.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.ModRevisionIs(key, cl.markRev)},
		[]lease.Op{lease.Put(key, lease.Encode(lease.Claimed{Store: s.Identity(), Epoch: rec.Epoch, Version: rec.Version}))})
	if err == nil && !res.Succeeded {
		err = ErrContended
	}
	if err != nil {
		return fmt.Errorf("route %s partition %s: write the claimed mark: %w", e.Name, cl.Partition, err)
	}
	return nil
}

// move takes every record of a route into another store (docs/protocol.md,
// stores): each old record is claimed and says from then on, for ever, where it
// went; then the new one is created. The route is paused meanwhile, so that
// nothing starts between the stores, and names the new store in the step that
// moves the marks. A move that was cut short is finished by asking for it again.
func (c *Catalog) move(ctx context.Context, e Entry, def definition, opts AdoptOptions) ([]Adoption, error) {
	if def.sink.Tier == route.TierTransactional {
		return nil, &Refusal{Route: e.Name, Reason: def.Spec.Output.Type + " keeps the record in its own transaction", Hint: "only another output keeps it elsewhere"}
	}
	spec, err := c.stored(e.Name, withStoreURL(def.YAML, opts.Store))
	if err != nil {
		return nil, err
	}
	paused := e.Route.Paused
	if !opts.DryRun && !paused {
		if e, err = c.update(ctx, e.Name, func(r *lease.Route) error { r.Paused = true; return nil }); err != nil {
			return nil, err
		}
	}
	var out []Adoption
	err = c.withStore(ctx, def.Spec, func(from checkpoint.Store) error {
		return c.withStore(ctx, spec.Spec, func(to checkpoint.Store) error {
			out, err = c.moveAll(ctx, e, def, spec, from, to, paused, opts.DryRun)
			return err
		})
	})
	if err != nil && !opts.DryRun && !paused {
		err = fmt.Errorf("%w; the route stays paused: ask for the move again, then mqbctl resume", err)
	}
	return out, err
}

func (c *Catalog) moveAll(ctx context.Context, e Entry, def, spec definition, from, to checkpoint.Store, paused, dry bool) ([]Adoption, error) {
	if from.Identity() == to.Identity() {
		return nil, &Refusal{Route: e.Name, Reason: "its positions are kept in " + to.Identity() + " already"}
	}
	claims, err := c.claims(ctx, from, e)
	if err != nil {
		return nil, err
	}
	uid, err := c.clusterUID(ctx)
	if err != nil {
		return nil, err
	}
	var out []Adoption
	for _, cl := range claims {
		hint := "mqbctl checkpoint adopt without --store first"
		moved := cl.Record.MovedTo
		switch {
		case cl.Err != nil:
			return nil, fmt.Errorf("route %s partition %s: %w", e.Name, cl.Partition, cl.Err)
		case moved != "" && moved != to.Identity():
			return nil, &Refusal{Route: e.Name, Reason: fmt.Sprintf("the record of partition %s was moved to %s", cl.Partition, moved), Hint: "name that store with --store"}
		case cl.exists && cl.Record.ClusterUID != uid:
			return nil, &Refusal{Route: e.Name, Reason: fmt.Sprintf("the record of partition %s is another cluster's", cl.Partition), Hint: hint}
		case cl.mark != nil && cl.mark.Store == from.Identity() && (!cl.exists || cl.Record.Version < cl.mark.Version || cl.Record.Epoch < cl.mark.Epoch):
			return nil, &Refusal{Route: e.Name, Reason: fmt.Sprintf("the record of partition %s went back or is gone", cl.Partition), Hint: hint}
		}
		out = append(out, Adoption{Partition: cl.Partition, Leg: cl.Leg, Record: cl.Record,
			Finding: "the record is in " + from.Identity(), Action: "moves it to " + to.Identity()})
	}
	if dry {
		return out, nil
	}
	var ops []lease.Op
	for _, cl := range claims {
		rec, err := c.moveOne(ctx, e, from, to, cl)
		if err != nil {
			return nil, err
		}
		ops = append(ops, lease.Put(c.cfg.Keys.Claimed(e.Route.UID, cl.Partition, cl.Leg),
			lease.Encode(lease.Claimed{Store: to.Identity(), Epoch: rec.Epoch, Version: rec.Version})))
	}
	next := e.Route
	next.Generation++
	next.Spec, next.Paused = spec.YAML, paused
	if def.sink.Parts {
		// The records that name older generations are in the new store now.
		next.Older = map[uint64]string{e.Route.Generation: e.Route.Spec}
		for g, text := range e.Route.Older {
			next.Older[g] = text
		}
	}
	// The marks first: they are in their store before any run looks there. One
	// that comes in between stops as foreign, and is paused anyway.
	const txnOps = 100
	for len(ops) > txnOps {
		if _, err := c.cfg.Coordinator.Txn(ctx, nil, ops[:txnOps]); err != nil {
			return nil, fmt.Errorf("route %s: write the claimed marks: %w", e.Name, err)
		}
		ops = ops[txnOps:]
	}
	key := c.cfg.Keys.Route(e.Name)
	res, err := c.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.ModRevisionIs(key, e.Revision)}, append(ops, lease.Put(key, lease.Encode(next))))
	if err == nil && !res.Succeeded {
		err = ErrContended
	}
	if err != nil {
		return nil, fmt.Errorf("move the checkpoints of route %s: %w", e.Name, err)
	}
	return out, nil
}

// moveOne ends the record in from and makes it live in to. A record that lives
// there already, above the one that ended, is what an earlier try made.
func (c *Catalog) moveOne(ctx context.Context, e Entry, from, to checkpoint.Store, cl claim) (checkpoint.Record, error) {
	gone := func(old checkpoint.Record) bool { return old.MovedTo == to.Identity() }
	ended, err := c.replace(ctx, from, e, cl.Checkpoint, gone, func(old checkpoint.Record) (checkpoint.Record, error) {
		epoch, err := c.epochAbove(ctx, e, cl.Partition, old.Epoch)
		old.Epoch, old.Run, old.Version, old.Session = epoch, "move-"+c.cfg.NewID(), old.Version+1, ""
		old.MovedTo = to.Identity()
		return old, err
	})
	if err != nil {
		return ended, err
	}
	for range maxTries {
		there, err := to.Load(ctx, cl.Key)
		if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
			return there, fmt.Errorf("route %s partition %s: look for the checkpoint in %s: %w", e.Name, cl.Partition, to.Identity(), err)
		}
		if err == nil && there.MovedTo == "" && there.Epoch > ended.Epoch {
			return there, c.epochs.RaiseEpoch(ctx, e.Route.UID, cl.Partition, there.Epoch)
		}
		next := ended
		next.MovedTo, next.Run, next.Version = "", "move-"+c.cfg.NewID(), there.Version+1
		if next.Epoch, err = c.epochAbove(ctx, e, cl.Partition, max(ended.Epoch, there.Epoch)); err != nil {
			return next, err
		}
		err = to.Swap(ctx, cl.Key, there.Version, next)
		if err == nil {
			return next, nil
		}
		if !errors.Is(err, checkpoint.ErrConflict) {
			return next, fmt.Errorf("route %s partition %s: create the checkpoint in %s: %w", e.Name, cl.Partition, to.Identity(), err)
		}
	}
	return ended, fmt.Errorf("route %s partition %s: %w", e.Name, cl.Partition, ErrContended)
}

// withStoreURL sets the key in a normalized spec, whose own keys stand at the
// beginning of a line each.
func withStoreURL(text, store string) string {
	const key = "checkpoint_store:"
	lines := strings.SplitAfter(text, "\n")
	kept := lines[:0]
	for _, l := range lines {
		if !strings.HasPrefix(l, key) {
			kept = append(kept, l)
		}
	}
	return strings.Join(kept, "") + key + fmt.Sprintf(" %q\n", store)
}
