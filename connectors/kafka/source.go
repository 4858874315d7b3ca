package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// source is shared by the runs of a route on this node. Every reader fetches
// through a client of its own.
type source struct{ endpoint }

func newSource(config *Config, spec *route.Spec) (*source, error) {
	s := &source{}
	return s, s.init(config, spec, route.Input)
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

// Connect implements connectors.Connector.
func (s *source) Connect(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, _, err := s.topic(ctx)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil // Identify knows whether it was there
	}
	return err
}

// Identify names the data of a partition "kafka:<cluster id>/<topic id>". A topic
// that was created anew under its old name has another id.
func (s *source) Identify(ctx context.Context, p connectors.Partition, recorded string) (string, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	_, t, err := s.topic(ctx)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && recorded != "" {
		// One created anew would be another one (ErrGap, below). Whether it is gone is
		// known for sure only then: a broker that just started may not know it yet.
		return "", s.fail("identify "+p.ID, &connectors.Error{
			Class: connectors.ClassRetryable,
			Err:   fmt.Errorf("there is no topic of this name any more: %w", kerr.UnknownTopicOrPartition),
			Hint:  "the position is in the one that was there; if it is gone for good, create it and give the route the position of the new one (mqbctl checkpoint reset)",
		})
	}
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
	if err := classic[group].Err; kerr.IsRetriable(err) {
		// A coordinator that is still loading knows no members yet.
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

// errNoPartition: a topic never loses partitions, so it is not the one that was listed.
var errNoPartition = fmt.Errorf("the topic has no partition of this number: %w", kerr.UnknownTopicOrPartition)

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
		return bounds{}, s.fail("list offsets", errNoPartition)
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
