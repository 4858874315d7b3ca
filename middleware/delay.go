package middleware

import (
	"context"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func delayType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "delay",
			NewConfig: func() any { return new(DelayConfig) },
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true, Serial: true}
			},
			Input: true, Output: true,
		},
		New: func(config any, _ *route.Spec) (func() connectors.Middleware, error) {
			d := config.(*DelayConfig).Delay
			return func() connectors.Middleware { return &delay{each: d} }, nil
		},
	}
}

// DelayConfig configures delay.
type DelayConfig struct {
	Delay time.Duration `yaml:"delay_ms" required:"true" min:"1ms" max:"1h" doc:"How long each message takes."`
}

// Summary implements route.Summarizer.
func (*DelayConfig) Summary() string {
	return "Lets one message pass per delay, in each partition: a batch of a hundred takes a hundred delays, however it was read. A batch is handed on as a whole, so with long delays a small `batch_size` makes the flow even. `limiter` says the same as a rate."
}

type delay struct {
	each time.Duration
	due  time.Time // when the last message of the batch before was due
}

// Process waits one delay for each message of the batch, from the moment the last
// batch was due or this one came, whichever is later: time that the batch took to
// be handed on counts, time that the source was empty does not.
func (m *delay) Process(ctx context.Context, b *message.Batch) error {
	if b.Len() == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if idle := now.Sub(m.due); m.due.IsZero() || idle > m.each {
		m.due = now
	}
	m.due = m.due.Add(time.Duration(b.Len()) * m.each)
	return pause(ctx, m.due.Sub(now))
}

func (*delay) Close() error { return nil }
