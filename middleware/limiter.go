package middleware

import (
	"context"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func limiterType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "limiter",
			NewConfig: func() any { return new(LimiterConfig) },
			Capabilities: func(any) route.MiddlewareCapabilities {
				// It changes when messages pass, not which or how; k workers would each
				// keep a pace of their own.
				return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true, Serial: true}
			},
			Input: true, Output: true,
		},
		New: func(config any, _ *route.Spec) (func() connectors.Middleware, error) {
			perSecond := config.(*LimiterConfig).MessagesPerSecond
			return func() connectors.Middleware { return newLimiter(perSecond) }, nil
		},
	}
}

// LimiterConfig configures limiter.
type LimiterConfig struct {
	MessagesPerSecond float64 `yaml:"messages_per_second" required:"true" min:"0.001" max:"1000000000" doc:"The rate of each running partition."`
}

// Summary implements route.Summarizer.
func (*LimiterConfig) Summary() string {
	return "Paces messages, counted one by one and not by batch. The rate is that of each partition while it runs: a route of 24 partitions passes up to 24 times as many."
}

// limiterSlack is how much unused time a slow source may catch up on: enough to
// even out the scheduling of goroutines, too little to be seen as a burst.
const limiterSlack = 100 * time.Millisecond

type limiter struct {
	bucket *rate.Limiter
	burst  int
}

func newLimiter(perSecond float64) *limiter {
	burst := max(1, int(math.Ceil(perSecond*limiterSlack.Seconds())))
	return &limiter{bucket: rate.NewLimiter(rate.Limit(perSecond), burst), burst: burst}
}

// Process waits until the last message of the batch is due.
func (m *limiter) Process(ctx context.Context, b *message.Batch) error {
	now := time.Now()
	var wait time.Duration
	// The bucket refuses more than its burst at once, so a batch is taken out of
	// it in pieces. They add up: each begins where the last one was left in debt.
	for left := b.Len(); left > 0; {
		n := min(left, m.burst)
		wait = m.bucket.ReserveN(now, n).DelayFrom(now)
		left -= n
	}
	if wait <= 0 {
		return ctx.Err()
	}
	return pause(ctx, wait)
}

// pause waits for d, or returns the context's error as soon as it ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*limiter) Close() error { return nil }
