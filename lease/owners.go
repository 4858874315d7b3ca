package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// ErrNotAssigned: the partition is not assigned to this node any more, or its
// route or this node's registration changed since the caller looked.
var ErrNotAssigned = errors.New("lease: partition not assigned")

// ErrOwned matches every OwnedError.
var ErrOwned = errors.New("lease: partition owned by another")

// OwnedError says who owns a partition that could not be acquired.
type OwnedError struct {
	Route, Partition string
	Owner            Owner
}

func (e *OwnedError) Error() string {
	return fmt.Sprintf("lease: route %s partition %s: owned by %s since epoch %d", e.Route, e.Partition, e.Owner.Node, e.Owner.Epoch)
}

// Is makes errors.Is(err, ErrOwned) true.
func (e *OwnedError) Is(target error) bool { return target == ErrOwned }

// Owners writes ownership records and epoch counters for one node. Safe for
// concurrent use; calls for one partition must not overlap, since an epoch read
// back after a lost reply is taken for the caller's own.
type Owners struct {
	c              Coordinator
	keys           Keys
	node, instance string
	session        *Session
}

// NewOwners returns the owners of a node; instance is that of its Node key.
func NewOwners(c Coordinator, keys Keys, node, instance string, s *Session) *Owners {
	return &Owners{c: c, keys: keys, node: node, instance: instance, session: s}
}

// AcquireRequest names a partition and what its caller has seen.
type AcquireRequest struct {
	Route, RouteUID string
	Generation      uint64
	Partition       string
	AssignmentRev   int64 // ModRevision of the assignment that names this node
	RouteRev        int64 // ModRevision of the route that has Generation
	// Before says why this process's run before ended, if it had one and kept
	// the owner key; for the history.
	Before string
}

// Owned is a partition that this node holds for one run.
type Owned struct {
	Route, RouteUID string
	Partition       string
	Generation      uint64
	// Epoch is this run's alone (invariant 6).
	Epoch uint64
	// Session is the session's generation that the ownership hangs on; its gate
	// is Session.GateOf of it.
	Session uint64
	// End says why the run ended, for the history; to be set before Release.
	End string

	owner []byte
	// history as the acquire wrote it, at revision.
	history  []byte
	revision int64
}

// acquireTries bounds how often Acquire starts over because a key it compared
// had changed; each time somebody else made progress.
const acquireTries = 8

// Acquire takes the partition in one transaction: nobody owns it (or this very
// process does, from an earlier run), the epoch counter, the assignment, the
// route and this node's registration are as read → owner and counter + 1 are
// written. Errors: ErrNotAssigned, ErrOwned (*OwnedError), ErrGateClosed,
// ErrLeaseNotFound, or the coordinator's, after which the partition may or may
// not be held: call again, or Drop.
func (o *Owners) Acquire(ctx context.Context, r AcquireRequest) (Owned, error) {
	for range acquireTries {
		owned, again, err := o.acquire(ctx, r)
		if err != nil {
			return Owned{}, fmt.Errorf("acquire route %s partition %s: %w", r.Route, r.Partition, err)
		}
		if !again {
			return owned, nil
		}
	}
	return Owned{}, fmt.Errorf("acquire route %s partition %s: contended: %w", r.Route, r.Partition, ErrNotAssigned)
}

func (o *Owners) acquire(ctx context.Context, r AcquireRequest) (_ Owned, again bool, err error) {
	h := o.session.held.Load()
	if !o.session.alive(h) {
		return Owned{}, false, ErrGateClosed
	}
	ownerKey, epochKey := o.keys.Owner(r.Route, r.Partition), o.keys.Epoch(r.RouteUID, r.Partition)
	assignmentKey, routeKey, nodeKey := o.keys.Assignment(r.Route, r.Partition), o.keys.Route(r.Route), o.keys.Node(o.node)
	historyKey := o.keys.History(r.RouteUID, r.Partition)
	got, err := o.get(ctx, ownerKey, epochKey, assignmentKey, routeKey, nodeKey, historyKey)
	if err != nil {
		return Owned{}, false, err
	}
	if rev(got[2]) != r.AssignmentRev || rev(got[3]) != r.RouteRev {
		return Owned{}, false, ErrNotAssigned
	}
	if self, err := decode[Node](got[4]); err != nil || self.Instance != o.instance {
		return Owned{}, false, fmt.Errorf("node %s is not registered as this process: %w", o.node, ErrNotAssigned)
	}
	if got[0] != nil {
		current, err := decode[Owner](got[0])
		if err != nil {
			return Owned{}, false, err
		}
		if !o.ours(current) {
			return Owned{}, false, &OwnedError{Route: r.Route, Partition: r.Partition, Owner: current}
		}
	}
	epoch, err := counter(got[1])
	if err != nil {
		return Owned{}, false, err
	}
	owned := Owned{
		Route: r.Route, RouteUID: r.RouteUID, Partition: r.Partition,
		Generation: r.Generation, Epoch: epoch + 1, Session: h.generation,
		owner: Encode(Owner{Node: o.node, Instance: o.instance, Epoch: epoch + 1, Generation: r.Generation}),
	}
	before, _ := decode[History](got[5]) // one that cannot be read costs itself alone
	owned.history = Encode(before.begin(o, owned.Epoch, r.Before, time.Now().UTC().Truncate(time.Millisecond)))
	res, err := o.c.Txn(ctx,
		[]Compare{
			ModRevisionIs(ownerKey, rev(got[0])),
			ModRevisionIs(epochKey, rev(got[1])), // the epoch goes to one run only (invariant 6)
			ModRevisionIs(assignmentKey, r.AssignmentRev),
			ModRevisionIs(routeKey, r.RouteRev),
			ModRevisionIs(nodeKey, rev(got[4])),
		},
		[]Op{PutLeased(ownerKey, owned.owner, h.id), Put(epochKey, formatCounter(epoch+1)), Put(historyKey, owned.history)})
	switch {
	case errors.Is(err, ErrUnavailable):
		// The outcome is unknown, so look. If the write is still on its way it is
		// found by the next call, whose comparison of the counter it then breaks.
		now, _, readErr := o.c.Get(ctx, ownerKey)
		if readErr != nil || now == nil || string(now.Value) != string(owned.owner) {
			return Owned{}, false, err
		}
		owned.revision = now.ModRevision
		return owned, false, nil
	case err != nil:
		return Owned{}, false, err
	}
	owned.revision = res.Revision
	return owned, !res.Succeeded, nil
}

// get reads the keys side by side. They need not be of one revision: the
// transaction compares each of them.
func (o *Owners) get(ctx context.Context, keys ...string) ([]*KV, error) {
	kvs := make([]*KV, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	for i, key := range keys {
		g.Go(func() (err error) {
			kvs[i], _, err = o.c.Get(ctx, key)
			return err
		})
	}
	return kvs, g.Wait()
}

func (o *Owners) ours(w Owner) bool { return w.Node == o.node && w.Instance == o.instance }

// Mine asks the coordinator whether the run's ownership record still stands.
func (o *Owners) Mine(ctx context.Context, owned Owned) (bool, error) {
	kv, _, err := o.c.Get(ctx, o.keys.Owner(owned.Route, owned.Partition))
	if err != nil {
		return false, fmt.Errorf("owner of route %s partition %s: %w", owned.Route, owned.Partition, err)
	}
	return kv != nil && string(kv.Value) == string(owned.owner), nil
}

// Release deletes the ownership record if it is still this run's; if it is not
// there is nothing to do, and no error. After an error the record may stand.
func (o *Owners) Release(ctx context.Context, owned Owned) error {
	key := o.keys.Owner(owned.Route, owned.Partition)
	compares, ops := []Compare{ValueIs(key, owned.owner)}, []Op{Delete(key)}
	err := o.releaseWithHistory(ctx, owned, compares, ops)
	if errors.Is(err, errNoHistory) {
		_, err = o.c.Txn(ctx, compares, ops)
	}
	if errors.Is(err, ErrUnavailable) {
		if mine, readErr := o.Mine(ctx, owned); readErr == nil && !mine {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("release route %s partition %s epoch %d: %w", owned.Route, owned.Partition, owned.Epoch, err)
	}
	return nil
}

// errNoHistory: the history is not what the acquire wrote.
var errNoHistory = errors.New("history changed")

// releaseWithHistory writes the end of the run in the transaction that gives the
// partition back. The history goes with its route: what a release finds deleted
// stays deleted.
func (o *Owners) releaseWithHistory(ctx context.Context, owned Owned, compares []Compare, ops []Op) error {
	history, err := Decode[History](owned.history)
	if err != nil || len(history) == 0 {
		return errNoHistory
	}
	key := o.keys.History(owned.RouteUID, owned.Partition)
	res, err := o.c.Txn(ctx, append(compares, ModRevisionIs(key, owned.revision)),
		append(ops, Put(key, Encode(history.end(cmp.Or(owned.End, "released"), time.Now().UTC().Truncate(time.Millisecond))))))
	if err == nil && !res.Succeeded {
		return errNoHistory
	}
	return err
}

// Drop deletes the ownership record if it is this process's, of whichever run,
// and reports whether there was one. It serves the fenced path, and a node that
// finds a record of its own without a run.
func (o *Owners) Drop(ctx context.Context, route, partition string) (dropped bool, err error) {
	key := o.keys.Owner(route, partition)
	err = o.update(ctx, key, func(kv *KV) (op Op, write bool, err error) {
		w, err := decode[Owner](kv)
		if kv == nil || err != nil || !o.ours(w) {
			return Op{}, false, err
		}
		dropped = true
		return Delete(key), true, nil
	})
	if err != nil {
		return false, fmt.Errorf("drop route %s partition %s: %w", route, partition, err)
	}
	return dropped, nil
}

// RaiseEpoch makes the partition's counter at least atLeast, so that the next
// run's epoch is above whatever a store was found to hold.
func (o *Owners) RaiseEpoch(ctx context.Context, routeUID, partition string, atLeast uint64) error {
	key := o.keys.Epoch(routeUID, partition)
	err := o.update(ctx, key, func(kv *KV) (Op, bool, error) {
		n, err := counter(kv)
		return Put(key, formatCounter(atLeast)), n < atLeast, err
	})
	if err != nil {
		return fmt.Errorf("raise epoch of %s partition %s: %w", routeUID, partition, err)
	}
	return nil
}

// NextEpoch takes the partition's next epoch for an operator's claim. After a
// lost reply an epoch may be skipped; none is given out twice (invariant 6).
func (o *Owners) NextEpoch(ctx context.Context, routeUID, partition string) (epoch uint64, err error) {
	key := o.keys.Epoch(routeUID, partition)
	err = o.update(ctx, key, func(kv *KV) (Op, bool, error) {
		n, err := counter(kv)
		epoch = n + 1
		return Put(key, formatCounter(epoch)), true, err
	})
	if err != nil {
		return 0, fmt.Errorf("next epoch of %s partition %s: %w", routeUID, partition, err)
	}
	return epoch, nil
}

// Claimed reads the low-water mark of a checkpoint record, nil when there is none.
func (o *Owners) Claimed(ctx context.Context, routeUID, partition, leg string) (*Claimed, error) {
	kv, _, err := o.c.Get(ctx, o.keys.Claimed(routeUID, partition, leg))
	if err == nil && kv != nil {
		var c Claimed
		if c, err = decode[Claimed](kv); err == nil {
			return &c, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("claimed mark of %s partition %s leg %s: %w", routeUID, partition, leg, err)
	}
	return nil, nil
}

// SetClaimed raises the low-water mark. Within one store it never goes back,
// whatever order writers come in; another store replaces it.
func (o *Owners) SetClaimed(ctx context.Context, routeUID, partition, leg string, c Claimed) error {
	key := o.keys.Claimed(routeUID, partition, leg)
	err := o.update(ctx, key, func(kv *KV) (Op, bool, error) {
		old, err := decode[Claimed](kv)
		next := c
		if kv != nil && old.Store == c.Store {
			next.Epoch, next.Version = max(old.Epoch, c.Epoch), max(old.Version, c.Version)
		}
		return Put(key, Encode(next)), kv == nil || next != old, err
	})
	if err != nil {
		return fmt.Errorf("claimed mark of %s partition %s leg %s: %w", routeUID, partition, leg, err)
	}
	return nil
}

// update reads key, lets change decide and writes only over what was read, until
// nobody came in between. change must bear being called again after a write
// whose outcome is unknown took effect.
func (o *Owners) update(ctx context.Context, key string, change func(*KV) (op Op, write bool, err error)) error {
	for lost := 0; ; {
		kv, _, err := o.c.Get(ctx, key)
		if err != nil {
			return err
		}
		op, write, err := change(kv)
		if err != nil || !write {
			return err
		}
		res, err := o.c.Txn(ctx, []Compare{ModRevisionIs(key, rev(kv))}, []Op{op})
		if err == nil && res.Succeeded {
			return nil
		}
		if err != nil {
			if lost++; lost == updateTries || ctx.Err() != nil || !errors.Is(err, ErrUnavailable) {
				return err
			}
		}
	}
}

// updateTries bounds how many writes of unknown outcome update looks after.
const updateTries = 4

// rev is what ModRevisionIs compares; 0 for an absent key.
func rev(kv *KV) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}

// decode reads a key's value; an absent key is the zero value.
func decode[T any](kv *KV) (T, error) {
	if kv == nil {
		var zero T
		return zero, nil
	}
	v, err := Decode[T](kv.Value)
	if err != nil {
		return v, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return v, nil
}

func counter(kv *KV) (uint64, error) {
	if kv == nil {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(kv.Value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return n, nil
}

func formatCounter(n uint64) []byte { return strconv.AppendUint(nil, n, 10) }
