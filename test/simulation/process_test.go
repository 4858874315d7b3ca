package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster"
	"github.com/mqbridge/mqb/message"
)

// budgetBytes is what the batches of a process may hold: four of them, so that
// readers wait for one another (invariant 8).
const budgetBytes = 4 * batchBytes

var (
	errLost = errors.New("connection lost")
	errDead = errors.New("the process is dead")
)

// process is one life of a node. What it does to the world outside (coordinator,
// source, sinks) goes through call, where the simulation lets it wait, fail and stop.
type process struct {
	w      *world
	name   string
	life   int
	node   *cluster.Node
	actors *actors.Node // set by NewRunner
	link   *link
	budget *message.Budget
	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned

	mu     sync.Mutex
	frozen chan struct{} // closed by thaw; nil while it is not frozen
	dead   chan struct{} // closed by crash
	at     string        // the call before which it freezes; "" for none
	lost   bool          // it is never thawed
	panics int           // how many of the next batches make the middleware panic
	calls  map[string]uint64
}

// start starts a life of a node and does not wait for it.
func (w *world) start(name string) {
	w.lives[name]++
	p := &process{w: w, name: name, life: w.lives[name], budget: message.NewBudget(budgetBytes),
		done: make(chan struct{}), dead: make(chan struct{}), calls: map[string]uint64{}}
	p.link = &link{Client: w.store.Client(), p: p, ledger: w.ledger}
	// Every life has a clock of its own: none starts where another one does.
	offset := time.Duration(w.rng.Int64N(int64(time.Hour)))
	cfg := cluster.Config{
		Name: name, Instance: p.instance(), Cluster: clusterName, Address: name + ":1", Version: "simulated",
		Coordinator: p.link, Registry: p.registry(), Budget: p.budget,
		Log:    slog.New(&journal{w: w}).With("node", name, "life", p.life),
		Timing: actors.Timing{Drain: 2 * time.Second, Wedge: time.Second, Quarantine: 2 * time.Second, BackoffMax: time.Second},
		Now:    func() time.Duration { return time.Since(w.began) + offset },
		NewRunner: func(c actors.Config) (cluster.Runner, error) {
			n, err := actors.New(c)
			p.mu.Lock()
			p.actors = n
			p.mu.Unlock()
			return n, err
		},
	}
	n, err := cluster.NewNode(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	p.node = n
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	w.wg.Go(func() {
		defer close(p.done)
		_ = n.Run(ctx)
	})
	w.alive[name] = p
	w.all = append(w.all, p)
}

func (p *process) instance() string { return fmt.Sprintf("%s-%d", p.name, p.life) }

// crash ends a life as SIGKILL does: nothing more leaves the process, its lease
// runs out, the systems behind its connections see them closed.
func (w *world) crash(name string) {
	p := w.alive[name]
	delete(w.alive, name)
	p.mu.Lock()
	close(p.dead)
	p.mu.Unlock()
	p.link.SetAvailable(false)
	w.table.hangUp(p)
	p.cancel()
}

// leave ends a life in order. It may take as long as a drain.
func (w *world) leave(name string) {
	p := w.alive[name]
	delete(w.alive, name)
	w.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		_ = p.node.Stop(ctx)
		p.mu.Lock()
		close(p.dead)
		p.mu.Unlock()
		w.table.hangUp(p)
	})
}

// freeze stops the process before its next call of that name, or of any name if
// that is "", and thaw lets it go on. Meanwhile its clocks go on, as those of a
// stopped process do.
func (p *process) freeze(before string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at = before; before == "" && p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// reach freezes the process if it was to freeze before this call.
func (p *process) reach(what string) {
	p.mu.Lock()
	reached := p.at == what
	p.mu.Unlock()
	if reached {
		p.freeze("")
	}
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return
	}
	p.at = ""
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// doomed reports whether the process is or will be frozen for good: it cannot
// leave in order.
func (p *process) doomed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// gone reports whether the process is frozen for good.
func (p *process) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost && p.frozen != nil
}

// pass returns when the process runs. It has no context: a stopped process does
// not see that its deadlines pass.
func (p *process) pass() error {
	for {
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		select {
		case <-p.dead:
			return errDead
		default:
		}
		if frozen == nil {
			return nil
		}
		select {
		case <-frozen:
		case <-p.dead:
		}
	}
}

// call carries one request of the process to a system outside, whose effect runs
// there. It may be refused, its reply may be lost, and it may be slow: then it has
// its effect later, whatever became of who sent it.
func (p *process) call(ctx context.Context, what string, effect func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.reach(what)
	if err := p.pass(); err != nil {
		return err
	}
	f := p.fate(what)
	if f.refused {
		return fmt.Errorf("%s: refused: %w", what, errLost)
	}
	var err error
	if f.slow > 0 {
		landed := make(chan error, 1)
		time.AfterFunc(f.slow, func() { landed <- effect() })
		select {
		case err = <-landed:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.dead:
			return errDead
		}
	} else {
		err = effect()
	}
	if passed := p.pass(); passed != nil {
		return passed
	}
	if f.lost && err == nil {
		return fmt.Errorf("%s: reply lost: %w", what, errLost)
	}
	return err
}

func (p *process) caller(ctx context.Context, what string) func(func() error) error {
	return func(effect func() error) error { return p.call(ctx, what, effect) }
}

// answer makes a call whose effect has a result. An effect that comes late has
// nobody who reads its result.
func answer[T any](call func(effect func() error) error, effect func() (T, error)) (T, error) {
	reply := make(chan T, 1)
	err := call(func() error {
		v, err := effect()
		reply <- v
		return err
	})
	if err != nil {
		var zero T
		return zero, err
	}
	return <-reply, nil
}

// fate is what becomes of a call.
type fate struct {
	refused, lost bool
	slow          time.Duration
}

// fate is drawn from the seed, the caller and how often it called, not from one
// stream for all, so that a seed gives the same faults when calls of different
// nodes come in another order.
func (p *process) fate(what string) fate {
	p.mu.Lock()
	p.calls[what]++
	n := p.calls[what]
	p.mu.Unlock()
	if !p.w.faulty.Load() {
		return fate{}
	}
	h := fnv.New64a()
	fmt.Fprint(h, p.w.seed, p.name, p.life, what, n)
	r := rand.New(rand.NewPCG(h.Sum64(), p.w.seed))
	switch x := r.Float64(); {
	case x < 0.02:
		return fate{refused: true}
	case x < 0.05:
		return fate{lost: true}
	case x < 0.10:
		return fate{slow: time.Duration(r.Int64N(int64(300 * time.Millisecond)))}
	case x < 0.103, x < 0.13 && what == "bucket create":
		return fate{slow: 2*time.Second + time.Duration(r.Int64N(int64(5*time.Second))), lost: r.IntN(2) == 0}
	}
	return fate{}
}

// trip reports whether the middleware has to panic now.
func (p *process) trip() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.panics == 0 {
		return false
	}
	p.panics--
	return true
}
