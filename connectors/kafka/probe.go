package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mqbridge/mqb/message"
)

// probe moves a drain over a tail that holds nothing. Compaction can remove the
// last records of a log, and an open transaction can be aborted: then no record
// ever comes to say that the end was reached, and the consumer does not show the
// empty answers that do. nil, nil when there is something to wait for.
func (r *reader) probe(ctx context.Context) (*message.Batch, error) {
	end, err := r.emptyUntil(ctx)
	if err != nil || end <= r.next {
		return nil, err
	}
	b, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	r.bound(b, end)
	return b, nil
}

// emptyUntil asks the leader once and returns the offset before which there is
// nothing to read; our own position if there is.
func (r *reader) emptyUntil(ctx context.Context) (int64, error) {
	ctx, cancel := r.source.bounded(ctx)
	defer cancel()
	_, topic, err := r.source.topic(ctx)
	if err != nil {
		return 0, err
	}
	if topic.id != r.topic {
		// The fetches will say so.
		return r.next, nil
	}
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition = r.partition
	p.FetchOffset = r.next
	p.PartitionMaxBytes = fetchBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = r.source.config.Topic, r.topic
	t.Partitions = []kmsg.FetchRequestTopicPartition{p}
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes = fetchBytes
	req.IsolationLevel = 1
	req.SessionEpoch = -1
	req.Topics = []kmsg.FetchRequestTopic{t}

	client, err := r.source.connection()
	if err != nil {
		return 0, err
	}
	answer, err := client.Broker(int(topic.leaders[r.partition])).Request(ctx, req)
	if err != nil {
		return 0, r.fail("probe", err)
	}
	resp := answer.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, r.fail("probe", err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return r.next, nil
	}
	rp := &resp.Topics[0].Partitions[0]
	if rp.ErrorCode != 0 {
		return r.next, nil
	}
	got, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		KeepControlRecords: true,
		Offset:             r.next,
		IsolationLevel:     kgo.ReadCommitted(),
		Topic:              r.source.config.Topic,
		Partition:          r.partition,
	}, rp, kgo.DefaultDecompressor(), nil)
	switch {
	case got.Err != nil || len(got.Records) > 0:
		return r.next, nil
	case len(rp.RecordBatches) == 0:
		// The answer covers everything up to the last stable offset.
		return max(next, rp.LastStableOffset), nil
	}
	return next, nil
}
