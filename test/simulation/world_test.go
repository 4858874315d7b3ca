package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

const (
	clusterName = "sim"
	// secret stands in every route and must not be seen anywhere else (invariant 11).
	secret = "open-sesame"
	// partitions of each route.
	partitions = 2
)

// world is one cluster with everything around it, in one synctest bubble.
type world struct {
	t     testing.TB
	seed  uint64
	rng   *rand.Rand // of the history's goroutine
	began time.Time

	store    *memory.Store
	keys     lease.Keys
	operator *link
	catalog  *catalog.Catalog
	ledger   *ledger
	bucket   *bucket
	table    *table
	routes   []*simRoute

	faulty atomic.Bool // calls may fail
	alive  map[string]*process
	all    []*process
	lives  map[string]int
	doomed bool // a node stays frozen for good
	wg     sync.WaitGroup

	mu       sync.Mutex
	failures []string
	story    []string
}

// simRoute is a route with its input.
type simRoute struct {
	w    *world
	name string
	sink string // endpoint
	uid  string
	logs []*log
	turn int // of the specs that it goes through
}

func partitionID(i int) string { return fmt.Sprintf("p%d", i) }

func (r *simRoute) key(i int) string {
	return checkpoint.Key{Cluster: clusterName, RouteUID: r.uid, Partitioning: "1", Partition: partitionID(i), Leg: "out"}.String()
}

// spec is the route's in its turn: what may change without a new series does.
func (r *simRoute) spec() string {
	return fmt.Sprintf(`
%s:
  input:
    feed: {route: %s, password: %s}
    middlewares: [sieve: {}]
  output: {%s: {}}
  on_error: drop
  required_delivery: exactly-once
  batch_size: %d
  checkpoint_interval: 200ms
  roll: {records: %d, age: %dms}
`, r.name, r.name, secret, r.sink, 4+r.turn%5, 3+r.turn%7, 20+90*(r.turn%4))
}

func (r *simRoute) has(i int, n int64) bool {
	if r.sink == "bucket" {
		return r.w.bucket.has(partitionID(i), n)
	}
	return r.w.table.has(r.key(i), n)
}

func (r *simRoute) count(i int) int {
	if r.sink == "bucket" {
		return r.w.bucket.count(partitionID(i))
	}
	return r.w.table.count(r.key(i))
}

// missing lists records below n that should be in the sink and are not.
func (r *simRoute) missing(i int, n int64) (out []int64) {
	for k := range n {
		if kindOf(k) == kindWritten && !r.has(i, k) {
			out = append(out, k)
		}
	}
	return out
}

// find returns the route and the partition of a checkpoint key.
func (w *world) find(key string) (*simRoute, int) {
	for _, r := range w.routes {
		for i := range r.logs {
			if r.key(i) == key {
				return r, i
			}
		}
	}
	return nil, 0
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0x5eed)), began: time.Now(),
		store: memory.NewStore(memory.Options{}), keys: lease.NewKeys(clusterName), alive: map[string]*process{}, lives: map[string]int{}}
	w.ledger, w.bucket, w.table = newLedger(w), newBucket(w), newTable(w)
	w.operator = &link{Client: w.store.Client(), ledger: w.ledger}
	for _, r := range []*simRoute{{name: "lake", sink: "bucket"}, {name: "rows", sink: "table"}} {
		r.w = w
		for range partitions {
			r.logs = append(r.logs, newLog())
		}
		w.routes = append(w.routes, r)
	}
	ids := 0
	w.catalog = catalog.New(catalog.Config{
		Coordinator: w.operator, Keys: w.keys, Cluster: clusterName, Registry: (&process{w: w}).registry(),
		OpenStore: func(ctx context.Context, spec *route.Spec) (checkpoint.Store, func() error, error) {
			s, err := w.openStore(ctx, spec)
			return s, func() error { return nil }, err
		},
		NewID: func() string { ids++; return fmt.Sprintf("id%d", ids) },
	})
	return w
}

// openStore is the operator's way to the records of a route.
func (w *world) openStore(ctx context.Context, spec *route.Spec) (checkpoint.Store, error) {
	if spec.Output.Type == "table" {
		return (&tableSink{t: w.table}).Store(ctx)
	}
	return coordinator.New(w.operator, w.keys), nil
}

// apply brings a route to its next spec.
func (w *world) apply(r *simRoute) {
	res, err := w.catalog.Apply(context.Background(), []byte("routes:"+strings.ReplaceAll(r.spec(), "\n", "\n  ")), catalog.ApplyOptions{})
	if err != nil || res[0].Err != nil {
		w.failf("apply %s: %v %+v", r.name, err, res)
		return
	}
	e, err := w.catalog.Get(context.Background(), r.name)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.uid == "" { // the nodes read it
		r.uid = e.Route.UID
	}
	r.turn++
}

// fence is what an operator does who takes a partition from its run.
func (w *world) fence(r *simRoute, i int) {
	ctx := context.Background()
	e, err := w.catalog.Get(ctx, r.name)
	if err != nil {
		w.t.Fatal(err)
	}
	rec := w.ledger.record(r.key(i))
	if rec.Version == 0 {
		return
	}
	epoch, err := lease.NewOwners(w.operator, w.keys, "", "", nil).NextEpoch(ctx, r.uid, partitionID(i))
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := w.openStore(ctx, &route.Spec{Output: route.Endpoint{Type: r.sink}})
	if err != nil {
		w.t.Fatal(err)
	}
	// Refused when the counter went back, or when the owner before is frozen with
	// the row in its hands; an operator would ask again.
	_, err = checkpoint.Claim(ctx, store, checkpoint.ClaimRequest{Key: r.key(i), ClusterUID: rec.ClusterUID, RouteUID: r.uid,
		Series: rec.Series, Generation: e.Route.Generation, Epoch: epoch, Run: fmt.Sprint("operator-", epoch)})
	w.tell("operator fences %s/%s with epoch %d: %v", r.name, partitionID(i), epoch, err)
}

// failf notes a broken promise. The test goes on: what follows helps to see why.
func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failures) < 10 {
		w.failures = append(w.failures, fmt.Sprintf("%8v ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}

func (w *world) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, fmt.Sprintf("%8v ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// report fails the test with what was broken, and how it came to it.
func (w *world) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failures) > 0 {
		w.t.Errorf("seed %d:\n%s\nhistory:\n%s", w.seed, strings.Join(w.failures, "\n"), strings.Join(w.story, "\n"))
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.failures) > 0
}

// journal is the log of all nodes. A run that is fenced, suspended or cut off is
// no error (invariant 5): what is logged as one is a failure, but for panics that
// were planted and processes that were frozen.
type journal struct {
	w     *world
	attrs []slog.Attr
}

var verbose = os.Getenv("MQB_TEST_LOG") != ""

func (j *journal) Enabled(_ context.Context, l slog.Level) bool {
	return verbose || l >= slog.LevelWarn
}
func (j *journal) WithGroup(string) slog.Handler { return j }
func (j *journal) WithAttrs(a []slog.Attr) slog.Handler {
	return &journal{w: j.w, attrs: slices.Concat(j.attrs, a)}
}

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	text := strings.Builder{}
	fmt.Fprintf(&text, "%s %s", r.Level, r.Message)
	add := func(a slog.Attr) bool {
		if a.Key != "stack" {
			fmt.Fprintf(&text, " %s=%v", a.Key, a.Value)
		}
		return true
	}
	for _, a := range j.attrs {
		add(a)
	}
	r.Attrs(add)
	s := text.String()
	j.w.tell("%s", s)
	if strings.Contains(s, secret) {
		j.w.failf("a secret is in the log (invariant 11): %s", s)
	}
	if r.Level < slog.LevelError {
		return nil
	}
	switch {
	case r.Message == "run ended by a panic" && strings.Contains(s, errTripped):
	case r.Message == "the partition ignores its cancellation":
	case r.Message == "partition stopped" && (strings.Contains(s, "class=regressed") || strings.Contains(s, "class=gap")) && !j.w.faulty.Load():
	default:
		j.w.failf("logged as an error (invariant 5): %s", s)
	}
	return nil
}

type (
	feedConfig struct {
		Route    string `yaml:"route"`
		Password string `yaml:"password" secret:"true"`
	}
	emptyConfig struct{}
)

// registry has what the routes of the simulation are made of, for one process.
func (p *process) registry() *connectors.Registry {
	w := p.w
	sink := func(name string, c route.SinkCapabilities, make func() connectors.Sink) connectors.Type {
		return connectors.Type{
			EndpointType: route.EndpointType{Name: name, NewConfig: func() any { return new(emptyConfig) },
				Sink: func(any) route.SinkCapabilities { return c }},
			NewSink: func(any, *route.Spec, connectors.Env) (connectors.Sink, error) { return make(), nil },
		}
	}
	return connectors.NewRegistry([]connectors.Type{
		{
			EndpointType: route.EndpointType{Name: "feed", NewConfig: func() any { return new(feedConfig) },
				Source: func(any) route.SourceCapabilities {
					return route.SourceCapabilities{StableIdentity: true, DurablePosition: true, NumberedPosition: true, Locality: route.Shared}
				}},
			NewSource: func(c any, _ *route.Spec, _ connectors.Env) (connectors.Source, error) {
				for _, r := range w.routes {
					if r.name == c.(*feedConfig).Route {
						return &feed{p: p, r: r}, nil
					}
				}
				return nil, fmt.Errorf("no feed %s", c.(*feedConfig).Route)
			},
		},
		sink("bucket", route.SinkCapabilities{Tier: route.TierDeterministic, Parts: true, Durable: true, Locality: route.Shared},
			func() connectors.Sink { return &bucketSink{p: p, b: w.bucket} }),
		sink("table", route.SinkCapabilities{Tier: route.TierTransactional, Durable: true, Locality: route.Shared},
			func() connectors.Sink { return &tableSink{p: p, t: w.table} }),
	}, []connectors.MiddlewareType{{
		MiddlewareType: route.MiddlewareType{Name: "sieve", NewConfig: func() any { return new(emptyConfig) }, Input: true,
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeDrop, ReplaySame: true}
			}},
		New: func(any, *route.Spec) (func() connectors.Middleware, error) {
			return func() connectors.Middleware { return sieve{p} }, nil
		},
	}})
}

const errTripped = "the sieve was made to panic"

// sieve drops what is to be filtered, and panics when it is told to.
type sieve struct{ p *process }

func (s sieve) Process(_ context.Context, b *message.Batch) error {
	if s.p.trip() {
		panic(errTripped)
	}
	b.Keep(func(i int) bool { return kindOf(b.Msg(i).Ordinal) != kindFiltered })
	return nil
}

func (sieve) Close() error { return nil }

// names of the nodes that live, in order: a map's order is no part of a seed.
func (w *world) names() []string { return slices.Sorted(maps.Keys(w.alive)) }

// able are those that are not frozen for good.
func (w *world) able() (out []string) {
	for _, name := range w.names() {
		if !w.alive[name].gone() {
			out = append(out, name)
		}
	}
	return out
}
