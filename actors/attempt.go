package actors

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// partitioning names the way in which a route's input is cut into partitions;
// it is part of the checkpoint key, so that another cut starts other records.
const partitioning = "1"

// theLeg is the leg of a route with one sink.
const theLeg = "out"

// attempt is one try to run a partition: acquire → claim → open → run → release,
// under one epoch (invariant 6). It runs in a goroutine of its own and reports
// its end to the partition's actor once.
type attempt struct {
	node  *Node
	view  *view
	route Route
	want  Desired
	log   *slog.Logger
	run   string // names this run in the record
	// failingSince is when the first of the attempts in a row failed that got
	// nowhere; zero if the one before this did not.
	failingSince time.Time
	// held: the owner key may be ours from an earlier attempt.
	held bool
	// before says how the run before this one ended, for the history.
	before string

	drain     chan struct{} // closed: stop softly
	drainOnce sync.Once
	started   atomic.Bool // the pipeline drains by itself from here on

	tried bool         // a request to acquire was sent
	owned *lease.Owned // set once acquired
}

// outcome is what an attempt ended with.
type outcome struct {
	class connectors.Class
	err   error
	// kept: this node holds the owner key, or may.
	kept bool
	// done: the input ended and the route exits there.
	done bool
	// finished: the intents of an older generation are done; go on with the
	// current one at once.
	finished bool
	// ran: the pipeline was running.
	ran bool
	// progressed: it committed something, or ran for longer than a partition that
	// gets nowhere is kept; back-off starts anew.
	progressed bool
}

func (a *attempt) softStop() { a.drainOnce.Do(func() { close(a.drain) }) }

func (a *attempt) draining() bool {
	select {
	case <-a.drain:
		return true
	default:
		return false
	}
}

// do runs the attempt to its end, settles the ownership and says how it went.
func (a *attempt) do(ctx context.Context) (out outcome) {
	leave, ok := a.node.enter(ctx, a.view.key, a.drain)
	if !ok {
		return outcome{class: connectors.ClassStopped, err: context.Canceled, kept: a.held}
	}
	defer leave()
	func() {
		defer func() {
			if v := recover(); v != nil {
				out.err = &connectors.Error{Class: connectors.ClassBug, Err: &pipeline.PanicError{Value: v, Stack: debug.Stack()}}
			}
		}()
		out.err = a.try(ctx, &out)
	}()
	out.class = connectors.Classify(out.err)
	a.settleOwnership(&out)
	return out
}

func (a *attempt) try(ctx context.Context, out *outcome) error {
	if err := a.acquire(ctx); err != nil {
		return err
	}
	// The gate: past it the run is cancelled, whatever it is doing.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Until records are read there is nothing to drain: whoever asks for the
	// partition need not wait for a database that does not answer.
	opening, stopOpening := context.WithCancel(ctx)
	defer stopOpening()
	go func() {
		select {
		case <-a.drain:
			if !a.started.Load() {
				stopOpening()
			}
		case <-opening.Done():
		}
	}()
	gate := func() error { return a.node.cfg.Session.GateOf(a.owned.Session) }
	go a.watchGate(ctx, gate, cancel)

	a.view.setEpoch(a.owned.Epoch)
	a.log = a.log.With("epoch", a.owned.Epoch)
	a.view.set(lease.StateClaiming)
	err := a.claimAndRun(ctx, opening, gate, out)
	var panicked *pipeline.PanicError
	switch {
	case err == nil || errors.Is(err, checkpoint.ErrFenced) || errors.As(err, &panicked):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case opening.Err() != nil:
		return opening.Err()
	}
	return err
}

func (a *attempt) watchGate(ctx context.Context, gate func() error, cancel context.CancelCauseFunc) {
	for {
		changed := a.node.cfg.Session.Changed()
		if err := gate(); err != nil {
			cancel(err)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// acquire waits for the gate, then for the owner before, then takes the
// partition with a new epoch.
func (a *attempt) acquire(ctx context.Context) error {
	cfg := &a.node.cfg
	for {
		changed := cfg.Session.Changed()
		if cfg.Session.Gate() == nil {
			break
		}
		if err := a.await(ctx, changed); err != nil {
			return err
		}
	}
	a.view.set(lease.StateAcquiring) // until here it was suspended, if it was
	for {
		a.tried = true
		owned, err := cfg.Owners.Acquire(ctx, lease.AcquireRequest{
			Route: a.route.Name, RouteUID: a.route.UID, Generation: a.route.Generation,
			Partition: a.want.Partition.ID, AssignmentRev: a.want.AssignmentRev, RouteRev: a.route.Rev,
			Before: a.before,
		})
		if err == nil {
			a.owned = &owned
			a.view.node.observe(Event{Kind: EventAcquired, Route: a.route.Name, Partition: a.want.Partition.ID, Epoch: owned.Epoch})
			return nil
		}
		if !errors.Is(err, lease.ErrOwned) {
			return err
		}
		// A planned hand-off: the owner before drains and then deletes its key.
		if err := a.awaitRelease(ctx); err != nil {
			return err
		}
	}
}

func (a *attempt) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-a.drain:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *attempt) awaitRelease(ctx context.Context) error {
	cfg := &a.node.cfg
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := cfg.Keys.Owner(a.route.Name, a.want.Partition.ID)
	kv, rev, err := cfg.Coordinator.Get(ctx, key)
	if err != nil {
		return err
	}
	if kv == nil {
		return nil
	}
	watch := cfg.Coordinator.Watch(ctx, key, rev+1)
	for {
		select {
		case res, ok := <-watch:
			if !ok || res.Err != nil {
				return ctx.Err() // look again
			}
			for _, e := range res.Events {
				if e.KV.Key == key && e.Type == lease.EventDelete {
					return nil
				}
			}
		case <-a.drain:
			return context.Canceled
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claimAndRun is the run proper; opening ends with ctx and, until the pipeline
// starts, when a drain is asked for.
func (a *attempt) claimAndRun(ctx, opening context.Context, gate func() error, out *outcome) error {
	cfg := &a.node.cfg
	started := time.Now()
	rt, giveBack, err := a.node.runtimes.get(opening, a.route.UID, a.route.Generation, a.route.Spec)
	if err != nil {
		return err
	}
	defer giveBack()
	a.view.setGuarantee(string(rt.inference.Guarantee))
	p := partitionOf(a.want.Partition)
	// The connection is the writer's once that is open.
	var prepared connectors.Prepared
	closePrepared := func() {
		if prepared != nil {
			_ = prepared.Close()
			prepared = nil
		}
	}
	defer closePrepared()
	prepare := func() error {
		closePrepared()
		c, err := rt.sink.Prepare(opening, p)
		if err == nil {
			prepared = c
		}
		return err
	}
	if err := prepare(); err != nil {
		return fmt.Errorf("prepare sink: %w", err)
	}
	if c, ok := rt.source.(connectors.Connector); ok {
		if err := c.Connect(opening); err != nil {
			return fmt.Errorf("connect source: %w", err)
		}
	}

	key := checkpoint.Key{Cluster: cfg.ClusterName, RouteUID: a.route.UID, Partitioning: partitioning,
		Partition: a.want.Partition.ID, Leg: theLeg}.String()
	claiming := time.Now()
	claimed, err := a.claim(opening, rt, key, p, prepared.Session())
	if err != nil {
		return err
	}
	a.view.stats.Stored(claimed.Record)
	a.view.stats.WaitFence(claiming)

	spec, finishOnly := a.route.Spec, false
	if len(claimed.Record.Intents) > 0 && claimed.Record.Generation != a.route.Generation {
		// A part that an older generation promised is finished by its spec.
		old := a.route.Older[claimed.Record.Generation]
		if old == nil {
			return connectors.Permanent(fmt.Errorf("part %s was promised by generation %d, whose spec is gone", claimed.Record.Intents[0].Name, claimed.Record.Generation),
				"apply that spec again, or reset the checkpoint")
		}
		closePrepared()
		giveBack()
		if rt, giveBack, err = a.node.runtimes.get(opening, a.route.UID, claimed.Record.Generation, old); err != nil {
			return err
		}
		defer giveBack()
		if err := prepare(); err != nil {
			return fmt.Errorf("prepare sink of generation %d: %w", claimed.Record.Generation, err)
		}
		spec, finishOnly = old, true
	}

	a.view.set(lease.StateOpening)
	claim := connectors.Claim{
		Route: a.route.Name, RouteUID: a.route.UID, Series: a.route.Series, Generation: a.route.Generation,
		Leg: theLeg, Node: cfg.Name, Partition: p, Epoch: a.owned.Epoch, Run: a.run, Key: key,
		Record: claimed.Record, Resumed: claimed.Resumed, Late: a.want.Partition.Late, Spec: spec, Budget: cfg.Budget.Share(),
		Gate: gate, Log: a.log,
	}
	defer claim.Budget.Close()
	claim.Reject = a.rejecter(spec)
	var letters *pipeline.DeadLetters
	if rt.deadLetters != nil {
		letters = &pipeline.DeadLetters{Open: func(ctx context.Context) (connectors.PlainWriter, error) { return rt.openDeadLetters(ctx, claim) }}
		claim.Reject = letters.Reject
	}
	hook.At("run.claimed")
	writer, err := prepared.Open(opening, claim)
	if err != nil {
		return fmt.Errorf("open sink: %w", err)
	}
	prepared = nil
	if claim.Record, err = pipeline.Recover(opening, claim, writer, rt.store); err != nil {
		_ = writer.Close()
		return fmt.Errorf("finish the part of the owner before: %w", err)
	}
	a.view.stats.Stored(claim.Record)
	if finishOnly && len(claim.Record.Intents) == 0 {
		_ = writer.Close()
		out.finished = true
		return nil
	}
	reader, err := rt.source.Open(opening, claim)
	if err != nil {
		_ = writer.Close()
		return fmt.Errorf("open source: %w", err)
	}
	a.started.Store(true)
	a.view.set(lease.StateRunning)
	a.log.Info("running", "position", a.view.status().Position, "took", time.Since(started).Round(time.Millisecond))
	out.ran = true
	began, commits := time.Now(), a.view.stats.Commits.Load()
	err = pipeline.Run(ctx, pipeline.Config{
		Claim: claim, Reader: reader, Writer: writer, Middlewares: rt.chains(), Store: rt.store,
		Sending: rt.sending, DeadLetters: letters,
		Stats: &a.view.stats, FinishOnly: finishOnly, Drain: a.drain,
		OnEnd: func(ended bool) {
			switch {
			case a.draining():
			case ended:
				a.view.set(lease.StateDone)
			default:
				a.view.set(lease.StateRunning)
			}
		},
	})
	out.progressed = a.view.stats.Commits.Load() > commits || time.Since(began) >= spec.GiveUpAfter
	if err == nil {
		a.markClaimed(ctx, rt)
		out.finished = finishOnly
		out.done = !finishOnly && spec.ExitOnEmpty && !a.draining()
	}
	return err
}

func (a *attempt) claim(ctx context.Context, rt *runtime, key string, p connectors.Partition, session string) (checkpoint.Claimed, error) {
	cfg := &a.node.cfg
	mark, err := cfg.Owners.Claimed(ctx, a.route.UID, p.ID, theLeg)
	if err != nil {
		return checkpoint.Claimed{}, fmt.Errorf("read the claimed mark: %w", err)
	}
	req := checkpoint.ClaimRequest{
		Key: key, ClusterUID: cfg.ClusterUID, RouteUID: a.route.UID, Series: a.route.Series,
		Generation: a.route.Generation, Epoch: a.owned.Epoch, Run: a.run, Session: session,
		Identify: func(ctx context.Context, recorded string) (string, error) {
			return rt.source.Identify(ctx, p, recorded)
		},
	}
	if mark != nil {
		req.Floor = &checkpoint.Floor{Store: mark.Store, Epoch: mark.Epoch, Version: mark.Version}
	}
	claimed, err := checkpoint.Claim(ctx, rt.store, req)
	if err != nil {
		return claimed, err
	}
	err = cfg.Owners.SetClaimed(ctx, a.route.UID, p.ID, theLeg, lease.Claimed{
		Store: rt.store.Identity(), Epoch: claimed.Record.Epoch, Version: claimed.Record.Version})
	if err != nil {
		return claimed, fmt.Errorf("write the claimed mark: %w", err)
	}
	return claimed, nil
}

// markClaimed raises the floor to the version of a clean end. Failing to is no
// harm: the floor is a lower bound.
func (a *attempt) markClaimed(ctx context.Context, rt *runtime) {
	rec := a.view.stats.Record()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := a.node.cfg.Owners.SetClaimed(ctx, a.route.UID, a.want.Partition.ID, theLeg, lease.Claimed{
		Store: rt.store.Identity(), Epoch: rec.Epoch, Version: rec.Version})
	if err != nil {
		a.log.Debug("claimed mark not raised", "error", err)
	}
}

// settleOwnership keeps, releases or drops the owner key, as the class says. What
// it cannot find out leaves the key as kept: the lease lives on, so a key that
// nobody drops would keep every other node out for as long as this one lives.
func (a *attempt) settleOwnership(out *outcome) {
	if a.owned == nil {
		// An acquire that failed may have taken effect, but for one that was refused.
		out.kept = a.held || a.tried && !isNotAssigned(out.err)
		return
	}
	cfg := &a.node.cfg
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	release := func() {
		a.owned.End = a.words(out)
		if err := cfg.Owners.Release(ctx, *a.owned); err != nil {
			out.kept = true
			a.log.Debug("ownership not released", "error", err)
		}
	}
	switch out.class {
	case connectors.ClassStopped:
		if out.done || out.finished && !a.draining() {
			out.kept = true
			return
		}
		release()
	case connectors.ClassSuspended, connectors.ClassBug:
		out.kept = true
	case connectors.ClassConnection, connectors.ClassRetryable:
		if !a.gaveUp(out) && !a.draining() {
			out.kept = true
			return
		}
		release()
	case connectors.ClassFenced, connectors.ClassSuspect:
		// Whether this node still owns the partition is asked, never assumed
		// (invariant 5). If it does, an operator fenced the run or the
		// coordinator came back from an older backup: drop the key, lift the
		// counter to what the store has seen, and start over.
		mine, err := cfg.Owners.Mine(ctx, *a.owned)
		if err != nil || !mine {
			out.kept = err != nil
			return
		}
		var fenced *checkpoint.FencedError
		if errors.As(out.err, &fenced) {
			if err := cfg.Owners.RaiseEpoch(ctx, a.route.UID, a.want.Partition.ID, fenced.Stored); err != nil {
				a.log.Debug("epoch counter not raised; the next claim asks again", "error", err)
			}
		}
		release()
	default:
		release()
	}
}

// gaveUp: attempts in a row have got nowhere for give_up_after.
func (a *attempt) gaveUp(out *outcome) bool {
	return !out.progressed && !a.failingSince.IsZero() && time.Since(a.failingSince) >= a.route.Spec.GiveUpAfter
}

// rejecter applies the route's on_error to one record. Repeated drops are logged
// at powers of two, so that a million bad rows are twenty lines.
func (a *attempt) rejecter(spec *route.Spec) func(context.Context, connectors.BadRecord) error {
	var mu sync.Mutex
	var dropped int64
	return func(_ context.Context, bad connectors.BadRecord) error {
		if spec.OnError != route.OnErrorDrop {
			return &connectors.Error{Class: connectors.ClassData, Err: fmt.Errorf("%s: %w", bad.Place, bad.Err),
				Hint: "mend the record; or keep such records aside, with a dlq on the output (copy --dlq FILE), or leave them out with on_error: drop on the route (copy --on-error drop)"}
		}
		mu.Lock()
		dropped++
		n := dropped
		mu.Unlock()
		if n&(n-1) == 0 {
			a.log.Warn("record dropped by on_error: drop", "place", bad.Place, "error", bad.Err, "dropped_by_this_run", n)
		}
		return nil
	}
}

func partitionOf(p lease.Partition) connectors.Partition {
	c := connectors.Partition{ID: p.ID, Node: p.Node, Weight: p.Weight, Attributes: p.Attributes,
		PartSource: p.PartSource, PartNumber: p.PartNumber}
	return c
}

// newRun names a run.
func newRun() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
