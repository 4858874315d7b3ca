// Package pipeline is one run of a partition: a reader, a middleware and a
// writer loop in one group. A failure of one ends the run; they have no restart
// life of their own, since an epoch names one run (invariant 6).
//
//	reader ═batch═▶ middleware ═batch═▶ writer + committer ─▶ settler
//
// Batches travel over channels of one slot; their bytes are bounded by the
// process's budget (invariant 8). The committer is the strategy of the sink's
// tier; the writer loop has no branch on it.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// Config is one run. The pipeline owns Reader, Writer and Middlewares and
// closes them.
type Config struct {
	Claim  connectors.Claim
	Reader connectors.Reader
	Writer connectors.Writer
	// Middlewares holds the chain of each worker; none or empty ones are no stage.
	// The order of batches is kept, however many there are.
	Middlewares [][]connectors.Middleware
	// Sending is what the middlewares of the output ask of the writer.
	Sending connectors.Sending
	// DeadLetters takes the records that cannot be handled; nil where the route's
	// rule is another one.
	DeadLetters *DeadLetters
	// Store keeps the record where the writer does not carry it itself.
	Store checkpoint.Store
	Stats *Stats
	// FinishOnly ends the run once the intents in the claimed record are done:
	// the spec of an older generation finishes what it promised.
	FinishOnly bool
	// Drain asks for a soft stop: no more reading, everything read is committed.
	Drain <-chan struct{}
	// OnEnd is told when the input reached its end and all of it is durable
	// (true), and when it grew again (false). May be nil.
	OnEnd func(ended bool)
}

// ErrNoCommitter: the sink's writer is of no known kind.
var ErrNoCommitter = errors.New("pipeline: writer is neither TxWriter, PartWriter nor PlainWriter")

// errFinished ends a FinishOnly run.
var errFinished = errors.New("pipeline: promises kept")

// growthPoll is how often a source at its end is asked again. Discovery of new
// partitions uses the same order of magnitude, so a tail -f feels alike for both.
const growthPoll = 500 * time.Millisecond

// settleInterval bounds how often a source is told of the durable position.
const settleInterval = time.Second

// PanicError is a panic in one of a run's loops.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// item travels between the loops. Exactly one of batch, end and err is set.
type item struct {
	batch *message.Batch
	// letters are the dead letters among the records of batch; they count there as
	// dropped.
	letters []letter
	end     int // its number, from 1
	err     error
}

type run struct {
	Config
	committer committer
	settler   settler
	ends      ends
	panicked  atomic.Pointer[error] // of the first loop that did
}

// Run moves batches until the input ends (exit_on_empty), Drain is closed, ctx
// is cancelled or something fails. nil means that everything read is durable.
// The context's cause is returned when it was cancelled, and a *PanicError in any
// case when a loop panicked. Everything is closed when Run returns, and every
// record read is counted.
func Run(ctx context.Context, cfg Config) error {
	r := &run{Config: cfg, settler: settler{wake: make(chan struct{}, 1)}, ends: ends{tell: cfg.OnEnd}}
	closeWriter := sync.OnceFunc(func() { _ = cfg.Writer.Close() })
	defer func() {
		closeWriter()
		_ = cfg.Reader.Close()
		for _, chain := range cfg.Middlewares {
			for _, m := range chain {
				_ = m.Close()
			}
		}
		cfg.DeadLetters.close()
	}()
	c, err := r.newCommitter()
	if err != nil {
		return err
	}
	r.committer = c
	if p := cfg.Claim.Record.Position; !p.IsZero() {
		// The run before may have ended between its last commit and telling the
		// source, and without new records nobody would ever tell it.
		r.settler.durable(p)
	}
	cfg.Stats.Input.asked.Store(cfg.Sending.MeasureInput)
	cfg.Stats.Output.asked.Store(cfg.Sending.MeasureOutput)
	started, before := time.Now(), cfg.Stats.Counters()
	defer func() { cfg.Stats.RunTime.Add(int64(time.Since(started))) }()

	g, gctx := errgroup.WithContext(ctx)
	// Past a cancellation (gate closed, hard stop) nothing may be written: the
	// writer goes at once, which also makes a blocked call return.
	stop := context.AfterFunc(gctx, closeWriter)
	defer stop()

	read, ready := make(chan item, 1), make(chan item, 1)
	g.Go(r.guard(func() error { return r.readLoop(gctx, read) }))
	r.startStages(gctx, g, read, ready)
	g.Go(r.guard(func() error { return c.background(gctx) }))
	g.Go(r.guard(func() error {
		defer c.finish()
		return r.writeLoop(gctx, ready)
	}))
	settled := make(chan struct{})
	settleCtx, endSettling := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(settled)
		r.settler.loop(settleCtx, r.Reader, r.Claim.Log)
	}()
	err = g.Wait()
	if errors.Is(err, errFinished) {
		err = nil
	}
	endSettling()
	<-settled
	if err == nil {
		r.settler.last(context.WithoutCancel(ctx), r.Reader, r.Claim.Log)
	}
	// What is still on the way goes back to the source.
	for _, ch := range []chan item{read, ready} {
		for it := range ch {
			r.giveBack(it.batch)
		}
	}
	c.abandon()
	if p := r.panicked.Load(); p != nil {
		// It may have come behind the error that ended the group.
		cfg.Stats.unwound(before)
		return *p
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// guard turns a panic of a loop into an error of the run.
func (r *run) guard(f func() error) func() error {
	return func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = &connectors.Error{Class: connectors.ClassBug, Err: &PanicError{Value: v, Stack: debug.Stack()}}
				r.panicked.CompareAndSwap(nil, &err)
			}
		}()
		return f()
	}
}

func (r *run) giveBack(b *message.Batch) {
	if b == nil {
		return
	}
	r.Stats.returned(tallyOf(b))
	b.Release()
}

// untilDrain is ctx, cancelled also when a drain begins.
func (r *run) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		select {
		case <-r.Drain:
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

// send hands an item to the next loop, or its batch back to the source when the
// run ends first.
func (r *run) send(ctx context.Context, out chan<- item, it item) error {
	select {
	case out <- it:
		return nil
	case <-ctx.Done():
		r.giveBack(it.batch)
		return ctx.Err()
	}
}

// readLoop hands on batches. A read error travels behind the batches read
// before it, so that those are committed first (invariant 12).
func (r *run) readLoop(ctx context.Context, out chan<- item) error {
	defer close(out)
	readCtx, stop := r.untilDrain(ctx)
	defer stop()
	ended := false
	for {
		if readCtx.Err() != nil {
			return ctx.Err() // nil when only the reading was stopped
		}
		began := r.Stats.Input.begin()
		b, err := r.Reader.Read(readCtx)
		if b != nil {
			r.Stats.Input.end(began, b.Read, nil, false)
		} else {
			r.Stats.Input.end(began, 0, err, false)
		}
		switch {
		case err == nil:
			r.Stats.Read.Add(int64(b.Read))
			r.Stats.Lag.Store(r.Reader.Lag())
			if ended {
				ended = false
				r.ends.grown()
			}
			if err := r.send(ctx, out, item{batch: b, letters: r.DeadLetters.take()}); err != nil {
				return err
			}
		case errors.Is(err, connectors.ErrEndOfInput):
			r.Stats.Lag.Store(r.Reader.Lag())
			if !ended {
				ended = true
				if err := r.send(ctx, out, item{end: r.ends.next()}); err != nil {
					return err
				}
			}
			if r.Claim.Spec.ExitOnEmpty {
				return nil
			}
			t := time.NewTimer(growthPoll)
			select {
			case <-t.C:
			case <-readCtx.Done():
				t.Stop()
			}
		case readCtx.Err() != nil: // looked at above
		default:
			return r.send(ctx, out, item{err: err})
		}
	}
}

// ends tells OnEnd of the ends of the input, which the writer loop sees when all
// before them is durable, and of growth, which the reader sees at once: by then
// it may have read on.
type ends struct {
	mu   sync.Mutex
	tell func(ended bool) // may be nil
	seen int              // ends that the reader met
	past int              // of those, the ones it read on behind
	told bool
}

// next is the number of the end that the reader meets.
func (e *ends) next() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen++
	return e.seen
}

func (e *ends) grown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.past = e.seen
	if e.told {
		e.say(false)
	}
}

// reached: everything before end n is durable.
func (e *ends) reached(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n > e.past {
		e.say(true)
	}
}

func (e *ends) say(ended bool) {
	e.told = ended
	if e.tell != nil {
		e.tell(ended)
	}
}

// writeLoop feeds the committer. When the input is closed (drained, or at its
// end) everything taken is flushed; an error that came down the line is
// returned after that.
func (r *run) writeLoop(ctx context.Context, in <-chan item) error {
	for {
		select {
		case it, ok := <-in:
			switch {
			case !ok || it.err != nil:
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err := r.committer.flush(ctx); err != nil {
					return err
				}
				return it.err
			case it.end > 0:
				if !r.committer.inheritedDone() {
					return fmt.Errorf("%w: the input ends inside a part that was promised", connectors.ErrGap)
				}
				if err := r.committer.flush(ctx); err != nil {
					return err
				}
				r.ends.reached(it.end)
			default:
				// A source that chose where to begin and has read nothing yet must not
				// choose again when this run ends with the first records in its hands.
				chosen := it.batch.Read == 0 && r.Claim.Record.Position.IsZero()
				if err := r.committer.take(ctx, it.batch, it.letters); err != nil {
					return err
				}
				if chosen {
					if err := r.committer.flush(ctx); err != nil {
						return err
					}
				}
			}
			if r.FinishOnly && r.committer.inheritedDone() {
				if err := r.committer.flush(ctx); err != nil {
					return err
				}
				return errFinished // ends the other loops too
			}
		case <-r.committer.timer():
			if err := r.committer.tick(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
