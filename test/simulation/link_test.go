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

// The effects have contexts of their own: a request on its way arrives, whatever
// becomes of who sent it.

func (l *link) Get(ctx context.Context, key string) (kv *lease.KV, rev int64, err error) {
	err = l.call(ctx, "get", func() (err error) {
		kv, rev, err = l.Client.Get(context.Background(), key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return kv, rev, nil
}

func (l *link) List(ctx context.Context, prefix string) (kvs []lease.KV, rev int64, err error) {
	err = l.call(ctx, "list", func() (err error) {
		kvs, rev, err = l.Client.List(context.Background(), prefix)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return kvs, rev, nil
}

func (l *link) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (res lease.Result, err error) {
	err = l.call(ctx, "txn", func() (err error) {
		res, err = l.ledger.txn(compares, ops, func() (lease.Result, error) {
			return l.Client.Txn(context.Background(), compares, ops)
		})
		return err
	})
	if err != nil {
		return lease.Result{}, err
	}
	return res, nil
}

func (l *link) Grant(ctx context.Context, ttl time.Duration) (id lease.LeaseID, err error) {
	err = l.call(ctx, "grant", func() (err error) {
		id, err = l.Client.Grant(context.Background(), ttl)
		return err
	})
	if err != nil {
		return 0, err
	}
	return id, nil
}

func (l *link) KeepAlive(ctx context.Context, id lease.LeaseID) (ttl time.Duration, err error) {
	err = l.call(ctx, "keepalive", func() (err error) {
		ttl, err = l.Client.KeepAlive(context.Background(), id)
		return err
	})
	if err != nil {
		return 0, err
	}
	return ttl, nil
}

func (l *link) Revoke(ctx context.Context, id lease.LeaseID) error {
	return l.call(ctx, "revoke", func() error { return l.Client.Revoke(context.Background(), id) })
}
