package memory

import (
	"context"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

type sink struct{ topic *topic }

func (s *sink) Prepare(context.Context, connectors.Partition) (connectors.Prepared, error) {
	return prepared{s}, nil
}

func (s *sink) Check(context.Context) error { return nil }

func (s *sink) Close() error {
	topics.close(s.topic)
	return nil
}

type prepared struct{ sink *sink }

func (p prepared) Session() string { return "" }

func (p prepared) Open(_ context.Context, claim connectors.Claim) (connectors.Writer, error) {
	w := &writer{topic: p.sink.topic, gate: claim.Gate, rows: make([][]int, len(p.sink.topic.logs))}
	w.life, w.end = context.WithCancel(context.Background())
	return w, nil
}

func (p prepared) Close() error { return nil }

// writer is a connectors.PlainWriter.
type writer struct {
	topic *topic
	gate  func() error
	rows  [][]int // by log; reused by each Write

	life context.Context // ends with Close
	end  context.CancelFunc
}

// Write returns once every message is in the topic; it waits while the topic is
// full. Messages without a key of one Write stay together and in order.
func (w *writer) Write(ctx context.Context, b *message.Batch, i, j int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.life, cancel)()
	for l := range w.rows {
		w.rows[l] = w.rows[l][:0]
	}
	turn := w.topic.turn.Add(1)
	for ; i < j; i++ {
		l := w.topic.route(b, i, turn)
		w.rows[l] = append(w.rows[l], i)
	}
	for l, rows := range w.rows {
		if err := w.topic.logs[l].append(ctx, b, rows, w.gate); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) Close() error {
	w.end()
	return nil
}
