package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/cluster/plan"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// inventory is what there is to own, per route.
type inventory struct {
	mu    sync.Mutex
	lists map[string]func(node string) ([]connectors.Partition, error)
}

// set makes a route have these partitions.
func (i *inventory) set(route string, ids ...string) {
	i.serve(route, func(string) ([]connectors.Partition, error) {
		out := make([]connectors.Partition, len(ids))
		for k, id := range ids {
			out[k] = connectors.Partition{ID: id, PartSource: route, PartNumber: k}
		}
		return out, nil
	})
}

func (i *inventory) serve(route string, list func(node string) ([]connectors.Partition, error)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lists[route] = list
}

func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("p-%04d", i)
	}
	return ids
}

type listedConfig struct {
	Name     string `yaml:"name"`
	Locality string `yaml:"locality" default:"shared"`
}

type sunkConfig struct {
	Locality string `yaml:"locality" default:"shared"`
}

func (i *inventory) registry() *connectors.Registry {
	return connectors.NewRegistry([]connectors.Type{{
		EndpointType: route.EndpointType{
			Name: "listed", NewConfig: func() any { return new(listedConfig) },
			Source: func(c any) route.SourceCapabilities {
				return route.SourceCapabilities{Locality: route.Locality(c.(*listedConfig).Locality)}
			},
		},
		NewSource: func(c any, _ *route.Spec, env connectors.Env) (connectors.Source, error) {
			return listed{inventory: i, name: c.(*listedConfig).Name, node: env.Node}, nil
		},
	}, {
		EndpointType: route.EndpointType{
			Name: "sunk", NewConfig: func() any { return new(sunkConfig) },
			Sink: func(c any) route.SinkCapabilities {
				return route.SinkCapabilities{Locality: route.Locality(c.(*sunkConfig).Locality)}
			},
		},
	}}, nil)
}

// listed is a source that only lists.
type listed struct {
	connectors.Source
	inventory  *inventory
	name, node string
}

func (l listed) Partitions(context.Context) ([]connectors.Partition, error) {
	l.inventory.mu.Lock()
	list := l.inventory.lists[l.name]
	l.inventory.mu.Unlock()
	if list == nil {
		return nil, nil
	}
	return list(l.node)
}

func (l listed) Close() error { return nil }

// event is one acquisition or release.
type event struct {
	at      time.Time
	node    string
	key     plan.Key
	acquire bool
	epoch   uint64
}

type journal struct {
	mu     sync.Mutex
	events []event
}

func (j *journal) add(e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.at = time.Now()
	j.events = append(j.events, e)
}

func (j *journal) all() []event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// obedient is a Runner that owns what it is told to and does nothing with it.
type obedient struct {
	cfg actors.Config
	w   *world
	ctx context.Context
	end context.CancelFunc
	wg  sync.WaitGroup

	mu      sync.Mutex
	routes  map[string]actors.Route
	want    map[plan.Key]actors.Desired
	held    map[plan.Key]lease.PartitionStatus
	hangs   map[plan.Key]bool // these are never released
	changed chan struct{}     // closed when a status changed
	told    chan struct{}     // closed when what is wanted changed
	stopped bool
}

func newObedient(cfg actors.Config, w *world) *obedient {
	o := &obedient{cfg: cfg, w: w, held: map[plan.Key]lease.PartitionStatus{}, hangs: map[plan.Key]bool{}, changed: make(chan struct{}), told: make(chan struct{})}
	o.ctx, o.end = context.WithCancel(context.Background())
	return o
}

func (o *obedient) SetDesired(routes map[string]actors.Route, want []actors.Desired) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return
	}
	o.routes, o.want = routes, map[plan.Key]actors.Desired{}
	for _, d := range want {
		k := plan.Key{Route: d.Route, Partition: d.Partition.ID}
		o.want[k] = d
		if _, ok := o.held[k]; !ok {
			o.held[k] = lease.PartitionStatus{Route: k.Route, Partition: k.Partition, State: lease.StateAcquiring, Since: time.Now()}
			o.wg.Go(func() { o.hold(k) })
		}
	}
	close(o.told)
	o.told = make(chan struct{})
	o.touch()
}

func (o *obedient) touch() {
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *obedient) set(k plan.Key, s lease.State, epoch uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held[k] = lease.PartitionStatus{Route: k.Route, Partition: k.Partition, State: s, Epoch: epoch, Since: time.Now()}
	o.touch()
}

// hold is the life of one partition.
func (o *obedient) hold(k plan.Key) {
	var owned *lease.Owned
	for {
		o.mu.Lock()
		told := o.told
		d, wanted := o.want[k]
		r := o.routes[k.Route]
		hangs := o.hangs[k]
		if !wanted && owned == nil || o.ctx.Err() != nil {
			delete(o.held, k)
			o.touch()
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		session := o.cfg.Session.Changed()
		again := time.NewTimer(time.Hour)
		switch {
		case owned != nil && o.cfg.Session.GateOf(owned.Session) != nil:
			owned = nil
			again.Reset(10 * time.Millisecond)
		case owned == nil:
			got, err := o.cfg.Owners.Acquire(o.ctx, lease.AcquireRequest{
				Route: k.Route, RouteUID: r.UID, Generation: r.Generation, Partition: k.Partition,
				AssignmentRev: d.AssignmentRev, RouteRev: r.Rev,
			})
			if err != nil {
				again.Reset(20 * time.Millisecond)
				break
			}
			owned = &got
			o.w.journal.add(event{node: o.cfg.Name, key: k, acquire: true, epoch: got.Epoch})
			o.set(k, lease.StateRunning, got.Epoch)
			continue
		case !wanted && hangs:
		case !wanted:
			o.set(k, lease.StateDraining, owned.Epoch)
			drain := time.Duration(o.w.drain.Load())
			if d, ok := o.w.slow[k]; ok {
				drain = d
			}
			sleep(o.ctx, drain)
			o.w.journal.add(event{node: o.cfg.Name, key: k, epoch: owned.Epoch})
			if o.cfg.Owners.Release(o.ctx, *owned) == nil {
				owned = nil
				continue
			}
			again.Reset(20 * time.Millisecond)
		}
		select {
		case <-told:
		case <-session:
		case <-again.C:
		case <-o.ctx.Done():
		}
		again.Stop()
	}
}

// hang makes a partition one that is never released, and says so.
func (o *obedient) hang(k plan.Key) {
	o.mu.Lock()
	o.hangs[k] = true
	s := o.held[k]
	o.mu.Unlock()
	o.set(k, lease.StateWedged, s.Epoch)
}

func (o *obedient) Status() []lease.PartitionStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.held))
}

func (o *obedient) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (o *obedient) Stop(ctx context.Context) error {
	o.mu.Lock()
	o.stopped, o.want = true, nil
	close(o.told)
	o.told = make(chan struct{})
	o.touch()
	o.mu.Unlock()
	done := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		o.end()
		return nil
	case <-ctx.Done():
		o.end()
		<-done
		return ctx.Err()
	}
}
