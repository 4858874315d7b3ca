package kafka

import (
	"context"
	"fmt"
	"strconv"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

var _ connectors.Seeker = (*source)(nil)

// Seek implements connectors.Seeker: offsets that the partition has.
func (s *source) Seek(ctx context.Context, p connectors.Partition, value string) (message.Position, error) {
	fail := func(err error) (message.Position, error) { return message.Position{}, s.fail("seek in "+p.ID, err) }
	partition, err := strconv.ParseInt(p.Attributes[attrPartition], 10, 32)
	if err != nil {
		return fail(connectors.Permanent(fmt.Errorf("partition has no number: %w", err), ""))
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	adm, topic, err := s.topic(ctx)
	if err != nil {
		return message.Position{}, err
	}
	log, err := s.bounds(ctx, adm, int32(partition))
	if err != nil {
		return message.Position{}, err
	}
	at := position{topic: topic.id, epoch: -1}
	switch value {
	case "earliest":
		at.offset = log.start
	case "latest":
		at.offset = log.end
	default:
		at.offset, err = strconv.ParseInt(value, 10, 64)
		if err != nil || at.offset < log.start || at.offset > log.end {
			return fail(connectors.Permanent(fmt.Errorf("%q is no offset from %d to %d, which the partition has", value, log.start, log.end), ""))
		}
	}
	return at.encode(), nil
}
