package raft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// Get reads the key from this member's copy once it has everything that was
// written before the call.
func (e *Engine) Get(ctx context.Context, key string) (*lease.KV, int64, error) {
	if err := e.catchUp(ctx); err != nil {
		return nil, 0, fmt.Errorf("raft: get %s: %w", key, err)
	}
	kv, rev := e.store.Get(key)
	return kv, rev, nil
}

// List is Get for a prefix.
func (e *Engine) List(ctx context.Context, prefix string) ([]lease.KV, int64, error) {
	if err := e.catchUp(ctx); err != nil {
		return nil, 0, fmt.Errorf("raft: list %s: %w", prefix, err)
	}
	kvs, rev := e.store.List(prefix)
	return kvs, rev, nil
}

// Txn proposes the transaction once. It is not sent again when its outcome is
// unknown, so it can never be applied twice; requests need no ids for that.
func (e *Engine) Txn(ctx context.Context, compares []lease.Compare, ops []lease.Op) (lease.Result, error) {
	if err := kv.Check(compares, ops); err != nil {
		return lease.Result{}, err
	}
	o, err := e.command(ctx, kv.Command{Kind: kv.KindTxn, Compares: compares, Ops: ops}, false)
	if err != nil {
		return lease.Result{}, fmt.Errorf("raft: txn: %w", err)
	}
	return o.Result, nil
}

// Grant may leave a lease behind that nobody knows when a reply was lost; it
// ends by its TTL.
func (e *Engine) Grant(ctx context.Context, ttl time.Duration) (lease.LeaseID, error) {
	if ttl <= 0 {
		return 0, fmt.Errorf("raft: lease of %v", ttl)
	}
	o, err := e.command(ctx, kv.Command{Kind: kv.KindGrant, TTL: ttl}, true)
	if err != nil {
		return 0, fmt.Errorf("raft: grant: %w", err)
	}
	return o.Lease, nil
}

func (e *Engine) KeepAlive(ctx context.Context, id lease.LeaseID) (time.Duration, error) {
	b, err := e.ask(ctx, verbKeepAlive, binary.AppendVarint(nil, int64(id)), true)
	if err != nil {
		return 0, fmt.Errorf("raft: keepalive of %d: %w", id, err)
	}
	ttl, n := binary.Varint(b)
	if n <= 0 {
		return 0, errors.New("raft: malformed answer to a keepalive")
	}
	return time.Duration(ttl), nil
}

func (e *Engine) Revoke(ctx context.Context, id lease.LeaseID) error {
	if _, err := e.command(ctx, kv.Command{Kind: kv.KindRevoke, Lease: id}, true); err != nil {
		return fmt.Errorf("raft: revoke %d: %w", id, err)
	}
	return nil
}

// Watch follows this member's own copy, so it outlives any leader. A member cut
// off sees nothing new until it is back.
func (e *Engine) Watch(ctx context.Context, prefix string, from int64) <-chan lease.WatchResponse {
	return e.store.Watch(ctx, prefix, from)
}

func (e *Engine) command(ctx context.Context, c kv.Command, again bool) (kv.Outcome, error) {
	b, err := e.ask(ctx, verbPropose, c.AppendBinary(nil), again)
	if err != nil {
		return kv.Outcome{}, err
	}
	return decodeOutcome(b)
}

func encodeOutcome(o kv.Outcome) reply {
	switch {
	case errors.Is(o.Err, lease.ErrLeaseNotFound):
		return reply{status: statusLeaseNotFound}
	case o.Err != nil:
		return refuse(o.Err)
	}
	b := []byte{0}
	if o.Result.Succeeded {
		b[0] = 1
	}
	b = binary.AppendVarint(b, o.Result.Revision)
	return reply{body: binary.AppendVarint(b, int64(o.Lease))}
}

func decodeOutcome(b []byte) (o kv.Outcome, err error) {
	if len(b) > 0 {
		o.Result.Succeeded = b[0] == 1
		rev, n := binary.Varint(b[1:])
		if n > 0 {
			o.Result.Revision = rev
			if id, k := binary.Varint(b[1+n:]); k > 0 {
				o.Lease = lease.LeaseID(id)
				return o, nil
			}
		}
	}
	return o, errors.New("raft: malformed outcome")
}

// catchUp waits until this member's copy holds everything that was acknowledged
// before the call.
func (e *Engine) catchUp(ctx context.Context) error {
	b, err := e.ask(ctx, verbReadIndex, nil, true)
	if err != nil {
		return err
	}
	if len(b) != 8 {
		return errors.New("malformed read index")
	}
	index := binary.BigEndian.Uint64(b)
	for {
		applied, moved := e.fsm.position()
		if applied >= index {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%w: this member is behind: %w", lease.ErrUnavailable, ctx.Err())
		case <-e.ctx.Done():
			return lease.ErrClosed
		}
	}
}

// ask has the leader answer, wherever it is and as often as it changes, until
// ctx ends. again says that a request whose outcome is unknown may be repeated.
func (e *Engine) ask(ctx context.Context, v verb, body []byte, again bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxCall)
	defer cancel()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 5*time.Millisecond, 100*time.Millisecond
	why := errors.New("no leader")
	for {
		if e.ctx.Err() != nil {
			return nil, lease.ErrClosed
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w: %w", lease.ErrUnavailable, ctx.Err(), why)
		}
		id, at, changed := e.current()
		if id != "" {
			a, err := e.askOnce(ctx, id, at, v, body)
			if err == nil {
				switch a.status {
				case statusOK:
					return a.body, nil
				case statusLeaseNotFound:
					return nil, lease.ErrLeaseNotFound
				case statusRefused:
					return nil, &refusedError{reason: string(a.body)}
				case statusNotLeader:
					err = errNotLeader
				default:
					err = errUnknown
				}
			}
			if errors.Is(err, errUnknown) && !again {
				if e.ctx.Err() != nil {
					return nil, lease.ErrClosed
				}
				return nil, fmt.Errorf("%w: %w", lease.ErrUnavailable, err)
			}
			why = err
		}
		t := time.NewTimer(pause.NextBackOff())
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		case <-e.ctx.Done():
		}
		t.Stop()
	}
}

// askOnce asks one leader, and gives up waiting when another is known: the one
// that was asked may be frozen.
func (e *Engine) askOnce(ctx context.Context, id hraft.ServerID, at hraft.ServerAddress, v verb, body []byte) (reply, error) {
	if string(id) == e.o.Node {
		return e.answer(ctx, v, body), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	defer close(watch)
	go func() {
		for {
			now, _, changed := e.current()
			if now != "" && now != id {
				cancel(errNotLeader)
				return
			}
			select {
			case <-changed:
			case <-watch:
				return
			case <-e.ctx.Done():
				cancel(lease.ErrClosed)
				return
			}
		}
	}()
	return e.calls.call(ctx, string(at), v, body)
}

func refuse(err error) reply { return reply{status: statusRefused, body: []byte(err.Error())} }

// answer carries one request out on this member.
func (e *Engine) answer(ctx context.Context, v verb, body []byte) reply {
	switch v {
	case verbPropose:
		o, err := e.propose(ctx, body)
		switch {
		case errors.Is(err, errNotLeader):
			return reply{status: statusNotLeader}
		case err != nil:
			return reply{status: statusUnknown}
		}
		return encodeOutcome(o)
	case verbKeepAlive:
		id, n := binary.Varint(body)
		if n <= 0 {
			return refuse(errors.New("malformed lease id"))
		}
		return e.renew(ctx, lease.LeaseID(id))
	case verbReadIndex:
		if _, err := e.confirmer.confirm(ctx); err != nil {
			return reply{status: statusNotLeader}
		}
		// Whatever this leader acknowledged it had applied before.
		applied, _ := e.fsm.position()
		return reply{body: binary.BigEndian.AppendUint64(nil, applied)}
	case verbTerm:
		if string(body) != e.o.Node || !e.admitted.Load() {
			return refuse(errors.New("not that member"))
		}
		return reply{body: binary.BigEndian.AppendUint64(nil, e.raft.Load().CurrentTerm())}
	default:
		return e.answerMember(ctx, v, body)
	}
}

// propose appends a command to the log and waits until it is applied here.
// errNotLeader: it is not in the log and never will be. Many proposals at a time
// share one write to disk.
func (e *Engine) propose(ctx context.Context, command []byte) (kv.Outcome, error) {
	enqueue := maxCall
	if deadline, ok := ctx.Deadline(); ok {
		enqueue = max(time.Until(deadline), time.Millisecond)
	}
	r := e.raft.Load()
	if r.State() != hraft.Leader {
		return kv.Outcome{}, errNotLeader
	}
	f, err := await(ctx, e, func() hraft.ApplyFuture { return r.Apply(command, enqueue) })
	switch {
	case err == nil:
		return f.Response().(kv.Outcome), nil
	case errors.Is(err, errNotLeader), errors.Is(err, hraft.ErrNotLeader), errors.Is(err, hraft.ErrLeadershipTransferInProgress), errors.Is(err, hraft.ErrEnqueueTimeout):
		return kv.Outcome{}, errNotLeader
	}
	return kv.Outcome{}, fmt.Errorf("%w: %w", errUnknown, err)
}

// await asks the library to change the log and waits for its answer or for ctx.
// errNotLeader: Close has begun, and nothing was asked.
//
// Close ends the library after what was asked here is answered: entries that are
// committed but still wait for the state machine when the library ends are never
// answered. Most answers are quick: a leader commits, or steps down when it hears no
// majority. One whose followers answer and cannot store does neither until it ends,
// and it is then that it answers; so Close waits for a while only.
func await[F hraft.Future](ctx context.Context, e *Engine, ask func() F) (F, error) {
	var f F
	done := make(chan error, 1)
	e.closing.Lock()
	if e.shut {
		e.closing.Unlock()
		return f, errNotLeader
	}
	e.asked.Go(func() {
		answer := ask()
		err := answer.Error()
		f = answer
		done <- err
	})
	e.closing.Unlock()
	select {
	case err := <-done:
		return f, err
	case <-ctx.Done():
		var none F
		return none, ctx.Err()
	}
}

// reconfigure asks for a change of the members and waits for it to be applied, or
// for Close: errNotLeader, whether it still will be or not.
func (e *Engine) reconfigure(change func() hraft.IndexFuture) error {
	_, err := await(e.ctx, e, change)
	if err != nil && e.ctx.Err() != nil {
		return errNotLeader
	}
	return err
}

// renew answers a keepalive only after this member was seen to lead at some time
// after the request came.
func (e *Engine) renew(ctx context.Context, id lease.LeaseID) reply {
	term, err := e.confirmer.confirm(ctx)
	if err != nil {
		return reply{status: statusNotLeader}
	}
	ttl, err := e.lessor.renew(term, id)
	switch {
	case err == nil:
		return reply{body: binary.AppendVarint(nil, int64(ttl))}
	case errors.Is(err, lease.ErrLeaseNotFound):
		return reply{status: statusLeaseNotFound}
	}
	return reply{status: statusNotLeader} // or its end is under way: the caller asks again
}

// expire proposes the end of a lease.
func (e *Engine) expire(id lease.LeaseID) (surelyNot bool) {
	c := kv.Command{Kind: kv.KindRevoke, Lease: id}
	ctx, cancel := context.WithTimeout(e.ctx, maxCall)
	defer cancel()
	_, err := e.propose(ctx, c.AppendBinary(nil))
	return errors.Is(err, errNotLeader)
}

// prove asks a majority of the voters for their terms. If all of them, this
// member included, are still in the term it leads, nobody else had been elected
// when they answered: a vote for a later term would have raised one of theirs.
//
// The library's VerifyLeader is not enough: it counts the answer to a heartbeat
// sent before it was called, and such an answer may wait in the socket of a
// leader that was frozen while another took over.
func (e *Engine) prove() (uint64, error) {
	r := e.raft.Load()
	term := r.CurrentTerm()
	if term == 0 || e.readyTerm.Load() != term {
		return 0, errNotLeader
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.o.HeartbeatTimeout)
	defer cancel()
	voters := e.voters()
	agreed, asked := 0, 0
	answers := make(chan bool, len(voters))
	for _, v := range voters {
		if string(v.ID) == e.o.Node {
			agreed++
			continue
		}
		asked++
		go func() {
			at, _ := e.ServerAddr(v.ID)
			a, err := e.calls.call(ctx, string(at), verbTerm, []byte(v.ID))
			answers <- err == nil && a.status == statusOK && len(a.body) == 8 && binary.BigEndian.Uint64(a.body) == term
		}()
	}
	for quorum := len(voters)/2 + 1; agreed < quorum; asked-- {
		if asked == 0 {
			return 0, errNotLeader
		}
		if <-answers {
			agreed++
		}
	}
	if r.State() != hraft.Leader || r.CurrentTerm() != term {
		return 0, errNotLeader
	}
	return term, nil
}

// lead prepares this member to answer as a leader whenever it becomes one.
func (e *Engine) lead() {
	r := e.raft.Load()
	check := time.NewTicker(250 * time.Millisecond) // the channel holds the last change only
	defer check.Stop()
	for {
		if r.State() == hraft.Leader {
			term := r.CurrentTerm()
			if e.readyTerm.Load() != term {
				e.readyTerm.Store(0)
				e.lessor.stop()
				_, err := await(e.ctx, e, func() hraft.Future { return r.Barrier(maxCall) })
				if err == nil && r.CurrentTerm() == term {
					e.lessor.start(term)
					e.readyTerm.Store(term)
					e.wake()
				}
			}
		} else if e.readyTerm.Swap(0) != 0 {
			e.lessor.stop()
		}
		select {
		case <-r.LeaderCh():
		case <-check.C:
		case <-e.ctx.Done():
			return
		}
	}
}
