package kafka

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

// The leader dies while both sides are at work: nothing that was acknowledged is
// lost, nothing is read twice or passed over, and what is written again stays in order.
func TestALeaderThatDiesLosesNothingAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	quick := map[string]string{"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
	first := harness.StartKafka(t, harness.KafkaOptions{Properties: quick})
	second := first.Join(t, 2, quick)
	topic := "led-by-the-second"
	onBoth(t, first, topic)
	both := func(c *Config, _ *route.Spec) { c.URL = first.Addr + "," + second.Addr }

	const batches, size = 60, 50
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	written := make(chan error, 1)
	go func() {
		written <- writeNumbers(ctx, t, newTestSink(t, first.Addr, topic, both), batches, size, func(n int) {
			if n == batches/2 {
				second.Process().Kill()
			}
		})
	}()
	s := newTestSource(t, first, topic, both)
	read := readNumbers(ctx, t, s, batches*size)
	if read != nil {
		cancel()
	}
	err := <-written
	cancel()
	if read != nil || err != nil {
		t.Fatalf("read: %v; write: %v", read, err)
	}
}

// goesOn reports whether a partition would try again, in another run.
func goesOn(ctx context.Context, err error) bool {
	c := connectors.Classify(err)
	return ctx.Err() == nil && (c == connectors.ClassConnection || c == connectors.ClassRetryable)
}

// writeNumbers writes batches of size numbers, in order and under one key. What fails
// is written again by another writer.
func writeNumbers(ctx context.Context, t *testing.T, s *sink, batches, size int, before func(n int)) error {
	var w *writer
	for n := range batches {
		in := message.NewBatch()
		for i := range size {
			in.Append(strconv.AppendInt(nil, int64(n*size+i), 10), int64(i), int64(i+1))
			in.SetKey([]byte("one"))
		}
		before(n)
		for {
			var err error
			if w == nil {
				w, err = openSink(t, s)
			}
			if err == nil {
				err = w.Write(ctx, in, 0, in.Len())
			}
			if err == nil {
				break
			}
			if !goesOn(ctx, err) {
				return err
			}
			w = nil
		}
	}
	return nil
}

// readNumbers reads the numbers below n, each behind the one before it or again.
func readNumbers(ctx context.Context, t *testing.T, s *source, n int) error {
	next := 0
	var end message.Position
	run := func() error {
		r, err := s.Open(ctx, s.testClaim(t, 0, end))
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		for next < n {
			b, err := r.Read(ctx)
			if err != nil {
				return err
			}
			var g got
			g.add(t, b)
			end = g.end
			for _, text := range g.values {
				v, err := strconv.Atoi(text)
				if err != nil || v > next {
					return connectors.Permanent(fmt.Errorf("%q where %d was to come", text, next), "")
				}
				next = max(next, v+1)
			}
		}
		return nil
	}
	for {
		if err := run(); err == nil || !goesOn(ctx, err) {
			return err
		}
	}
}

// onBoth creates a topic of one partition that nodes 2 and 1 have, led by the first
// named.
func onBoth(t *testing.T, b *harness.KafkaBroker, topic string) {
	t.Helper()
	c := b.Client(t)
	harness.Eventually(t, time.Minute, func() error {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Replicas = []int32{2, 1}
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, -1, -1
		rt.ReplicaAssignment = append(rt.ReplicaAssignment, a)
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics, req.TimeoutMillis = append(req.Topics, rt), 10_000
		resp, err := req.RequestWith(t.Context(), c)
		if err == nil {
			err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		}
		return err
	})
	adm := b.Admin(t)
	harness.Eventually(t, time.Minute, func() error {
		d, err := adm.ListTopics(t.Context(), topic)
		if err == nil && (len(d[topic].Partitions) != 1 || d[topic].Partitions[0].Leader != 2 || len(d[topic].Partitions[0].ISR) != 2) {
			err = fmt.Errorf("%+v", d[topic])
		}
		return err
	})
}
