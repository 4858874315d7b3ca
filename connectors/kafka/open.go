package kafka

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// Open starts at the record's position or, at the first run ever, where the dialect
// says: the group's committed offset, else the earliest record with a group and
// the latest without one.
func (s *source) Open(ctx context.Context, claim connectors.Claim) (connectors.Reader, error) {
	partition, err := strconv.ParseInt(claim.Partition.Attributes[attrPartition], 10, 32)
	if err != nil {
		return nil, s.fail("open "+claim.Partition.ID, connectors.Permanent(fmt.Errorf("partition has no number: %w", err), ""))
	}
	s.remark(claim.Log)
	r := &reader{source: s, claim: claim, partition: int32(partition), drain: -1, asked: fetchBytes}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *reader) open(ctx context.Context) error {
	ctx, cancel := r.source.bounded(ctx)
	defer cancel()
	adm, topic, err := r.source.topic(ctx)
	if err != nil {
		return err
	}
	if err := r.source.refuseLiveGroup(ctx, adm); err != nil {
		return err
	}
	if _, ok := topic.leaders[r.partition]; !ok {
		return r.fail("open", errNoPartition)
	}
	log, err := r.source.bounds(ctx, adm, r.partition)
	if err != nil {
		return err
	}
	from, err := r.from(ctx, adm, topic.id, log)
	if err != nil {
		return err
	}
	switch {
	case from.topic != topic.id:
		return r.fail("open", fmt.Errorf("the topic was created anew: the position is of topic id %s, the brokers say %s: %w", kadm.TopicID(from.topic), topic.id, connectors.ErrGap))
	case from.offset < log.start:
		return r.fail("open", fmt.Errorf("offsets %d to %d were deleted before they were read: %w", from.offset, log.start-1, connectors.ErrGap))
	case from.offset > log.end:
		return r.fail("open", fmt.Errorf("the log ends at offset %d, before our position %d: it was cut back: %w", log.end, from.offset, connectors.ErrGap))
	}
	if r.claim.Spec.ExitOnEmpty {
		// The high watermark and not the last stable offset: a transaction whose
		// marker is on its way belongs to what was there when the drain began. One
		// that its producer left open is waited for until the broker aborts it.
		r.drain = log.end
	}
	r.topic, r.next, r.epoch = topic.id, from.offset, from.epoch
	r.place = &positions{topic: topic.id, epoch: from.epoch}
	r.end.Store(log.end)
	r.read.Store(from.offset)
	r.pool = message.NewPool(r.claim.Budget, batchBytes)
	r.closing, r.close = context.WithCancel(context.Background())
	r.client, err = fetcher(&r.source.endpoint, r.claim.Spec.MaxRecordBytes, r.partition, from, &r.health)
	if err != nil {
		r.close()
		return r.fail("open", connectors.Permanent(err, ""))
	}
	return nil
}

// from is the position to start at.
func (r *reader) from(ctx context.Context, adm *kadm.Client, topic kadm.TopicID, log bounds) (position, error) {
	if p := r.claim.Record.Position; !p.IsZero() {
		at, err := decode(p)
		if err != nil {
			return at, r.fail("open", err)
		}
		return at, nil
	}
	start := position{topic: topic, offset: log.start, epoch: -1}
	first := r.source.settings.first
	if first == "latest" || first == "" && r.source.config.GroupID == "" {
		if !r.claim.Late {
			start.offset = log.end
		}
	}
	if r.source.config.GroupID != "" {
		offset, epoch, ok, err := r.source.committed(ctx, adm, r.partition)
		if err != nil {
			return position{}, err
		}
		if ok && (offset < log.start || offset > log.end) {
			return position{}, r.fail("open", &connectors.Error{
				Class: connectors.ClassGap,
				Err:   fmt.Errorf("group %s is at offset %d, and the log has %d to %d: %w", r.source.config.GroupID, offset, log.start, log.end, connectors.ErrGap),
				Hint:  "set the group's offsets to where to begin, or take another group_id",
			})
		}
		if ok {
			start.offset, start.epoch = offset, epoch
		}
	}
	// With nothing to read there, an empty batch makes the choice durable:
	// "latest", asked again after a crash, would skip what came in between.
	r.chosen = start.offset >= log.end
	return start, nil
}

// gauge holds what Lag compares; written by Read, read by anybody.
type gauge struct{ end, read atomic.Int64 }
