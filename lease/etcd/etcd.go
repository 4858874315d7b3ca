// Package etcd is the coordinator for production: any etcd cluster of version 3.4
// or later, shared with others under a namespace. It keeps nothing itself and
// gives the guarantees that etcd gives:
//
//   - Reads and transactions are linearizable, and a transaction is sent once:
//     after ErrUnavailable it may or may not have been applied, and it is for the
//     caller to look.
//   - A keepalive that reaches the leader directly is answered only after the
//     leader made sure of its leadership. One that reaches a follower is passed on
//     to whom that follower takes for the leader, and that one does not make sure
//     again. In a cluster of five or more, cut into two parts, a node on the minority's side can
//     so be told once more, within an election time-out, that its lease lives.
//     The fence in the stores covers this, as it covers every pause (invariant 1).
//   - A lease lives a whole number of seconds (rounded up), and no less than one
//     and a half election time-outs of the server: 2 s with etcd's defaults. A new
//     leader starts every lease's time anew.
//   - A watch ends with ErrCompacted whenever its connection breaks, since what it
//     connects to next may have been restored from a backup and count other
//     revisions; listing again is right in both cases.
//
// Limits are the servers': --max-txn-ops (128 operations and 128 compares in one
// transaction) and --max-request-bytes (1.5 MiB); beyond them a call is refused
// with an error that names the setting.
//
// An etcd that is restored from a snapshot should be restored with
// "etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted", which
// keeps revisions from being used twice.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// Coordinator is a connection to an etcd cluster. Safe for concurrent use.
type Coordinator struct {
	client *clientv3.Client
	o      Options

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.Mutex // guards closed against a Watch that begins
	closed  bool
	watches sync.WaitGroup
}

var _ lease.Coordinator = (*Coordinator)(nil)

// Open prepares a connection. Without credentials it does not wait for etcd: the
// calls do. With them it logs in, and returns ErrUnavailable (wrapped) when nobody
// answers within 5 s or ctx.
func Open(ctx context.Context, o Options) (*Coordinator, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints")
	}
	if (o.Username == "") != (o.Password == "") {
		return nil, errors.New("etcd: a user needs a password and a password a user")
	}
	if o.WatchEvents <= 0 {
		o.WatchEvents = defaultWatchEvents
	}
	if o.WatchBytes <= 0 {
		o.WatchBytes = defaultWatchBytes
	}
	scheme := "http://"
	if o.TLS != nil {
		scheme = "https://"
	}
	endpoints := make([]string, len(o.Endpoints))
	for i, e := range o.Endpoints {
		endpoints[i] = scheme + e
	}
	dial := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's own back-off ends at two minutes, which would leave a node cut off
			// long after etcd is back.
			Backoff:           backoff.Config{BaseDelay: reconnectFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectEvery},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithChainStreamInterceptor(endWithConnection),
	}
	if o.Dial != nil {
		dial = append(dial, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return o.Dial(ctx, addr) }))
	}
	life, cancel := context.WithCancel(context.Background())
	// The client logs in under the context that it lives with, so the caller's may
	// end it only until then.
	stop := context.AfterFunc(ctx, cancel)
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		Context:              life,
		TLS:                  o.TLS,
		Username:             o.Username,
		Password:             o.Password,
		DialTimeout:          loginTimeout,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: pingTimeout,
		DialOptions:          dial,
		Logger:               zap.NewNop(), // every failure comes back as an error
	})
	if !stop() && err == nil {
		err = errors.Join(ctx.Err(), client.Close())
	}
	if err != nil {
		cancel()
		return nil, failure("log in", err)
	}
	return &Coordinator{client: client, o: o, ctx: life, cancel: cancel}, nil
}

// begin refuses what cannot be answered any more.
func (c *Coordinator) begin(ctx context.Context, call string) error {
	if c.ctx.Err() != nil {
		return lease.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("etcd: %s: %w: %w", call, lease.ErrUnavailable, err)
	}
	return nil
}

// failed says why a call failed.
func (c *Coordinator) failed(call string, err error) error {
	if c.ctx.Err() != nil {
		return lease.ErrClosed
	}
	return failure(call, err)
}

func (c *Coordinator) key(k string) string { return c.o.Namespace + k }

func (c *Coordinator) kv(p *mvccpb.KeyValue) lease.KV {
	return lease.KV{
		Key: string(p.Key[len(c.o.Namespace):]), Value: p.Value, Version: p.Version,
		CreateRevision: p.CreateRevision, ModRevision: p.ModRevision, Lease: lease.LeaseID(p.Lease),
	}
}

// Get reads one key.
func (c *Coordinator) Get(ctx context.Context, key string) (*lease.KV, int64, error) {
	if err := c.begin(ctx, "get"); err != nil {
		return nil, 0, err
	}
	r, err := c.client.Get(ctx, c.key(key))
	if err != nil {
		return nil, 0, c.failed("get", err)
	}
	if len(r.Kvs) == 0 {
		return nil, r.Header.Revision, nil
	}
	kv := c.kv(r.Kvs[0])
	return &kv, r.Header.Revision, nil
}

// List reads a prefix at one revision.
func (c *Coordinator) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	if err := c.begin(ctx, "list"); err != nil {
		return nil, 0, err
	}
	r, err := c.client.Get(ctx, c.key(prefix), clientv3.WithPrefix())
	if err != nil {
		return nil, 0, c.failed("list", err)
	}
	kvs := make([]lease.KV, len(r.Kvs))
	for i, p := range r.Kvs {
		kvs[i] = c.kv(p)
	}
	return kvs, r.Header.Revision, nil
}

// Txn sends one transaction once. The client repeats it only where etcd says that
// it was not looked at (a login that ran out).
func (c *Coordinator) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	if err := c.begin(ctx, "txn"); err != nil {
		return lease.Result{}, err
	}
	if err := kv.Check(compares, ops); err != nil {
		return lease.Result{}, err
	}
	ifs := make([]clientv3.Cmp, len(compares))
	for i := range compares {
		ifs[i] = c.compare(&compares[i])
	}
	thens := make([]clientv3.Op, len(ops))
	for i := range ops {
		thens[i] = c.op(&ops[i])
	}
	r, err := c.client.Txn(ctx).If(ifs...).Then(thens...).Commit()
	if err != nil {
		return lease.Result{}, c.failed("txn", err)
	}
	return lease.Result{Succeeded: r.Succeeded, Revision: r.Header.Revision}, nil
}

func (c *Coordinator) compare(x *lease.Compare) clientv3.Cmp {
	key := c.key(x.Key)
	switch x.Field {
	case lease.FieldVersion:
		return clientv3.Compare(clientv3.Version(key), "=", x.Number)
	case lease.FieldModRevision:
		return clientv3.Compare(clientv3.ModRevision(key), "=", x.Number)
	case lease.FieldCreateRevision:
		return clientv3.Compare(clientv3.CreateRevision(key), "=", x.Number)
	default:
		// etcd too holds an absent key for equal to no value.
		return clientv3.Compare(clientv3.Value(key), "=", string(x.Value))
	}
}

func (c *Coordinator) op(x *lease.Op) clientv3.Op {
	key := c.key(x.Key)
	switch x.Kind {
	case lease.OpPut:
		return clientv3.OpPut(key, string(x.Value), clientv3.WithLease(clientv3.LeaseID(x.Lease)))
	case lease.OpDelete:
		return clientv3.OpDelete(key)
	default:
		return clientv3.OpDelete(key, clientv3.WithPrefix())
	}
}

// Grant makes a lease of ttl, rounded up to whole seconds. A reply that was lost
// leaves a lease without keys behind, which ends by itself.
func (c *Coordinator) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	if err := c.begin(ctx, "grant"); err != nil {
		return 0, err
	}
	if ttl <= 0 {
		return 0, fmt.Errorf("etcd: grant: a lease of %v", ttl)
	}
	r, err := c.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, c.failed("grant", err)
	}
	return lease.LeaseID(r.ID), nil
}

// KeepAlive restarts the lease's time once.
func (c *Coordinator) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	if err := c.begin(ctx, "keepalive"); err != nil {
		return 0, err
	}
	r, err := c.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, c.failed("keepalive", err)
	}
	return time.Duration(r.TTL) * time.Second, nil
}

// Revoke ends a lease.
func (c *Coordinator) Revoke(ctx context.Context, id lease.LeaseID) error {
	if err := c.begin(ctx, "revoke"); err != nil {
		return err
	}
	if _, err := c.client.Revoke(ctx, clientv3.LeaseID(id)); err != nil {
		if err = c.failed("revoke", err); !errors.Is(err, lease.ErrLeaseNotFound) {
			return err
		}
	}
	return nil
}

// Close ends the watches and the connections; later calls return ErrClosed.
func (c *Coordinator) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	err := c.client.Close()
	c.watches.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}
