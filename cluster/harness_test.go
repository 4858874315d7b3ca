package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster in one process on one memory coordinator.
type world struct {
	t     testing.TB
	store *memory.Store
	keys  lease.Keys
	admin *memory.Client // writes what an operator would
	see   *lease.Mirror  // of everything
	wg    sync.WaitGroup

	inventory inventory
	journal   journal
	members   map[string]*member
	began     time.Time
	drain     atomic.Int64               // how long a release takes, as a time.Duration
	slow      map[plan.Key]time.Duration // how long these take instead
	loses     func(ops []lease.Op) bool
}

// member is one started node.
type member struct {
	*Node
	runner *obedient
	client *frozenClient
	cancel context.CancelFunc
	done   chan struct{}
}

// inBubble runs a test of a cluster on a clock that only moves when all wait.
func inBubble(t *testing.T, f func(w *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { runWorld(t, f) })
}

func runWorld(t testing.TB, f func(w *world)) {
	w := &world{t: t, store: memory.NewStore(memory.Options{}), keys: lease.NewKeys("c"), members: map[string]*member{}, began: time.Now()}
	w.inventory.lists = map[string]func(node string) ([]connectors.Partition, error){}
	w.admin = w.store.Client()
	w.see = lease.NewMirror(w.admin, w.keys.Prefix(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	w.wg.Go(func() { _ = w.see.Run(ctx) })
	defer func() {
		for _, m := range w.members {
			m.client.thaw()
			m.cancel()
			<-m.done
		}
		cancel()
		w.wg.Wait()
		_ = w.store.Close()
	}()
	f(w)
}

// start starts a node and does not wait for it.
func (w *world) start(name string, change ...func(*Config)) *member {
	w.t.Helper()
	m := &member{client: &frozenClient{Client: w.store.Client(), loses: w.loses}, done: make(chan struct{})}
	cfg := Config{
		Name: name, Cluster: "c", Address: name + ":7070", Version: "test",
		Coordinator: m.client, Registry: w.inventory.registry(),
		Log: slog.New(slog.DiscardHandler),
		Now: func() time.Duration { return time.Since(w.began) },
		NewRunner: func(c actors.Config) (Runner, error) {
			m.runner = newObedient(c, w)
			return m.runner, nil
		},
	}
	if os.Getenv("MQB_TEST_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if m.Node, err = NewNode(cfg); err != nil {
		w.t.Fatal(err)
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(m.done)
		_ = m.Run(ctx)
	}()
	w.members[name] = m
	return m
}

// kill ends a node as SIGKILL would: nothing of it reaches the coordinator any more.
func (w *world) kill(name string) {
	m := w.members[name]
	m.client.SetAvailable(false)
	m.client.thaw()
	m.cancel()
	<-m.done
	delete(w.members, name)
}

// put writes what an operator or the catalog would.
func (w *world) put(key string, value []byte) {
	w.t.Helper()
	if _, err := w.admin.Txn(context.Background(), nil, []lease.Op{lease.Put(key, value)}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(key string) {
	w.t.Helper()
	if _, err := w.admin.Txn(context.Background(), nil, []lease.Op{lease.Delete(key)}); err != nil {
		w.t.Fatal(err)
	}
}

// route writes a route whose input is the inventory's list of the same name.
func (w *world) route(name string, change ...func(*lease.Route)) {
	w.t.Helper()
	r := lease.Route{UID: name + "-uid", Series: "s", Generation: 1, Spec: "input: {listed: {name: " + name + "}}\noutput: {sunk: {}}\n"}
	for _, c := range change {
		c(&r)
	}
	w.put(w.keys.Route(name), lease.Encode(r))
}

// await waits until the coordinator holds what cond asks for; cond says what is missing.
func (w *world) await(limit time.Duration, cond func(s view) error) view {
	w.t.Helper()
	deadline := time.After(limit)
	for {
		changed := w.see.Changed()
		v := w.view()
		err := cond(v)
		if err == nil {
			return v
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("after %v: %v\n%s", limit, err, v)
		}
	}
}

// quiet waits until nothing changed but statuses for the given time.
func (w *world) quiet(d time.Duration) view {
	w.t.Helper()
	last, until := w.view(), time.After(d)
	for range 10_000 {
		changed := w.see.Changed()
		if v := w.view(); !v.same(last) {
			last, until = v, time.After(d)
		}
		select {
		case <-changed:
		case <-until:
			return last
		}
	}
	w.t.Fatalf("never quiet: %s", last)
	return last
}

// view is what the coordinator holds.
type view struct {
	assigned, owned map[plan.Key]string
	partitions      map[plan.Key]lease.Partition
	statuses        map[string]lease.NodeStatus
	nodes           map[string]lease.Node
	leader          lease.Leader
}

func (w *world) view() view {
	s := w.see.Snapshot()
	v := view{assigned: map[plan.Key]string{}, owned: map[plan.Key]string{}, partitions: map[plan.Key]lease.Partition{},
		statuses: map[string]lease.NodeStatus{}, nodes: map[string]lease.Node{}}
	each := func(prefix string, f func(k plan.Key, kv lease.KV)) {
		for kv := range s.All(prefix) {
			r, p, _ := w.keys.SplitPartition(kv.Key)
			f(plan.Key{Route: r, Partition: p}, kv)
		}
	}
	each(w.keys.Assignments(), func(k plan.Key, kv lease.KV) {
		a, _ := lease.Decode[lease.Assignment](kv.Value)
		v.assigned[k] = a.Node
	})
	each(w.keys.Owners(), func(k plan.Key, kv lease.KV) {
		o, _ := lease.Decode[lease.Owner](kv.Value)
		v.owned[k] = o.Node
	})
	each(w.keys.Partitions(), func(k plan.Key, kv lease.KV) { v.partitions[k], _ = lease.Decode[lease.Partition](kv.Value) })
	each(w.keys.Nodes(), func(_ plan.Key, kv lease.KV) {
		n, _ := lease.Decode[lease.Node](kv.Value)
		v.nodes[n.Name] = n
	})
	each(w.keys.Statuses(), func(_ plan.Key, kv lease.KV) {
		n, _ := lease.Decode[lease.NodeStatus](kv.Value)
		v.statuses[n.Node] = n
	})
	if kv, ok := s.Get(w.keys.Scheduler()); ok {
		v.leader, _ = lease.Decode[lease.Leader](kv.Value)
	}
	return v
}

func (v view) same(o view) bool {
	return maps.Equal(v.assigned, o.assigned) && maps.Equal(v.owned, o.owned) && len(v.partitions) == len(o.partitions) && v.leader == o.leader
}

func (v view) String() string {
	return fmt.Sprintf("leader %+v, %d partitions, assigned %v, owned %v", v.leader, len(v.partitions), v.count(v.assigned), v.count(v.owned))
}

func (v view) count(of map[plan.Key]string) map[string]int {
	n := map[string]int{}
	for _, node := range of {
		n[node]++
	}
	return n
}

// spread asks for total partitions, owned as assigned, evenly over the nodes.
func spread(total int, nodes ...string) func(view) error {
	return func(v view) error {
		switch n := v.count(v.owned); {
		case len(v.assigned) != total || !maps.Equal(v.assigned, v.owned):
			return errors.New("not all is owned as assigned")
		case len(n) != min(len(nodes), total):
			return fmt.Errorf("owners %v, want all of %v", n, nodes)
		default:
			for _, node := range nodes {
				if n[node] < total/len(nodes) || n[node] > (total+len(nodes)-1)/len(nodes) {
					return fmt.Errorf("uneven: %v", n)
				}
			}
			return nil
		}
	}
}

// frozenClient stands for a process that can be stopped between two instructions.
type frozenClient struct {
	*memory.Client
	mu     sync.Mutex
	before func(ops []lease.Op) bool // asks to freeze right before this transaction
	frozen chan struct{}             // closed by thaw
	stuck  chan struct{}             // closed when frozen
	loses  func(ops []lease.Op) bool // of which transactions the reply is lost; set before Run
}

// freezeBefore arms a freeze; the result is closed when it has happened.
func (c *frozenClient) freezeBefore(match func(ops []lease.Op) bool) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.stuck = match, make(chan struct{})
	return c.stuck
}

func (c *frozenClient) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = nil
	if c.frozen != nil {
		close(c.frozen)
		c.frozen = nil
	}
}

func (c *frozenClient) pass(ops []lease.Op) {
	c.mu.Lock()
	if c.before != nil && ops != nil && c.before(ops) {
		c.before, c.frozen = nil, make(chan struct{})
		close(c.stuck)
	}
	frozen := c.frozen
	c.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (c *frozenClient) Txn(_ context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	c.pass(ops)
	// A frozen process's packet arrives whatever its contexts say by then.
	res, err := c.Client.Txn(context.Background(), compares, ops)
	if c.loses != nil && c.loses(ops) {
		return lease.Result{}, lease.ErrUnavailable
	}
	return res, err
}

func (c *frozenClient) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	c.pass(nil)
	return c.Client.KeepAlive(ctx, id)
}

func (c *frozenClient) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	c.pass(nil)
	return c.Client.Grant(ctx, ttl)
}
