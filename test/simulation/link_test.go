package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

// link is a process's connection to the coordinator. Everything that is written
// through it is shown to the ledger in the order in which it is written. The
// operator's link has no process and no faults.
type link struct {
	*memory.Client
	p      *process
	ledger *ledger
}

func (l *link) call(ctx context.Context, what string, effect func() error) error {
	if l.p == nil {
		return effect()
	}
	err := l.p.call(ctx, "coordinator "+what, effect)
	if errors.Is(err, errLost) || errors.Is(err, errDead) || err != nil && ctx.Err() != nil && !errors.Is(err, lease.ErrUnavailable) {
		return fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
	}
	return err
}

func (l *link) caller(ctx context.Context, what string) func(func() error) error {
	return func(effect func() error) error { return l.call(ctx, what, effect) }
}

// The effects have contexts of their own: a request on its way arrives, whatever
// becomes of who sent it.

func (l *link) Get(ctx context.Context, key string) (*lease.KV, int64, error) {
	type got struct {
		kv  *lease.KV
		rev int64
	}
	g, err := answer(l.caller(ctx, "get"), func() (g got, err error) {
		g.kv, g.rev, err = l.Client.Get(context.Background(), key)
		return g, err
	})
	return g.kv, g.rev, err
}

func (l *link) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	type got struct {
		kvs []lease.KV
		rev int64
	}
	g, err := answer(l.caller(ctx, "list"), func() (g got, err error) {
		g.kvs, g.rev, err = l.Client.List(context.Background(), prefix)
		return g, err
	})
	return g.kvs, g.rev, err
}

func (l *link) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	return answer(l.caller(ctx, "txn"), func() (lease.Result, error) {
		return l.ledger.txn(ops, func() (lease.Result, error) { return l.Client.Txn(context.Background(), compares, ops) })
	})
}

func (l *link) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	return answer(l.caller(ctx, "grant"), func() (lease.LeaseID, error) { return l.Client.Grant(context.Background(), ttl) })
}

func (l *link) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	return answer(l.caller(ctx, "keepalive"), func() (time.Duration, error) { return l.Client.KeepAlive(context.Background(), id) })
}

func (l *link) Revoke(ctx context.Context, id lease.LeaseID) error {
	return l.call(ctx, "revoke", func() error { return l.Client.Revoke(context.Background(), id) })
}
