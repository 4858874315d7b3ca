package etcd

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mqbridge/mqb/lease"
)

// Watch streams changes. etcd sends as fast as it can and its client buffers
// without bound, so the watch's goroutine takes everything at once and keeps it in
// a queue with a bound: a receiver that lets it overflow gets ErrCompacted.
func (c *Coordinator) Watch(ctx context.Context, prefix string, from int64) <-chan lease.WatchResponse {
	out := make(chan lease.WatchResponse)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(out)
		return out
	}
	c.watches.Go(func() {
		defer close(out)
		c.watch(ctx, prefix, max(from, 1), out)
	})
	return out
}

func (c *Coordinator) watch(ctx context.Context, prefix string, from int64, out chan<- lease.WatchResponse) {
	// A member that has lost its leader ends the watch, which then begins again at
	// one that has a leader.
	asked, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	in := c.client.Watch(asked, c.key(prefix), clientv3.WithPrefix(), clientv3.WithRev(from))
	q := queue{maxEvents: c.o.WatchEvents, maxBytes: c.o.WatchBytes}
	for {
		var to chan<- lease.WatchResponse
		var head lease.WatchResponse
		if len(q.responses) > 0 {
			to, head = out, q.responses[0]
		}
		select {
		case to <- head:
			q.pop()
			continue
		case r, ok := <-in:
			err := errConnection
			if ok {
				err = c.take(&q, &r)
			}
			if err == nil {
				continue
			}
			if ctx.Err() != nil || c.ctx.Err() != nil {
				return // which is why
			}
			cancel() // what etcd still sends is not wanted any more
			select {
			case out <- lease.WatchResponse{Err: err}:
			case <-ctx.Done():
			case <-c.ctx.Done():
			}
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
		return
	}
}

var (
	errConnection = fmt.Errorf("etcd: watch: connection lost: %w", lease.ErrCompacted)
	errSlow       = fmt.Errorf("etcd: watch: receiver too slow: %w", lease.ErrCompacted)
)

// take puts what etcd sent into the queue, one response for each revision, or
// says why the watch ends. etcd never splits a revision over two responses.
func (c *Coordinator) take(q *queue, r *clientv3.WatchResponse) error {
	if err := r.Err(); err != nil {
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			return fmt.Errorf("etcd: watch: %w", lease.ErrCompacted)
		case code(err) == codes.Aborted:
			return errConnection
		}
		return failure("watch", err)
	}
	for i := 0; i < len(r.Events); {
		next := lease.WatchResponse{Revision: r.Events[i].Kv.ModRevision}
		for ; i < len(r.Events) && r.Events[i].Kv.ModRevision == next.Revision; i++ {
			e := lease.Event{KV: c.kv(r.Events[i].Kv)}
			if r.Events[i].Type == clientv3.EventTypeDelete {
				e = lease.Event{Type: lease.EventDelete, KV: lease.KV{Key: e.KV.Key, ModRevision: next.Revision}}
			}
			next.Events = append(next.Events, e)
		}
		if !q.push(next) {
			return errSlow
		}
	}
	return nil
}

// queue is what a receiver has not taken yet, bounded in events and bytes
// (invariant 8).
type queue struct {
	maxEvents, maxBytes int

	responses     []lease.WatchResponse
	events, bytes int
}

// push reports whether there was room; one response always has.
func (q *queue) push(r lease.WatchResponse) bool {
	q.events += len(r.Events)
	q.bytes += bytes(&r)
	q.responses = append(q.responses, r)
	return len(q.responses) == 1 || q.events <= q.maxEvents && q.bytes <= q.maxBytes
}

func (q *queue) pop() {
	q.events -= len(q.responses[0].Events)
	q.bytes -= bytes(&q.responses[0])
	q.responses[0] = lease.WatchResponse{}
	q.responses = q.responses[1:]
}

func bytes(r *lease.WatchResponse) (n int) {
	for i := range r.Events {
		n += len(r.Events[i].KV.Key) + len(r.Events[i].KV.Value)
	}
	return n
}

// endWithConnection lets a stream of watches end with the connection that carries
// it. Left to itself the client would go on at another member, from the revision
// where it stood and without a word; if the store was restored from a backup
// meanwhile that revision means something else, and changes would be missed.
func endWithConnection(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != pb.Watch_Watch_FullMethodName {
		return s, err
	}
	return &watchStream{s}, nil
}

type watchStream struct{ grpc.ClientStream }

// RecvMsg turns every failure into one after which the client does not go on.
func (s *watchStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return status.Error(codes.Aborted, "watch stream ended")
	}
	return nil
}
