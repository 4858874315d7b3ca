package middleware

import (
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

func retryType() connectors.MiddlewareType {
	t := rule("retry", func() any { return new(RetryConfig) })
	t.Capabilities = func(any) route.MiddlewareCapabilities {
		return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true, PlainWrites: true}
	}
	return connectors.MiddlewareType{
		MiddlewareType: t,
		Ask: func(config any, s *connectors.Sending) {
			c := config.(*RetryConfig)
			s.Retry = &connectors.Retry{Attempts: c.MaxAttempts, Initial: c.InitialInterval, Max: c.MaxInterval, Multiplier: c.Multiplier}
		},
	}
}

// RetryConfig configures retry.
type RetryConfig struct {
	MaxAttempts     int           `yaml:"max_attempts" default:"3" min:"1" max:"1000" doc:"Attempts in all, the first one included."`
	InitialInterval time.Duration `yaml:"initial_interval_ms" default:"100" min:"1ms" max:"1h" doc:"The pause before the second attempt."`
	MaxInterval     time.Duration `yaml:"max_interval_ms" default:"5000" min:"1ms" max:"1h" doc:"The longest pause."`
	Multiplier      float64       `yaml:"multiplier" default:"2.0" min:"1" max:"100" doc:"Each pause is this many times the one before, give or take a random half."`
}

// Summary implements route.Summarizer.
func (*RetryConfig) Summary() string {
	return "Writes again what failed for a reason outside the message, and only that. Spent on a retryable error, the message is a dead letter where there is a dlq; a connection error always passes to the route, which backs off, keeps its place and begins again, as it does without retry. Transactions and parts are begun again as a whole by the route and need no retry."
}

// rule describes a middleware that is a rule of the write and no stage.
func rule(name string, config func() any) route.MiddlewareType {
	return route.MiddlewareType{
		Name: name, NewConfig: config, Output: true,
		Capabilities: func(any) route.MiddlewareCapabilities {
			return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true}
		},
	}
}
