package memory

import (
	"context"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func TestSink(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
		config := &Config{Topic: t.Name(), Capacity: 1000, Partitions: 1}
		tp := mustOpen(t, config.Topic, config.Capacity)
		return &sinktest.Subject{
			Open: func(t *testing.T) connectors.Sink {
				s, err := Type().NewSink(config, &route.Spec{}, connectors.Env{})
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			Rows: func(*testing.T) (rows [][]byte) {
				b := message.NewBatch()
				tp.logs[0].fill(b, 0, 1<<20, 1<<30)
				for i := range b.Len() {
					rows = append(rows, b.Payload(i))
				}
				return rows
			},
			Block: func(t *testing.T) func() {
				// A full topic is what blocks.
				b := message.NewBatch()
				rows := make([]int, config.Capacity)
				for i := range rows {
					b.Append(nil, 0, 0)
					rows[i] = i
				}
				if err := tp.logs[0].append(context.Background(), b, rows, func() error { return nil }); err != nil {
					t.Fatal(err)
				}
				return func() { tp.logs[0].free(int64(config.Capacity)) }
			},
		}
	}})
}
