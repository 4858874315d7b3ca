package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/route"
)

// source is shared by the runs of a route on this node. Questions about the
// topic and the group go through one client, made on first use; every reader
// fetches through a client of its own.
type source struct {
	config *Config
	spec   *route.Spec

	mu     sync.Mutex
	client *kgo.Client
	closed bool
}

func newSource(config *Config, spec *route.Spec) (*source, error) {
	if errs := config.Validate(route.Input); len(errs) > 0 {
		return nil, connectors.Permanent(fmt.Errorf("route %s: kafka: %w", spec.Name, errors.Join(errs...)), "")
	}
	return &source{config: config, spec: spec}, nil
}

// connection returns the shared client.
func (s *source) connection() (*kgo.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.fail("connect", errClosed)
	}
	if s.client == nil {
		c, err := dial.Client(s.config.dial())
		if err != nil {
			return nil, s.fail("connect", connectors.Permanent(err, ""))
		}
		s.client = c
	}
	return s.client, nil
}

var errClosed = errors.New("source is closed")

// bounded limits a few questions to the brokers, so that a cluster that is not
// there is an error soon.
func (s *source) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 2*s.config.dial().Timeout())
}

// fail adds where it happened and gives the error its class.
func (s *source) fail(op string, err error) error {
	err = fmt.Errorf("route %s: kafka %s: topic %s: %s: %w", s.spec.Name, s.config.URL, s.config.Topic, op, err)
	var classified *connectors.Error
	var broker *kerr.Error
	switch {
	case errors.As(err, &classified), errors.Is(err, context.Canceled), errors.Is(err, connectors.ErrGap), errors.Is(err, checkpoint.ErrForeign):
		return err
	case errors.As(err, &broker):
		switch broker {
		case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.InvalidTopicException:
			return connectors.Permanent(err, "")
		case kerr.UnknownTopicOrPartition:
			return &connectors.Error{Class: connectors.ClassRetryable, Err: err, Hint: "create the topic; it is looked for again"}
		}
		return &connectors.Error{Class: connectors.ClassRetryable, Err: err}
	}
	return connectors.Connection(err)
}

// topic is what the brokers say about our topic.
type topic struct {
	cluster string
	id      kadm.TopicID
	leaders map[int32]int32 // by partition
}

// topic asks a broker: the clients' own metadata may be older than a topic that
// was just created anew.
func (s *source) topic(ctx context.Context) (*kadm.Client, topic, error) {
	c, err := s.connection()
	if err != nil {
		return nil, topic{}, err
	}
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &s.config.Topic
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{asked}
	resp, err := req.RequestWith(ctx, c)
	if err == nil && len(resp.Topics) == 1 {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		return nil, topic{}, s.fail("metadata", err)
	}
	if len(resp.Topics) != 1 {
		return nil, topic{}, s.fail("metadata", fmt.Errorf("%d topics instead of one in the answer", len(resp.Topics)))
	}
	t := topic{id: resp.Topics[0].TopicID, leaders: map[int32]int32{}}
	if resp.ClusterID != nil {
		t.cluster = *resp.ClusterID
	}
	for _, p := range resp.Topics[0].Partitions {
		t.leaders[p.Partition] = p.Leader
	}
	return kadm.NewClient(c), t, nil
}

// Names of the attributes of a partition.
const (
	attrTopic     = "topic"
	attrPartition = "partition"
)

// Partitions lists the topic's partitions: one metadata request.
func (s *source) Partitions(ctx context.Context) ([]connectors.Partition, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, t, err := s.topic(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]connectors.Partition, 0, len(t.leaders))
	for n := range t.leaders {
		out = append(out, connectors.Partition{
			ID:         fmt.Sprintf("%s-%d", s.config.Topic, n),
			Attributes: map[string]string{attrTopic: s.config.Topic, attrPartition: strconv.Itoa(int(n))},
			PartSource: s.config.Topic,
			PartNumber: int(n),
		})
	}
	slices.SortFunc(out, func(a, b connectors.Partition) int { return a.PartNumber - b.PartNumber })
	return out, nil
}

// Identify names the data of a partition "kafka:<cluster id>/<topic id>". A topic
// that was created anew under its old name has another id.
func (s *source) Identify(ctx context.Context, p connectors.Partition, recorded string) (string, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, t, err := s.topic(ctx)
	if err != nil {
		return "", err
	}
	identity := fmt.Sprintf("kafka:%s/%s", t.cluster, t.id)
	if recorded == "" || recorded == identity {
		return identity, nil
	}
	cluster, _, _ := strings.Cut(strings.TrimPrefix(recorded, "kafka:"), "/")
	if cluster != t.cluster {
		return "", s.fail("identify "+p.ID, fmt.Errorf("the record is of %s, the brokers say %s: %w", recorded, identity, checkpoint.ErrForeign))
	}
	return "", s.fail("identify "+p.ID, fmt.Errorf("the topic was created anew: the record is of %s, the brokers say %s: %w", recorded, identity, connectors.ErrGap))
}

// Check connects, looks for the topic and refuses a group in use.
func (s *source) Check(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	adm, _, err := s.topic(ctx)
	if err != nil {
		return err
	}
	return s.refuseLiveGroup(ctx, adm)
}

// refuseLiveGroup makes sure that nobody else consumes with our group: each would
// read what the other one reads, and overwrite its offsets.
func (s *source) refuseLiveGroup(ctx context.Context, adm *kadm.Client) error {
	group := s.config.GroupID
	if group == "" {
		return nil
	}
	classic, err := adm.DescribeGroups(ctx, group)
	if err != nil {
		return s.fail("describe group "+group, err)
	}
	members := len(classic[group].Members)
	if members == 0 {
		// Groups of the newer protocol are unknown to the older question, and
		// older brokers to the newer one.
		next, err := adm.DescribeConsumerGroups(ctx, group)
		if err == nil {
			members = len(next[group].Members)
		}
	}
	if members > 0 {
		return s.fail("group "+group, connectors.Permanent(
			fmt.Errorf("%d members are consuming with this group", members),
			"stop them, or give the route a group_id of its own"))
	}
	return nil
}

// committed is the group's offset of a partition; ok is false if it has none.
func (s *source) committed(ctx context.Context, adm *kadm.Client, partition int32) (offset int64, epoch int32, ok bool, err error) {
	// A transaction that is committing may be about to move the offset.
	all, err := adm.FetchOffsetsForTopics(kadm.RequireStable(ctx), s.config.GroupID, s.config.Topic)
	if err != nil {
		return 0, -1, false, s.fail("offsets of group "+s.config.GroupID, err)
	}
	o, found := all.Lookup(s.config.Topic, partition)
	if found && o.Err != nil {
		return 0, -1, false, s.fail("offsets of group "+s.config.GroupID, o.Err)
	}
	return o.At, o.LeaderEpoch, found && o.At >= 0, nil
}

// bounds are the first and the next offset of a partition's log.
type bounds struct{ start, end int64 }

func (s *source) bounds(ctx context.Context, adm *kadm.Client, partition int32) (bounds, error) {
	starts, err1 := adm.ListStartOffsets(ctx, s.config.Topic)
	ends, err2 := adm.ListEndOffsets(ctx, s.config.Topic)
	if err := errors.Join(err1, err2); err != nil {
		return bounds{}, s.fail("list offsets", err)
	}
	start, ok1 := starts.Lookup(s.config.Topic, partition)
	end, ok2 := ends.Lookup(s.config.Topic, partition)
	if err := errors.Join(start.Err, end.Err); err != nil {
		return bounds{}, s.fail("list offsets", err)
	}
	if !ok1 || !ok2 {
		return bounds{}, s.fail("list offsets", kerr.UnknownTopicOrPartition)
	}
	return bounds{start: start.Offset, end: end.Offset}, nil
}

// mirror commits an offset to the group, as a consumer outside of any generation:
// the coordinator refuses that while the group has members.
func (s *source) mirror(ctx context.Context, partition int32, p position) error {
	c, err := s.connection()
	if err != nil {
		return err
	}
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: s.config.Topic, Partition: partition, At: p.offset, LeaderEpoch: p.epoch})
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := kadm.NewClient(c).CommitAllOffsets(ctx, s.config.GroupID, offsets); err != nil {
		return s.fail("mirror offsets to group "+s.config.GroupID, err)
	}
	return nil
}

func (s *source) Close() error {
	s.mu.Lock()
	c := s.client
	s.client, s.closed = nil, true
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
	return nil
}
