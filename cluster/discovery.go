package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Pace of discovery. A route that just started is looked at often, so that it
// runs at once with all it has; then new files and Kafka partitions appear
// within listEvery.
const (
	listFirst   = time.Second
	listEvery   = 5 * time.Second
	listFirstly = 10 * time.Second // how long listFirst holds
	listTimeout = 10 * time.Second
	// stopWithin is how long a source may go on listing after it was told to stop.
	stopWithin = 2 * time.Second
)

// Pauses after errors grow from the first to the second. What only somebody's hand
// can mend (a wrong password, which a server may count) is asked rarely; a change of
// the route has it asked at once, by another lister.
const (
	passingFirst, passingMost     = time.Second, 30 * time.Second
	permanentFirst, permanentMost = 5 * time.Second, 80 * time.Second
)

// txnOps bounds the operations of one transaction; etcd takes 128.
const txnOps = 100

// target is a route whose partitions are to be listed.
type target struct {
	name       string
	uid        string
	generation uint64
	created    int64 // CreateRevision of the route's key
	spec       *route.Spec
	// pin is the node that the partitions are pinned to unless the source says
	// another; "" leaves them free.
	pin string
	// own is set where a node lists what is on it: ids are made unique by its
	// name, and what other nodes listed is left alone.
	own string
}

// same reports whether a lister of t can go on for u.
func (t target) same(u target) bool {
	return t.uid == u.uid && t.generation == u.generation && t.created == u.created && t.pin == u.pin && t.own == u.own
}

// discovery lists the partitions of routes and writes those that are new. Each
// route has a lister of its own, so a source that hangs or fails delays nobody
// else (invariant 12).
type discovery struct {
	coordinator lease.Coordinator
	keys        lease.Keys
	partitions  *lease.Mirror
	registry    *connectors.Registry
	env         connectors.Env
	log         *slog.Logger

	mu      sync.Mutex
	listers map[string]*lister
	running sync.WaitGroup // listers, and those that were told to end
	changed func()         // called when an error came or went
}

// lister is one route's.
type lister struct {
	target target
	cancel context.CancelFunc

	mu     sync.Mutex
	status lease.RouteStatus // Error == "" if all is well
}

// set makes targets what is listed. guard is compared in each write, so that
// what a deposed leader found is refused. ctx bounds the listers; after a
// changed guard the caller sets none first.
func (d *discovery) set(ctx context.Context, guard []lease.Compare, targets map[string]target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listers == nil {
		d.listers = map[string]*lister{}
	}
	for name, l := range d.listers {
		if t, ok := targets[name]; !ok || !l.target.same(t) {
			l.cancel()
			delete(d.listers, name)
		}
	}
	for name, t := range targets {
		if d.listers[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		l := &lister{target: t, cancel: cancel}
		d.listers[name] = l
		d.running.Go(func() {
			defer cancel()
			d.run(ctx, l, guard)
		})
	}
}

// stop tells all listers to end. Nothing that they still find is written.
func (d *discovery) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.listers {
		l.cancel()
	}
	d.listers = nil
}

// close stops all listers and waits for them, but not for a source that ignores its
// context (a directory on a server that is gone): the node could never stop.
func (d *discovery) close() {
	d.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.running.Wait()
	}()
	patience := time.NewTimer(stopWithin)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
		d.log.Warn("a source does not stop listing its partitions, and is left to itself")
	}
}

// errors lists the routes that cannot be listed at the moment.
func (d *discovery) errors() []lease.RouteStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []lease.RouteStatus
	for _, l := range d.listers {
		l.mu.Lock()
		if l.status.Error != "" {
			out = append(out, l.status)
		}
		l.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b lease.RouteStatus) int { return cmp.Compare(a.Route, b.Route) })
	return out
}

// run lists until ctx ends. The source is built once for the route's generation.
func (d *discovery) run(ctx context.Context, l *lister, guard []lease.Compare) {
	var source connectors.Source
	defer func() {
		if source != nil {
			_ = source.Close()
		}
	}()
	began := time.Now()
	passing, permanent := pauses(passingFirst, passingMost), pauses(permanentFirst, permanentMost)
	for ctx.Err() == nil {
		err := d.list(ctx, l.target, &source, guard)
		if ctx.Err() != nil {
			return
		}
		next := listEvery
		switch {
		case err == nil:
			passing.Reset()
			permanent.Reset()
			if time.Since(began) < listFirstly {
				next = listFirst
			}
		case connectors.Classify(err) == connectors.ClassPermanent:
			next = permanent.NextBackOff()
		default:
			next = passing.NextBackOff()
		}
		d.report(l, err, next)
		sleep(ctx, next)
	}
}

func pauses(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	return b
}

// list asks the source once. A panic of a connector is its route's error.
func (d *discovery) list(ctx context.Context, t target, source *connectors.Source, guard []lease.Compare) (err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
			d.log.Error("source panicked while listing partitions", "route", t.name, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	if *source == nil {
		if *source, err = d.registry.Source(t.spec, d.env); err != nil {
			return err
		}
	}
	found, err := (*source).Partitions(ctx)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	return d.store(ctx, t, found, guard)
}

// report keeps the error for people, and logs it when it is news.
func (d *discovery) report(l *lister, err error, next time.Duration) {
	l.mu.Lock()
	was := l.status
	now := lease.RouteStatus{}
	if err != nil {
		now = lease.RouteStatus{Route: l.target.name, Error: "list partitions: " + err.Error(), Since: was.Since, NextTry: time.Now().Add(next)}
		if was.Error == "" {
			now.Since = time.Now()
		}
	}
	l.status = now
	l.mu.Unlock()
	if was.Error == now.Error {
		return
	}
	if err != nil {
		d.log.Warn("cannot list partitions", "route", l.target.name, "error", err)
	} else {
		d.log.Info("partitions listed again", "route", l.target.name)
	}
	if d.changed != nil {
		d.changed()
	}
}

// store writes partitions that are new or changed, and deletes those that only
// an earlier generation's source knew. One that merely vanished from the list
// stays: its owner may have read it and not yet committed.
func (d *discovery) store(ctx context.Context, t target, found []connectors.Partition, guard []lease.Compare) error {
	stored := d.partitions.Snapshot()
	prefix := d.keys.Partitions(t.name)
	ops := map[string]lease.Op{}
	listed := map[string]bool{}
	// A partition that turns up beside others that are known is new: what was
	// written to it before anybody looked must not be skipped.
	known := false
	for kv := range stored.All(prefix) {
		known = known || kv.ModRevision >= t.created
	}
	for _, p := range found {
		p := t.partition(p)
		key := d.keys.Partition(t.name, p.ID)
		listed[key] = true
		p.Late = known
		if kv, ok := stored.Get(key); ok && kv.ModRevision >= t.created {
			was, err := lease.Decode[lease.Partition](kv.Value)
			p.Late = err == nil && was.Late
		}
		value := lease.Encode(p)
		if kv, ok := stored.Get(key); !ok || kv.ModRevision < t.created || !bytes.Equal(kv.Value, value) {
			ops[key] = lease.Put(key, value)
		}
	}
	for kv := range stored.All(prefix) {
		if listed[kv.Key] || kv.ModRevision < t.created {
			continue // the leader removes what an earlier route left
		}
		p, err := lease.Decode[lease.Partition](kv.Value)
		if err == nil && p.Generation < t.generation && (t.own == "" || p.Node == t.own) {
			ops[kv.Key] = lease.Delete(kv.Key)
		}
	}
	if len(ops) == 0 {
		return nil
	}
	// The route must be the one whose source was asked, not one re-created
	// under its name.
	guard = append(slices.Clone(guard), lease.CreateRevisionIs(d.keys.Route(t.name), t.created))
	for batch := range batches(ops) {
		res, err := d.coordinator.Txn(ctx, guard, batch)
		if err != nil {
			return fmt.Errorf("write partitions: %w", err)
		}
		if !res.Succeeded {
			return errStale
		}
	}
	d.log.Info("partitions written", "route", t.name, "changes", len(ops))
	return nil
}

// errStale: what a decision was made on has changed; whoever changed it takes over.
var errStale = errors.New("the route or the scheduler's leader changed meanwhile")

// partition is what is stored of a source's partition.
func (t target) partition(p connectors.Partition) lease.Partition {
	if t.own != "" && p.Node == "" && !strings.HasPrefix(p.ID, t.own+"/") {
		p.ID = t.own + "/" + p.ID
	}
	return lease.Partition{
		ID:         p.ID,
		Node:       cmp.Or(p.Node, t.pin),
		Weight:     p.Weight,
		Attributes: p.Attributes,
		PartSource: p.PartSource,
		PartNumber: p.PartNumber,
		Generation: t.generation,
	}
}

// batches yields the operations in key order, in groups that fit a transaction.
func batches(ops map[string]lease.Op) func(yield func([]lease.Op) bool) {
	return func(yield func([]lease.Op) bool) {
		for keys := range slices.Chunk(slices.Sorted(maps.Keys(ops)), txnOps) {
			batch := make([]lease.Op, len(keys))
			for i, k := range keys {
				batch[i] = ops[k]
			}
			if !yield(batch) {
				return
			}
		}
	}
}
