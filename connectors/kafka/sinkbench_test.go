package kafka

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

// BenchmarkWrite writes 200-byte JSON in batches of 1024, from one and from four
// partitions at once, with the broker on the same cores.
func BenchmarkWrite(b *testing.B) {
	for _, writers := range []int{1, 4} {
		for _, codec := range []string{"none", "lz4"} {
			b.Run(fmt.Sprintf("writers=%d/%s", writers, codec), func(b *testing.B) {
				broker := harness.StartKafka(b, harness.KafkaOptions{JVM: []string{"-Xms512m", "-Xmx1g"}})
				s := newTestSink(b, broker.Addr, broker.Topic(b, 6), produce("compression.type", codec))
				const n = 1024
				batch := message.NewBatch()
				filler := bytes.Repeat([]byte("lorem ipsum dolor "), 12)
				for i := range n {
					v := fmt.Appendf(make([]byte, 0, 200), `{"id":%d,"text":"`, i)
					v = append(v, filler[:198-len(v)]...)
					batch.Append(append(v, `"}`...), int64(i), int64(i+1))
				}
				var open []*writer
				for range writers {
					open = append(open, mustOpenSink(b, s))
				}
				b.SetBytes(int64(writers) * n * 200)
				b.ReportAllocs()
				var rounds int
				for b.Loop() {
					rounds++
					var wg sync.WaitGroup
					for _, w := range open {
						wg.Go(func() {
							if err := w.Write(b.Context(), batch, 0, n); err != nil {
								b.Error(err)
							}
						})
					}
					wg.Wait()
				}
				b.ReportMetric(float64(writers*rounds)*n/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}
