package actors

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
)

// Messages of a partition.
type (
	begin  struct{}
	update struct {
		route Route
		want  Desired
	}
	stop struct{}
	// ended carries the attempt it speaks of; stale ones are dropped.
	ended struct {
		attempt *attempt
		out     outcome
	}
	// again: the back-off is over.
	again struct{ seq int }
	// overdue: an attempt that was asked to stop has not.
	overdue struct {
		attempt *attempt
		wedged  bool
	}
)

// partitionActor supervises one partition: one attempt at a time, restarted
// after failures with back-off, put into quarantine when that does not help,
// stopped softly, then hard.
type partitionActor struct {
	node   *Node
	parent pid
	self   pid
	route  Route
	want   Desired
	log    *slog.Logger
	view   *view

	cur      *attempt
	cancel   context.CancelFunc
	stopping bool
	restart  bool // the attempt is being stopped to start another generation
	held     bool // the owner key is, or may be, ours although no attempt runs
	done     bool
	seq      int // of the back-off, or of the lost lease, that is waited for

	before string // how the last run ended, in words
	// outdated: the route changed during the last attempt, so what that met may be
	// mended already.
	outdated  bool
	failures  int       // in a row
	failingAt time.Time // first of those that got nowhere
	panics    []time.Time
}

func newPartitionActor(n *Node, parent pid, r Route, d Desired) *partitionActor {
	v := &view{node: n, key: partitionKey{r.Name, d.Partition.ID}, state: lease.StateAcquiring, since: time.Now()}
	v.stats.Lag.Store(-1)
	n.addView(v)
	return &partitionActor{node: n, parent: parent, route: r, want: d, view: v,
		log: n.cfg.Log.With("route", r.Name, "partition", d.Partition.ID)}
}

func (a *partitionActor) receive(self pid, msg any) {
	a.self = self
	switch msg := msg.(type) {
	case begin:
		a.start()
	case update:
		a.update(msg)
	case stop:
		a.stop()
	case ended:
		if msg.attempt == a.cur {
			a.ended(msg.out)
		}
	case again:
		if msg.seq == a.seq && a.cur == nil && !a.stopping {
			a.start()
		}
	case overdue:
		if msg.attempt == a.cur && a.cur != nil {
			a.overdue(msg)
		}
	}
}

func (a *partitionActor) start() {
	a.seq++
	a.done = false
	at := &attempt{node: a.node, view: a.view, route: a.route, want: a.want, log: a.log, run: newRun(),
		failingSince: a.failingAt, held: a.held, before: a.before, drain: make(chan struct{})}
	ctx := a.own()
	cancel := a.cancel
	a.cur = at
	self := a.self
	go func() {
		out := at.do(ctx)
		cancel()
		a.node.engine.send(self, ended{at, out})
	}()
}

// own ends what the actor had running and returns the context of what it runs next.
func (a *partitionActor) own() context.Context {
	if a.cancel != nil {
		a.cancel()
	}
	ctx, cancel := context.WithCancel(a.node.ctx)
	a.cancel = cancel
	return ctx
}

// update takes over a new route or assignment. A changed generation stops the
// run and starts another; anything else is kept for the next acquire.
func (a *partitionActor) update(msg update) {
	changed := msg.route.Generation != a.route.Generation || msg.route.UID != a.route.UID
	moved := msg.want.AssignmentRev != a.want.AssignmentRev || msg.route.Rev != a.route.Rev
	a.route, a.want = msg.route, msg.want
	if a.stopping {
		return
	}
	switch {
	case changed && a.cur != nil:
		a.restart = true
		a.softStop()
	case a.cur == nil && (changed || moved && !a.done):
		a.failures, a.failingAt = 0, time.Time{}
		a.start()
	}
}

func (a *partitionActor) stop() {
	a.stopping = true
	a.seq++ // no back-off wakes it any more
	if a.cur == nil {
		a.gone()
		return
	}
	a.softStop()
}

// softStop asks the attempt to drain; past the deadline it is cancelled, and
// past another one the partition counts as wedged.
func (a *partitionActor) softStop() {
	if s := a.view.current(); s == lease.StateRunning || s == lease.StateDone {
		a.view.set(lease.StateDraining)
	}
	a.cur.softStop()
	at, e, self := a.cur, a.node.engine, a.self
	time.AfterFunc(a.node.cfg.Timing.Drain, func() { e.send(self, overdue{attempt: at}) })
}

func (a *partitionActor) overdue(msg overdue) {
	if msg.wedged {
		a.log.Error("the partition ignores its cancellation", "state", a.view.current())
		a.view.set(lease.StateWedged)
		return
	}
	a.log.Warn("drain deadline passed: what is not committed goes back to the source")
	a.cancel()
	at, e, self := a.cur, a.node.engine, a.self
	time.AfterFunc(a.node.cfg.Timing.Wedge, func() { e.send(self, overdue{attempt: at, wedged: true}) })
}

// ended decides what follows an attempt.
func (a *partitionActor) ended(out outcome) {
	a.observe(out)
	a.outdated = a.cur.route.Rev != a.route.Rev
	a.cur, a.held = nil, out.kept
	if out.progressed {
		a.failures, a.failingAt = 0, time.Time{}
	}
	a.report(out)
	switch {
	case a.stopping:
		a.gone()
	case a.restart || out.finished:
		a.restart = false
		a.start()
	case out.done:
		a.done = true
		a.view.set(lease.StateDone)
		a.watchLease()
	default:
		a.failed(out)
	}
}

// watchLease starts a partition that is done over when the lease that its owner
// key hangs on is lost: nobody would hold it any more, and nobody else is asked
// to. The new run finds the end again at once.
func (a *partitionActor) watchLease() {
	a.seq++
	ctx, session, seq, e, self := a.own(), a.node.cfg.Session, a.seq, a.node.engine, a.self
	held := session.Generation()
	go func() {
		for {
			changed := session.Changed()
			if session.Generation() != held {
				e.send(self, again{seq})
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (a *partitionActor) failed(out outcome) {
	t := &a.node.cfg.Timing
	switch out.class {
	case connectors.ClassSuspended:
		a.view.set(lease.StateSuspended)
		a.start() // its acquire waits for the gate
	case connectors.ClassFenced, connectors.ClassSuspect:
		a.view.set(lease.StateUnassigned)
		a.retry(a.backoff(), nil)
	case connectors.ClassStopped:
		a.view.set(lease.StateAcquiring) // nothing runs, whatever it was that stopped it
		a.retry(a.backoff(), nil)
	case connectors.ClassBug:
		now := time.Now()
		a.panics = append(a.panics, now)
		for len(a.panics) > 0 && now.Sub(a.panics[0]) > t.Period {
			a.panics = a.panics[1:]
		}
		if len(a.panics) >= t.Intensity {
			a.panics = nil
			a.retry(t.Quarantine, out.err)
			return
		}
		a.tryAgain(out.err)
	case connectors.ClassConnection, connectors.ClassRetryable:
		if isNotAssigned(out.err) {
			// The scheduler has something else in mind; an update or a stop follows.
			a.view.set(lease.StateUnassigned)
			a.retry(a.backoff(), nil)
			return
		}
		if a.failingAt.IsZero() {
			a.failingAt = time.Now()
		}
		if time.Since(a.failingAt) >= a.route.Spec.GiveUpAfter {
			a.retry(min(t.Quarantine, a.backoff()*2), out.err)
			return
		}
		a.tryAgain(out.err)
	default:
		if a.outdated {
			a.tryAgain(out.err)
			return
		}
		a.retry(t.Quarantine, out.err)
	}
}

// tryAgain backs off, showing why.
func (a *partitionActor) tryAgain(err error) {
	wait := a.backoff()
	a.view.fail(lease.StateAcquiring, err, time.Now().Add(wait))
	a.retry(wait, nil)
}

// retry starts another attempt after d; quarantine, if not nil, is the error that
// is shown until then.
func (a *partitionActor) retry(d time.Duration, quarantine error) {
	if quarantine != nil {
		a.view.fail(lease.StateQuarantined, quarantine, time.Now().Add(d))
		a.node.observe(Event{Kind: EventQuarantined, Route: a.route.Name, Partition: a.view.key.partition,
			Epoch: a.view.status().Epoch, Text: shorten(quarantine) + "; next try in " + d.Round(time.Second).String()})
	}
	a.seq++
	seq, e, self := a.seq, a.node.engine, a.self
	time.AfterFunc(d, func() { e.send(self, again{seq}) })
}

// backoff is exponential with full jitter in its upper half.
func (a *partitionActor) backoff() time.Duration {
	t := &a.node.cfg.Timing
	d := min(t.Backoff<<min(a.failures, 20), t.BackoffMax)
	a.failures++
	return d/2 + rand.N(d/2+1)
}

// report writes the one line that an operator gets for the end of a run.
func (a *partitionActor) report(out outcome) {
	log := a.log.With("epoch", a.view.status().Epoch)
	switch out.class {
	case connectors.ClassStopped:
		if out.done {
			log.Info("done: the input ended", "position", a.view.status().Position)
		} else if out.ran {
			log.Info("released", "position", a.view.status().Position)
		}
	case connectors.ClassSuspended:
		if out.ran {
			log.Warn("lost ownership", "by", "gate", "reason", out.err)
		}
	case connectors.ClassFenced:
		log.Warn("lost ownership", "by", "fence", "reason", out.err)
	case connectors.ClassSuspect:
		log.Warn("lost ownership", "by", "sink", "reason", out.err)
	case connectors.ClassBug:
		var p *pipeline.PanicError
		if errors.As(out.err, &p) {
			log = log.With("stack", string(p.Stack))
		}
		log.Error("run ended by a panic", "error", out.err)
	case connectors.ClassConnection, connectors.ClassRetryable:
		if isNotAssigned(out.err) {
			log.Debug("not acquired", "reason", out.err)
			return
		}
		// Each failure in a row doubles the back-off, so this is no storm.
		log.Warn("run ended, trying again", "error", out.err, "failures", a.failures+1)
	default:
		log.Error("partition stopped", "class", string(out.class), "error", out.err, "next_try_in", a.node.cfg.Timing.Quarantine)
	}
}

func isNotAssigned(err error) bool {
	return errors.Is(err, lease.ErrNotAssigned) || errors.Is(err, lease.ErrOwned)
}

// gone gives the owner key back and leaves. While the coordinator does not answer
// and the lease lives, it asks again: the key would outlast this partition, and
// keep every other node out for as long as this one lives.
func (a *partitionActor) gone() {
	self, n, key := a.self, a.node, a.view.key
	ctx := a.own()
	cancel := a.cancel
	release := a.held
	a.held = false
	go func() {
		defer cancel()
		if release {
			a.drop(ctx, key)
		}
		n.dropView(a.view)
		n.engine.send(a.parent, partitionGone{partition: key.partition, pid: self})
	}()
}

func (a *partitionActor) drop(ctx context.Context, key partitionKey) {
	cfg := &a.node.cfg
	held := cfg.Session.Generation()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = cfg.Timing.Backoff, cfg.Timing.BackoffMax
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := cfg.Owners.Drop(try, key.route, key.partition)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, lease.ErrClosed) || cfg.Session.Generation() != held {
			return // a key that is left goes with its lease
		}
		if a.node.leaving() {
			return // the process is ending, and its lease with it
		}
		a.log.Debug("ownership not released, will try again", "error", err)
		t := time.NewTimer(pause.NextBackOff())
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}
