package actors

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

func formatNumber(n int64) string { return strconv.FormatInt(n, 10) }

// runtime is what the partitions of one route generation share on this node:
// clients and the store. It is built by the first that needs it and closed
// after the last.
type runtime struct {
	spec        *route.Spec
	source      connectors.Source
	sink        connectors.Sink
	store       checkpoint.Store
	middlewares []func() connectors.Middleware
	workers     int // chains of middlewares that work at the same time
	sending     connectors.Sending
	deadLetters connectors.Sink // nil without a dlq
	inference   route.Inference
	closeStore  func() error
}

type runtimeKey struct {
	uid        string
	generation uint64
}

type runtimes struct {
	cfg Config

	mu   sync.Mutex
	open map[runtimeKey]*runtimeEntry
}

type runtimeEntry struct {
	// turn holds one token while somebody builds: one partition builds for all,
	// and the others can be stopped while they wait.
	turn chan struct{}
	rt   *runtime
	refs int
}

func newRuntimes(cfg Config) *runtimes {
	return &runtimes{cfg: cfg, open: map[runtimeKey]*runtimeEntry{}}
}

// get returns the runtime of a route generation and a function that gives it back.
func (rs *runtimes) get(ctx context.Context, uid string, generation uint64, spec *route.Spec) (*runtime, func(), error) {
	key := runtimeKey{uid, generation}
	rs.mu.Lock()
	e := rs.open[key]
	if e == nil {
		e = &runtimeEntry{turn: make(chan struct{}, 1)}
		rs.open[key] = e
	}
	e.refs++
	rs.mu.Unlock()
	release := func() {
		rs.mu.Lock()
		e.refs--
		last := e.refs == 0
		if last {
			delete(rs.open, key)
		}
		rs.mu.Unlock()
		if last && e.rt != nil {
			e.rt.close()
		}
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		release()
		return nil, nil, ctx.Err()
	}
	defer func() { <-e.turn }()
	if e.rt == nil {
		rt, err := rs.build(ctx, spec)
		if err != nil {
			release()
			return nil, nil, err
		}
		e.rt = rt
	}
	return e.rt, sync.OnceFunc(release), nil
}

func (rs *runtimes) build(ctx context.Context, spec *route.Spec) (*runtime, error) {
	rt := &runtime{spec: spec}
	if err := rs.fill(ctx, rt); err != nil {
		rt.close()
		return nil, err
	}
	return rt, nil
}

func (rs *runtimes) fill(ctx context.Context, rt *runtime) (err error) {
	if rt.source, err = rs.cfg.Registry.Source(rt.spec, rs.cfg.Env); err != nil {
		return err
	}
	if rt.sink, err = rs.cfg.Registry.Sink(rt.spec, rs.cfg.Env); err != nil {
		return err
	}
	if rt.middlewares, err = rs.cfg.Registry.Middlewares(rt.spec); err != nil {
		return err
	}
	rt.workers, rt.sending = rs.cfg.Registry.Workers(rt.spec), rs.cfg.Registry.Sending(rt.spec)
	if e := rt.sending.DeadLetters; e != nil {
		if rt.deadLetters, err = rs.cfg.Registry.SinkOf(*e, rt.spec, rs.cfg.Env); err != nil {
			return fmt.Errorf("dlq: %w", err)
		}
	}
	rt.inference = route.Infer(rt.spec, rs.cfg.Registry)
	if rt.store, rt.closeStore, err = openStore(ctx, rt.sink, rt.spec, rs.cfg.Coordinator, rs.cfg.Keys); err != nil {
		return fmt.Errorf("open checkpoint store: %w", err)
	}
	return nil
}

func (rt *runtime) close() {
	if rt.closeStore != nil {
		_ = rt.closeStore()
	}
	if rt.sink != nil {
		_ = rt.sink.Close()
	}
	if rt.deadLetters != nil {
		_ = rt.deadLetters.Close()
	}
	if rt.source != nil {
		_ = rt.source.Close()
	}
}

// chains makes the middlewares of each worker of a run.
func (rt *runtime) chains() [][]connectors.Middleware {
	if len(rt.middlewares) == 0 {
		return nil
	}
	out := make([][]connectors.Middleware, rt.workers)
	for i := range out {
		for _, f := range rt.middlewares {
			out[i] = append(out[i], f())
		}
	}
	return out
}

// openDeadLetters opens the dlq of a run.
func (rt *runtime) openDeadLetters(ctx context.Context, claim connectors.Claim) (connectors.PlainWriter, error) {
	claim.Leg, claim.Record = connectors.LegDeadLetters, checkpoint.Record{}
	prepared, err := rt.deadLetters.Prepare(ctx, claim.Partition)
	if err != nil {
		return nil, err
	}
	w, err := prepared.Open(ctx, claim)
	if err != nil {
		_ = prepared.Close()
		return nil, err
	}
	plain, ok := w.(connectors.PlainWriter)
	if !ok {
		_ = w.Close()
		return nil, connectors.Permanent(fmt.Errorf("%s cannot take dead letters", rt.sending.DeadLetters.Type), "use another endpoint for the dlq")
	}
	return plain, nil
}

// close closes what attempts that never ended still hold.
func (rs *runtimes) close() {
	rs.mu.Lock()
	open := rs.open
	rs.open = map[runtimeKey]*runtimeEntry{}
	rs.mu.Unlock()
	for _, e := range open {
		select {
		case e.turn <- struct{}{}:
			if e.rt != nil {
				e.rt.close()
			}
			<-e.turn
		default:
		}
	}
}
