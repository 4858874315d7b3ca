// Package cluster makes one process a node: it keeps the node's lease, takes
// part in electing the scheduler, lists partitions, follows what is assigned to
// the node and reports what becomes of it. The runs themselves are those of
// package actors; who gets what is decided by cluster/plan.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// Config is what a Node is made of. What has no default is required.
type Config struct {
	// Name of the node, unique in the cluster and the same at each start.
	Name string
	// Instance is random and new at each start; default: made here.
	Instance string
	// Cluster is the cluster's name.
	Cluster string
	// Address is host:port at which others reach the node's API.
	Address string
	Version string
	Labels  map[string]string

	// Coordinator stays the caller's, who closes it after Run has returned.
	Coordinator lease.Coordinator
	Registry    *connectors.Registry
	// DataDir is the node's own directory, handed to connectors.
	DataDir string
	Budget  *message.Budget
	// Log defaults to slog.Default().
	Log *slog.Logger

	// LeaseTTL is how long the node may be silent before it is taken for dead;
	// default 3 s.
	LeaseTTL time.Duration
	// SettleAfter is how long a node must be here before partitions move to it
	// without need; each recent loss of it doubles that. Default 3 s.
	SettleAfter time.Duration
	// Moves is how many partitions may be handed off at the same time by the
	// scheduler's choice; default plan.DefaultMoves.
	Moves int
	// EvictAfter is how long a node may go on holding a partition that was given
	// to another, before its ownership is taken away if the run is wedged:
	// the drain deadline and a margin. Default: Timing.Drain (10 s) + 2 s.
	EvictAfter time.Duration
	// Timing is handed to the actors.
	Timing actors.Timing
	// Now is the clock of the lease's gate; default lease.Boottime. A simulation
	// injects its own.
	Now func() time.Duration

	// NewRunner makes what runs the node's partitions; default actors.New.
	NewRunner func(actors.Config) (Runner, error)

	events *events.Ring // made by NewNode
}

// Runner runs the partitions that this node is told to hold; *actors.Node is one.
type Runner interface {
	SetDesired(routes map[string]actors.Route, want []actors.Desired)
	Status() []lease.PartitionStatus
	Changed() <-chan struct{}
	Stop(ctx context.Context) error
}

func (c *Config) defaults() error {
	switch {
	case c.Name == "" || c.Cluster == "":
		return errors.New("cluster: node and cluster need a name")
	case c.Coordinator == nil || c.Registry == nil:
		return errors.New("cluster: no coordinator or no registry")
	}
	c.Instance = cmp.Or(c.Instance, rand.Text())
	c.SettleAfter = cmp.Or(c.SettleAfter, 3*time.Second)
	c.Moves = cmp.Or(c.Moves, plan.DefaultMoves)
	c.EvictAfter = cmp.Or(c.EvictAfter, cmp.Or(c.Timing.Drain, 10*time.Second)+2*time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Budget == nil {
		c.Budget = message.NewBudget(message.DefaultBudget)
	}
	if c.NewRunner == nil {
		c.NewRunner = func(a actors.Config) (Runner, error) { return actors.New(a) }
	}
	return nil
}

// Node is one member of the cluster. Safe for concurrent use.
type Node struct {
	cfg       Config
	keys      lease.Keys
	session   *lease.Session
	owners    *lease.Owners
	mirrors   *mirrors
	specs     *specs
	scheduler *scheduler
	local     *discovery // of partitions that are on this node
	started   time.Time

	ctx        context.Context // of Run
	cancel     context.CancelFunc
	done       chan struct{} // closed when Run has returned
	runnerOnce sync.Once
	runnerErr  error

	mu         sync.Mutex
	running    bool
	stopping   bool
	leaving    bool
	uid        string
	runner     Runner
	unsteer    context.CancelFunc // ends SetDesired calls
	registered error              // why the node key could not be written, last time
	unreadable map[string]lease.RouteStatus
	changed    chan struct{} // closed and replaced when unreadable or a list error changed
}

// NewNode prepares a node. Nothing happens before Run.
func NewNode(cfg Config) (*Node, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	cfg.events = events.NewRing(cfg.Name, cfg.Instance)
	n := &Node{cfg: cfg, keys: lease.NewKeys(cfg.Cluster), started: time.Now(), done: make(chan struct{}), changed: make(chan struct{})}
	var err error
	n.session, err = lease.NewSession(cfg.Coordinator, lease.SessionOptions{TTL: cfg.LeaseTTL, Register: n.register, Now: cfg.Now, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	n.owners = lease.NewOwners(cfg.Coordinator, n.keys, cfg.Name, cfg.Instance, n.session)
	n.mirrors = newMirrors(cfg.Coordinator, n.keys, cfg.Log)
	n.specs = newSpecs(cfg.Registry)
	lists := func() *discovery {
		return &discovery{
			coordinator: cfg.Coordinator, keys: n.keys, partitions: n.mirrors.partitions,
			registry: cfg.Registry, env: n.env(), log: cfg.Log, changed: n.touch,
		}
	}
	n.local = lists()
	n.scheduler = &scheduler{
		cfg: &n.cfg, keys: n.keys, session: n.session, mirrors: n.mirrors, specs: n.specs,
		election:  &election{coordinator: cfg.Coordinator, keys: n.keys, session: n.session, node: cfg.Name, log: cfg.Log},
		tables:    newTables(n.mirrors, n.keys),
		tenure:    newTenure(cfg.Name, cfg.SettleAfter),
		discovery: lists(),
		log:       cfg.Log,
		resignReq: make(chan chan error),
		changed:   make(chan struct{}),
	}
	return n, nil
}

func (n *Node) env() connectors.Env {
	return connectors.Env{Node: n.cfg.Name, DataDir: n.cfg.DataDir, Budget: n.cfg.Budget}
}

// Owners are this node's ownership records and the epoch counters.
func (n *Node) Owners() *lease.Owners { return n.owners }

// Run is the node's life. It returns nil after Stop; when ctx ends first it
// stops hard: runs are cancelled and what they hold is left to the lease's end,
// which is safe and takes longer for the others. Run is called once.
func (n *Node) Run(ctx context.Context) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.mu.Lock()
	if n.running || n.stopping {
		n.mu.Unlock()
		return errors.New("cluster: node was run or stopped before")
	}
	n.running, n.ctx, n.cancel = true, ctx, cancel
	n.mu.Unlock()
	defer close(n.done)

	uid, err := n.clusterUID(ctx)
	if err != nil {
		return outer.Err()
	}
	runner, err := n.cfg.NewRunner(actors.Config{
		Name: n.cfg.Name, Instance: n.cfg.Instance, ClusterName: n.cfg.Cluster, ClusterUID: uid,
		Coordinator: n.cfg.Coordinator, Keys: n.keys, Owners: n.owners, Session: n.session,
		Registry: n.cfg.Registry, Env: n.env(), Budget: n.cfg.Budget, Log: n.cfg.Log, Timing: n.cfg.Timing,
		Draining: n.cordoned, Observe: n.partitionEvent,
	})
	if err != nil {
		return fmt.Errorf("start actors: %w", err)
	}
	steering, unsteer := context.WithCancel(ctx)
	defer unsteer()
	n.mu.Lock()
	n.uid, n.runner, n.unsteer = uid, runner, unsteer
	if n.stopping {
		unsteer()
	}
	n.mu.Unlock()

	var g errgroup.Group
	g.Go(func() error { _ = n.session.Run(ctx); return nil })
	g.Go(func() error { n.mirrors.run(ctx); return nil })
	g.Go(func() error { n.noteMembers(ctx); return nil })
	g.Go(func() error { n.scheduler.run(ctx); return nil })
	g.Go(func() error { n.steer(steering, runner); return nil })
	g.Go(func() error { n.reportStatus(ctx, runner); return nil })
	<-ctx.Done()
	n.halt(ctx, runner)
	_ = g.Wait()
	return outer.Err()
}

// stopRunner stops the runner once; whoever comes second waits for the first.
func (n *Node) stopRunner(ctx context.Context, runner Runner) error {
	n.runnerOnce.Do(func() { n.runnerErr = runner.Stop(ctx) })
	return n.runnerErr
}

// halt is the hard end. After an orderly Stop it finds nothing to do.
func (n *Node) halt(ctx context.Context, runner Runner) {
	if err := n.stopRunner(ctx, runner); err != nil {
		// Something may still be running: the lease must outlive it as far as it
		// was going to anyway, so it is not revoked.
		n.cfg.Log.Warn("stopped hard", "error", err)
		return
	}
	revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = n.session.Close(revoke)
}

// clusterUID reads the cluster's random id, or writes it if this is the first
// node ever. It tries until ctx ends: a coordinator may be long in coming.
func (n *Node) clusterUID(ctx context.Context) (string, error) {
	return backoff.Retry(ctx, func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		key := n.keys.ClusterUID()
		kv, _, err := n.cfg.Coordinator.Get(ctx, key)
		if err == nil && kv == nil {
			if _, err = n.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.Absent(key)}, []lease.Op{lease.Put(key, []byte(rand.Text()))}); err == nil {
				kv, _, err = n.cfg.Coordinator.Get(ctx, key)
			}
		}
		if err != nil {
			n.cfg.Log.Info("waiting for the coordinator", "error", err)
			return "", err
		}
		if kv == nil {
			return "", errors.New("cluster uid was written and is not there")
		}
		return string(kv.Value), nil
	}, backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: 50 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2, RandomizationFactor: 0.2,
	}), backoff.WithMaxElapsedTime(0))
}

// register writes the node key under a new lease. A key of another process with
// our name stands until its lease ends: two nodes of one name would both believe
// what is assigned to the name.
func (n *Node) register(ctx context.Context, id lease.LeaseID) error {
	err := n.putNode(ctx, id)
	n.mu.Lock()
	n.registered = err
	n.mu.Unlock()
	return err
}

func (n *Node) putNode(ctx context.Context, id lease.LeaseID) error {
	key := n.keys.Node(n.cfg.Name)
	kv, _, err := n.cfg.Coordinator.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("register node %s: %w", n.cfg.Name, err)
	}
	var rev int64
	if kv != nil {
		rev = kv.ModRevision
		if other, err := lease.Decode[lease.Node](kv.Value); err == nil && other.Instance != n.cfg.Instance {
			return fmt.Errorf("register node %s: another process at %s has the name (if it is dead, until its lease ends)", n.cfg.Name, other.Address)
		}
	}
	n.mu.Lock()
	self := lease.Node{
		Name: n.cfg.Name, Instance: n.cfg.Instance, Address: n.cfg.Address, Version: n.cfg.Version,
		Labels: n.cfg.Labels, Started: n.started, Leaving: n.leaving,
	}
	n.mu.Unlock()
	res, err := n.cfg.Coordinator.Txn(ctx, []lease.Compare{lease.ModRevisionIs(key, rev)}, []lease.Op{lease.PutLeased(key, lease.Encode(self), id)})
	if err == nil && !res.Succeeded {
		err = errors.New("the key changed meanwhile")
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", n.cfg.Name, err)
	}
	return nil
}

// Stop ends the node in order: another becomes the scheduler, partitions are
// drained, committed, released and taken over by others as they come free, then
// the lease is revoked. When ctx ends first the rest is cancelled. It returns
// when Run has; the error says what could not be done in order.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	running, again := n.running, n.stopping
	n.stopping, n.leaving = true, true
	runner, unsteer := n.runner, n.unsteer
	n.mu.Unlock()
	if !running {
		return nil
	}
	if again || runner == nil {
		n.cancel()
		<-n.done
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)() // Run's end makes it a hard stop
	var errs []error
	errs = append(errs, n.leave(ctx))
	unsteer()
	err := n.stopRunner(ctx, runner)
	errs = append(errs, err)
	if err == nil {
		errs = append(errs, n.session.Close(ctx))
	}
	n.cancel()
	<-n.done
	return errors.Join(errs...)
}

// leave tells the others that this node goes: the scheduler, whoever it is by
// then, gives its partitions away while they drain. It only makes the hand-over
// quicker, so it takes little of the time there is.
func (n *Node) leave(ctx context.Context) error {
	if n.session.Gate() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return errors.Join(n.putNode(ctx, n.session.Lease()), n.scheduler.resign(ctx))
}

// Ready returns nil when the node takes part in the cluster, else what it waits
// for. A node that is being emptied, or is kept empty, does not take part.
func (n *Node) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.stopping:
		return errors.New("stopping")
	case n.leaving:
		return errors.New("leaving: it hands over what it holds")
	case n.runner == nil:
		return errors.New("waiting for the coordinator")
	case n.session.Gate() != nil && n.registered != nil:
		return n.registered
	case n.session.Gate() != nil:
		return errors.New("waiting for the node's lease")
	case !n.mirrors.synced():
		return errors.New("waiting for the first list of the coordinator's keys")
	case n.cordoned():
		return errors.New("drained by order")
	}
	return nil
}

// touch announces a change of what is reported.
func (n *Node) touch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.changed)
	n.changed = make(chan struct{})
}
