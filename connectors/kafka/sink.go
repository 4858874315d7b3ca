package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// sinkCapabilities: nothing fences a write of an older owner, and one that is
// repeated is a second record (docs/protocol.md, writing first).
func sinkCapabilities(config any) route.SinkCapabilities {
	c := route.SinkCapabilities{
		Tier: route.TierNone, Durable: true, Locality: route.Shared,
		Why:   "transactions into kafka are not built yet; a repeat has the " + headerID + " of the first",
		Raise: "an output that takes the position into its transaction or writes parts, such as sqlx or file",
	}
	if s, _ := config.(*Config).settings(route.Output); s.acks != kgo.AllISRAcks() {
		c.Durable, c.Why = false, "producer_options: with acks other than all a broker that fails takes acknowledged records with it"
	}
	return c
}

// sink is shared by the runs of a route on this node. Every writer produces
// through a client of its own: one that is given up takes nobody's records along.
type sink struct{ endpoint }

func newSink(config *Config, spec *route.Spec) (*sink, error) {
	s := &sink{}
	return s, s.init(config, spec, route.Output)
}

// Check connects and looks for the topic. One that is missing is created by the
// first run.
func (s *sink) Check(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, _, err := s.topic(ctx)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil
	}
	return err
}

// Prepare makes sure that the brokers can be reached and let us in.
func (s *sink) Prepare(ctx context.Context, _ connectors.Partition) (connectors.Prepared, error) {
	if err := s.Check(ctx); err != nil {
		return nil, err
	}
	return prepared{s}, nil
}

type prepared struct{ sink *sink }

// Session implements connectors.Prepared: a producer holds no locks.
func (prepared) Session() string { return "" }

// Close implements connectors.Prepared.
func (prepared) Close() error { return nil }

// Open creates the topic if it does not exist, and makes the writer.
func (p prepared) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	s := p.sink
	s.remark(claim.Log)
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	adm, err := s.ensure(ctx, claim)
	if err != nil {
		return nil, err
	}
	w := newWriter(s, claim, s.topicMax(ctx, adm))
	if _, err := w.connect(); err != nil {
		return nil, err
	}
	return w, nil
}

// ensure creates the topic where it is missing. Several partitions and nodes may do
// that at the same time: who comes second finds it there.
func (s *sink) ensure(ctx context.Context, claim connectors.Claim) (*kadm.Client, error) {
	adm, _, err := s.topic(ctx)
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return adm, err
	}
	c, err := s.connection()
	if err != nil {
		return nil, err
	}
	partitions := int32(defaultPartitions)
	if s.config.Partitions != nil {
		partitions = *s.config.Partitions
	}
	// Replication factor -1 is the brokers' default.
	_, err = kadm.NewClient(c).CreateTopic(ctx, partitions, -1, nil, s.config.Topic)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return nil, s.fail("create topic", connectors.Permanent(err, "create the topic, or let the user create topics"))
	case err == nil:
		claim.Log.Info("kafka: topic created", "topic", s.config.Topic, "partitions", partitions)
	case !errors.Is(err, kerr.TopicAlreadyExists):
		return nil, s.fail("create topic", err)
	}
	// The answer comes before all brokers know the topic and its leaders.
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval = 10 * time.Millisecond
	return backoff.Retry(ctx, func() (*kadm.Client, error) {
		adm, t, err := s.topic(ctx)
		if err == nil && len(t.leaders) == 0 {
			err = s.fail("create topic", kerr.LeaderNotAvailable)
		}
		for n, leader := range t.leaders {
			if leader < 0 {
				err = s.fail(fmt.Sprintf("create topic: partition %d", n), kerr.LeaderNotAvailable)
			}
		}
		return adm, err
	}, backoff.WithBackOff(pace), backoff.WithMaxElapsedTime(0))
}

// topicMax is the largest batch that the topic takes, 0 if we may not know it:
// what is too large for it is then found out by trying.
func (s *sink) topicMax(ctx context.Context, adm *kadm.Client) int32 {
	all, err := adm.DescribeTopicConfigs(ctx, s.config.Topic)
	if err != nil {
		return 0
	}
	topic, err := all.On(s.config.Topic, nil)
	if err != nil || topic.Err != nil {
		return 0
	}
	for _, c := range topic.Configs {
		if c.Key == "max.message.bytes" {
			n, _ := strconv.ParseInt(c.MaybeValue(), 10, 32)
			return int32(n)
		}
	}
	return 0
}
