package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The benchmarks are programs, not tests: they open servers without a testing.TB
// and close them with the function they get.

// OpenKafka starts a private broker.
func OpenKafka(opts KafkaOptions) (*KafkaBroker, func(), error) {
	dir, err := os.MkdirTemp("", "mqb-kafka-")
	if err != nil {
		return nil, nil, err
	}
	b, err := newKafka(dir, opts)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, fmt.Errorf("harness: kafka: %w", err)
	}
	return b, func() { b.Process().Kill(); _ = os.RemoveAll(dir) }, nil
}

// OpenPostgres starts a private PostgreSQL server.
func OpenPostgres() (*PostgresServer, func(), error) {
	s, err := startPostgres()
	if err != nil {
		return nil, nil, fmt.Errorf("harness: %w", err)
	}
	return s, s.remove, nil
}

// CreateTopic makes a topic and waits until it has leaders.
func CreateTopic(ctx context.Context, addr, topic string, partitions int32) error {
	return admin(addr, func(a *kadm.Client) error {
		if _, err := a.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
			return err
		}
		deadline := time.Now().Add(20 * time.Second)
		for {
			topics, err := a.ListTopics(ctx, topic)
			if err == nil && len(topics[topic].Partitions) == int(partitions) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("topic %s has no leaders: %w", topic, err)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// DeleteGroup removes a consumer group; one that is not there is no error. A new
// broker makes its group coordinator on the first request, so it is asked again.
func DeleteGroup(ctx context.Context, addr, group string) error {
	return admin(addr, func(a *kadm.Client) error {
		deadline := time.Now().Add(20 * time.Second)
		for {
			res, err := a.DeleteGroups(ctx, group)
			if err == nil {
				err = res[group].Err
			}
			if err == nil || errors.Is(err, kerr.GroupIDNotFound) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("delete group %s: %w", group, err)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

func admin(addr string, f func(*kadm.Client) error) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer c.Close()
	return f(kadm.NewClient(c))
}
