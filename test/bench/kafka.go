package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/test/harness"
)

const (
	kafkaPartitions = 8
	sinkTopic       = "sink"
	group           = "bench"
)

// servers are started for the first job that needs them.
type servers struct {
	kafka  *harness.KafkaBroker
	url    string // of PostgreSQL
	topics map[string]bool
	stops  []func()
}

func (s *servers) stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

func (s *servers) broker() error {
	if s.kafka != nil {
		return nil
	}
	kafka, stop, err := harness.OpenKafka(harness.KafkaOptions{JVM: []string{"-Xms512m", "-Xmx512m"}})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, stop)
	s.kafka, s.topics = kafka, map[string]bool{}
	return nil
}

// source returns a topic that holds the fixture.
func (w *work) source(ctx context.Context) (string, error) {
	if err := w.broker(); err != nil {
		return "", err
	}
	topic := fmt.Sprintf("orders-%d", w.rows)
	if w.topics[topic] {
		return topic, nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.Addr), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := harness.CreateTopic(ctx, w.kafka.Addr, topic, kafkaPartitions); err != nil {
		return "", err
	}
	var failed error
	orders(w.rows, func(o order) {
		client.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte(o.json())}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	})
	if err := errors.Join(client.Flush(ctx), failed); err != nil {
		return "", err
	}
	w.topics[topic] = true
	return topic, nil
}

// forget removes the groups' offsets, so that each run starts at the beginning.
func (w *work) forget(before func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, g := range []string{group, "connect-" + connectName} {
			if err := harness.DeleteGroup(ctx, w.kafka.Addr, g); err != nil {
				return err
			}
		}
		return before(ctx)
	}
}

// kafkaFiles is a job from Kafka to a file.
func (w *work) kafkaFiles(k kind, title string) func(context.Context) (job, error) {
	return func(ctx context.Context) (job, error) {
		topic, err := w.source(ctx)
		if err != nil {
			return job{}, err
		}
		j, err := w.files(w.title(title), task{kind: k, kafka: w.kafka.Addr, topic: topic, group: group})
		j.before = w.forget(j.before)
		return j, err
	}
}

// toKafka is a job from a file to Kafka.
func (w *work) toKafka(ctx context.Context) (job, error) {
	_, jsonl, err := fixture(w.dir, w.rows)
	if err != nil {
		return job{}, err
	}
	if err := w.broker(); err != nil {
		return job{}, err
	}
	if !w.topics[sinkTopic] {
		if err := harness.CreateTopic(ctx, w.kafka.Addr, sinkTopic, kafkaPartitions); err != nil {
			return job{}, err
		}
		w.topics[sinkTopic] = true
	}
	j, err := w.job(w.title("JSONL → Kafka"), task{kind: jsonlToKafka, in: jsonl, kafka: w.kafka.Addr, topic: sinkTopic, rows: w.rows})
	j.before = func(ctx context.Context) error { return errors.Join(w.clean(ctx), w.emptySink(ctx)) }
	j.count, j.lines = w.countSink, w.readSink
	return j, err
}

func (w *work) admin(do func(*kadm.Client) error) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.Addr))
	if err != nil {
		return err
	}
	defer c.Close()
	return do(kadm.NewClient(c))
}

// emptySink deletes what the topic holds: a topic that is deleted and made anew
// may come back with leaders late.
func (w *work) emptySink(ctx context.Context) error {
	return w.admin(func(a *kadm.Client) error {
		ends, err := a.ListEndOffsets(ctx, sinkTopic)
		if err != nil {
			return err
		}
		res, err := a.DeleteRecords(ctx, ends.Offsets())
		if err != nil {
			return err
		}
		return res.Error()
	})
}

// countSink counts by offsets, which have no gaps where no transactions are.
func (w *work) countSink(ctx context.Context) (n int, err error) {
	err = w.admin(func(a *kadm.Client) error {
		starts, err1 := a.ListStartOffsets(ctx, sinkTopic)
		ends, err2 := a.ListEndOffsets(ctx, sinkTopic)
		if err := errors.Join(err1, err2, starts.Error(), ends.Error()); err != nil {
			return err
		}
		ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
		starts.Each(func(o kadm.ListedOffset) { n -= int(o.Offset) })
		return nil
	})
	return n, err
}

func (w *work) readSink(ctx context.Context, yield func([]byte)) error {
	left, err := w.countSink(ctx)
	if err != nil {
		return err
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.Addr), kgo.ConsumeTopics(sinkTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer c.Close()
	for left > 0 {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			return err
		}
		f.EachRecord(func(r *kgo.Record) { yield(r.Value); left-- })
	}
	return nil
}
