package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/mqbridge/mqb/message"
)

// ClaimRequest is what a run brings when it claims a record.
type ClaimRequest struct {
	Key        string
	ClusterUID string
	RouteUID   string
	Series     string
	Generation uint64
	Epoch      uint64
	Run        string
	// Session names the writer session of this run, for the successor that has
	// to end it; "" where there is none.
	Session string
	// Identify checks the source against the identity in the record ("" at the
	// first claim) and returns the one to store. nil: the source has none.
	Identify func(ctx context.Context, recorded string) (string, error)
	// Floor is the coordinator's claimed mark, nil if there is none yet.
	Floor *Floor
}

// Floor is the least that a claim must find: a record below it went back.
type Floor struct {
	Store   string
	Epoch   uint64
	Version uint64
}

// Claimed is a successful claim.
type Claimed struct {
	// Record is as stored now: own epoch and run.
	Record Record
	// Resumed is false when there was no position before.
	Resumed bool
}

// maxClaimTries bounds the race of a claim against commits of the run it fences:
// each conflict means that somebody else made progress, and a claim raises the
// version so that an older run can win at most once more.
const maxClaimTries = 64

// Claim writes the own, higher epoch into the record and reads it, in one step
// (invariant 1): since every claim raises the version, no commit of an older run
// can match afterwards. Errors: ErrFenced (a higher epoch, or another run of the
// same epoch), ErrRegressed, ErrForeign, ErrMoved, ErrStaleGeneration, what
// Identify returned, or the store's.
//
// A writer session that the record names and that is not our own is ended: when
// it blocks the claim, and in any case, since a frozen predecessor may hold locks
// on the sink's rows. It is one of a lower epoch, whose run is over: the claimer
// has acquired the partition.
func Claim(ctx context.Context, store Store, req ClaimRequest) (Claimed, error) {
	fail := func(err error) (Claimed, error) {
		return Claimed{}, fmt.Errorf("claim %s with epoch %d: %w", req.Key, req.Epoch, err)
	}
	for range maxClaimTries {
		old, err := store.Load(ctx, req.Key)
		exists := true
		switch {
		case errors.Is(err, ErrNotFound):
			exists = false
		case errors.Is(err, ErrLocked):
			// Load waits for a commit whose outcome is pending. A predecessor that
			// froze inside it holds its lock for ever; anybody else is waited for.
			if ctx.Err() != nil {
				return fail(err)
			}
			var locked *LockedError
			if !errors.As(err, &locked) || locked.Committed.ClusterUID != req.ClusterUID {
				continue
			}
			// Whatever becomes of the pending commit, it does not lower the epoch.
			if held := locked.Committed; Fenced && fences(held, req) {
				return fail(&FencedError{Key: req.Key, Epoch: req.Epoch, Stored: held.Epoch})
			}
			if err := endSession(ctx, store, locked.Committed.Session, req.Session); err != nil {
				return fail(err)
			}
			continue
		case err != nil:
			return fail(err)
		}
		next, err := claimed(ctx, store, req, old, exists)
		if err != nil {
			return fail(err)
		}
		// Before the record names our session: a predecessor whose end failed, or
		// was never come to, would be known to nobody afterwards, and what it froze
		// with in its hands would stay locked.
		if err := endSession(ctx, store, old.Session, req.Session); err != nil {
			return fail(err)
		}
		err = store.Swap(ctx, req.Key, old.Version, next)
		switch {
		case err == nil:
		case errors.Is(err, ErrConflict):
			continue // somebody was faster: look again
		case errors.Is(err, ErrLocked):
			if err := endSession(ctx, store, old.Session, req.Session); err != nil {
				return fail(err)
			}
			continue
		case errors.Is(err, ErrTooLarge), errors.Is(err, ErrRegressed):
			return fail(err)
		default:
			// The outcome is unknown: ask the record.
			now, loadErr := store.Load(ctx, req.Key)
			if loadErr != nil || now.Epoch != req.Epoch || now.Run != req.Run || now.Version != next.Version {
				return fail(err)
			}
		}
		return Claimed{Record: next, Resumed: exists && !next.Position.IsZero()}, nil
	}
	return fail(fmt.Errorf("no claim in %d tries: another owner keeps writing", maxClaimTries))
}

// claimed is the record after a claim, or the reason why there is none.
func claimed(ctx context.Context, store Store, req ClaimRequest, old Record, exists bool) (Record, error) {
	if err := checkFloor(store, req, old, exists); err != nil {
		return Record{}, err
	}
	next := Record{}
	if exists {
		switch {
		case old.ClusterUID != req.ClusterUID:
			return Record{}, fmt.Errorf("%w cluster (%s): two clusters on one store, or a restored coordinator; checkpoint adopt decides", ErrForeign, old.ClusterUID)
		case old.RouteUID != req.RouteUID:
			return Record{}, fmt.Errorf("%w route (%s)", ErrForeign, old.RouteUID)
		case old.MovedTo != "":
			return Record{}, fmt.Errorf("%w: %s", ErrMoved, old.MovedTo)
		case Fenced && fences(old, req):
			return Record{}, &FencedError{Key: req.Key, Epoch: req.Epoch, Stored: old.Epoch}
		case old.Generation > req.Generation:
			return Record{}, fmt.Errorf("%w (%d, ours is %d)", ErrStaleGeneration, old.Generation, req.Generation)
		case old.Series != req.Series && old.Generation == req.Generation && !old.Tombstone:
			return Record{}, fmt.Errorf("%w series (%s)", ErrForeign, old.Series)
		}
		// A tombstone, or a series that a reset ended, starts anew; the version
		// goes on, since it is what fences the run before.
		if !old.Tombstone && old.Series == req.Series {
			next = old
		}
	}
	source := next.Source
	if req.Identify != nil {
		id, err := req.Identify(ctx, source)
		if err != nil {
			return Record{}, err
		}
		source = id
	}
	next.V = recordVersion
	next.ClusterUID, next.RouteUID, next.Series = req.ClusterUID, req.RouteUID, req.Series
	next.Epoch, next.Run, next.Session = req.Epoch, req.Run, req.Session
	next.Version = old.Version + 1
	next.Source = source
	// A generation changes only at a record without intents: the generation that
	// promised a part finishes it (docs/protocol.md, generations).
	if len(next.Intents) == 0 {
		next.Generation = req.Generation
	}
	return next, nil
}

// fences: the record is held by a run that a claim of req's cannot follow.
func fences(held Record, req ClaimRequest) bool {
	return held.Epoch > req.Epoch || held.Epoch == req.Epoch && held.Run != req.Run
}

func checkFloor(store Store, req ClaimRequest, old Record, exists bool) error {
	f := req.Floor
	if f == nil {
		return nil
	}
	switch {
	case f.Store != store.Identity():
		return fmt.Errorf("%w: the active store of this partition is %s, not %s; move it with checkpoint adopt", ErrForeign, f.Store, store.Identity())
	case !exists:
		return fmt.Errorf("%w: no record, but version %d of epoch %d was claimed; restore the store, or reset the checkpoint", ErrRegressed, f.Version, f.Epoch)
	case old.Version < f.Version || old.Epoch < f.Epoch:
		return fmt.Errorf("%w: found version %d of epoch %d, but version %d of epoch %d was claimed; restore the store, or reset the checkpoint",
			ErrRegressed, old.Version, old.Epoch, f.Version, f.Epoch)
	}
	return nil
}

func endSession(ctx context.Context, store Store, session, own string) error {
	if session == "" || session == own {
		return nil
	}
	ender, ok := store.(SessionEnder)
	if !ok {
		return nil
	}
	if err := ender.EndSession(ctx, session); err != nil {
		return fmt.Errorf("end the session of the owner before (%s): %w", session, err)
	}
	return nil
}

// Commit swaps next in over held, the record as this run knows it. It sets
// next's epoch, run and version and returns the record as stored. Errors:
// ErrFenced (a higher epoch or another run), ErrRegressed (gone or older),
// ErrTooLarge, else the store's: then next is not known to be written and the
// caller may call again, with the record that was returned as held. Commit never
// creates a record.
func Commit(ctx context.Context, store Store, key string, held, next Record) (Record, error) {
	next.V = recordVersion
	next.Epoch, next.Run = held.Epoch, held.Run
	for range maxCommitTries {
		next.Version = held.Version + 1
		err := store.Swap(ctx, key, held.Version, next)
		if err == nil {
			return next, nil
		}
		if errors.Is(err, ErrTooLarge) {
			return held, fmt.Errorf("commit %s: %w", key, err)
		}
		now, verdict := resolve(ctx, store, key, held)
		if errors.Is(verdict, errNotWritten) {
			return held, fmt.Errorf("commit %s at epoch %d: %w", key, held.Epoch, err)
		}
		if verdict != nil {
			return held, fmt.Errorf("commit %s at epoch %d: %w", key, held.Epoch, verdict)
		}
		if equal(now, next) {
			return next, nil // the reply was lost, the write was not
		}
		// An earlier try of this run, given up, arrived after all. It is older
		// than next, which goes over it.
		held = now
	}
	return held, fmt.Errorf("commit %s at epoch %d: not in %d tries", key, held.Epoch, maxCommitTries)
}

// maxCommitTries bounds how many late writes of its own run a commit goes over.
const maxCommitTries = 8

var errNotWritten = errors.New("not written")

// Resolve says what became of a Swap over held whose outcome is unknown or that
// met a conflict: nil (it was written, or another one of the same run), ErrFenced,
// ErrRegressed, or an error that matches none of them (it was not written, or the
// store cannot be asked).
func Resolve(ctx context.Context, store Store, key string, held Record) error {
	_, err := resolve(ctx, store, key, held)
	return err
}

func resolve(ctx context.Context, store Store, key string, held Record) (now Record, err error) {
	now, err = store.Load(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return now, fmt.Errorf("%w: the record is gone", ErrRegressed)
	case errors.Is(err, ErrRegressed):
		return now, err
	case err != nil:
		return now, errNotWritten
	case Fenced && (now.Epoch != held.Epoch || now.Run != held.Run):
		if now.Epoch < held.Epoch {
			return now, fmt.Errorf("%w: epoch %d is stored, ours is %d", ErrRegressed, now.Epoch, held.Epoch)
		}
		return now, &FencedError{Key: key, Epoch: held.Epoch, Stored: now.Epoch}
	case now.Version == held.Version+1:
		return now, nil
	case now.Version == held.Version:
		return now, errNotWritten
	case now.Version < held.Version:
		return now, fmt.Errorf("%w: version %d is stored, ours is %d", ErrRegressed, now.Version, held.Version)
	}
	return now, &FencedError{Key: key, Epoch: held.Epoch, Stored: now.Epoch}
}

// equal compares two records as they are stored.
func equal(a, b Record) bool {
	x, errA := Encode(a)
	y, errB := Encode(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// Set is an operator's claim: it writes a position under an epoch from the
// coordinator's counter, so that a running owner is fenced.
func Set(ctx context.Context, store Store, req ClaimRequest, p message.Position) (Record, error) {
	return rewrite(ctx, store, req, func(rec *Record) { rec.Position = p })
}

// Delete leaves a tombstone under an operator's epoch; the next claim starts anew.
func Delete(ctx context.Context, store Store, req ClaimRequest) (Record, error) {
	return rewrite(ctx, store, req, func(rec *Record) {
		rec.Position, rec.Source = message.Position{}, ""
		rec.Tombstone = true
	})
}

func rewrite(ctx context.Context, store Store, req ClaimRequest, change func(*Record)) (Record, error) {
	c, err := Claim(ctx, store, req)
	if err != nil {
		return Record{}, err
	}
	next := c.Record
	next.Intents, next.SinkState, next.Verdicts, next.Session = nil, nil, nil, ""
	next.Generation = req.Generation
	change(&next)
	return Commit(ctx, store, req.Key, c.Record, next)
}
