package actors

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

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
	held     bool // the owner key is ours although no attempt runs
	done     bool
	seq      int // of the back-off that is waited for

	failures  int       // in a row
	failingAt time.Time // first of them
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
	if a.failingAt.IsZero() {
		a.failingAt = time.Now()
	}
	at := &attempt{node: a.node, view: a.view, route: a.route, want: a.want, log: a.log, run: newRun(),
		keepUntil: a.failingAt.Add(a.route.Spec.GiveUpAfter), drain: make(chan struct{})}
	ctx, cancel := context.WithCancel(a.node.ctx)
	a.cur, a.cancel = at, cancel
	self := a.self
	go func() {
		out := at.do(ctx)
		cancel()
		a.node.engine.send(self, ended{at, out})
	}()
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
		a.done = false
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
	a.cur, a.held = nil, out.kept
	if out.ran {
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
	default:
		a.failed(out)
	}
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
		a.retry(a.backoff(), nil)
	case connectors.ClassConnection, connectors.ClassRetryable:
		if isNotAssigned(out.err) {
			// The scheduler has something else in mind; an update or a stop follows.
			a.view.set(lease.StateUnassigned)
			a.retry(a.backoff(), nil)
			return
		}
		if !out.kept && a.failures > 0 {
			a.retry(min(t.Quarantine, a.backoff()*2), out.err)
			return
		}
		wait := a.backoff()
		a.view.fail(lease.StateAcquiring, out.err, time.Now().Add(wait))
		a.retry(wait, nil)
	default:
		a.retry(t.Quarantine, out.err)
	}
}

// retry starts another attempt after d; quarantine, if not nil, is the error that
// is shown until then.
func (a *partitionActor) retry(d time.Duration, quarantine error) {
	if quarantine != nil {
		a.view.fail(lease.StateQuarantined, quarantine, time.Now().Add(d))
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

// gone gives the owner key back and leaves.
func (a *partitionActor) gone() {
	self := a.self
	release := a.held
	a.held = false
	go func() {
		if release {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			if _, err := a.node.cfg.Owners.Drop(ctx, a.route.Name, a.want.Partition.ID); err != nil {
				a.log.Debug("ownership not released; it goes with the lease", "error", err)
			}
		}
		a.node.dropView(a.view)
		a.node.engine.send(a.parent, partitionGone{partition: a.want.Partition.ID, pid: self})
	}()
}

func stack() string { return string(debug.Stack()) }
