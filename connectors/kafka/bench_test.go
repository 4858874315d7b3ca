package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

// BenchmarkDrain reads a topic of 190-byte records to its end and throws them
// away, all partitions at once, with the broker on the same cores.
func BenchmarkDrain(b *testing.B) {
	const records = 2_000_000
	for _, partitions := range []int{4, 8} {
		for _, codec := range []struct {
			name string
			kgo.CompressionCodec
		}{{"none", kgo.NoCompression()}, {"lz4", kgo.Lz4Compression()}} {
			b.Run(fmt.Sprintf("partitions=%d/%s", partitions, codec.name), func(b *testing.B) {
				broker := harness.StartKafka(b, harness.KafkaOptions{JVM: []string{"-Xms512m", "-Xmx1g"}})
				topic := broker.Topic(b, partitions)
				fill(b, broker, topic, partitions, records, codec.CompressionCodec)
				b.SetBytes(records * 190)
				b.ReportAllocs()
				for b.Loop() {
					if n := drainAll(b, broker, topic, partitions); n != records {
						b.Fatalf("%d records, want %d", n, records)
					}
				}
				b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

func fill(b *testing.B, broker *harness.KafkaBroker, topic string, partitions, n int, codec kgo.CompressionCodec) {
	b.Helper()
	c := broker.Client(b, kgo.ProducerBatchCompression(codec), kgo.MaxBufferedRecords(100_000))
	filler := bytes.Repeat([]byte("lorem ipsum dolor "), 10)
	var failed atomic.Pointer[error]
	for i := range n {
		v := fmt.Appendf(make([]byte, 0, 190), `{"id":%d,"text":"`, i)
		v = append(v, filler[:188-len(v)]...)
		v = append(v, `"}`...)
		c.Produce(b.Context(), &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: v}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := c.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
}

func drainAll(b *testing.B, broker *harness.KafkaBroker, topic string, partitions int) int64 {
	b.Helper()
	s := newTestSource(b, broker, topic, drain, func(_ *Config, s *route.Spec) { s.BatchSize = 4096 })
	budget := message.NewBudget(message.DefaultBudget)
	var total, size atomic.Int64
	var wg sync.WaitGroup
	for p := range partitions {
		claim := s.testClaim(b, p, message.Position{})
		claim.Budget = budget
		r, err := s.Open(b.Context(), claim)
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer r.Close()
			for {
				batch, err := r.Read(context.Background())
				if errors.Is(err, connectors.ErrEndOfInput) {
					return
				}
				if err != nil {
					b.Error(err)
					return
				}
				total.Add(int64(batch.Len()))
				n := 0
				for i := range batch.Len() {
					n += len(batch.Payload(i))
				}
				size.Add(int64(n))
				batch.Release()
			}
		})
	}
	wg.Wait()
	_ = s.Close()
	if size.Load() != 190*total.Load() {
		b.Fatalf("%d bytes in %d records", size.Load(), total.Load())
	}
	return total.Load()
}
