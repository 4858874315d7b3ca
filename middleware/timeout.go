package middleware

import (
	"time"

	"github.com/mqbridge/mqb/connectors"
)

func timeoutType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: rule("timeout", func() any { return new(TimeoutConfig) }),
		Ask: func(config any, s *connectors.Sending) {
			d := config.(*TimeoutConfig).Timeout
			if s.Retry != nil { // it stands around the retry
				s.Timeout = d
			} else {
				s.AttemptTimeout = d
			}
		},
	}
}

// TimeoutConfig configures timeout.
type TimeoutConfig struct {
	Timeout time.Duration `yaml:"timeout_ms" required:"true" min:"1ms" max:"24h" doc:"The longest time of a write."`
}

// Summary implements route.Summarizer.
func (*TimeoutConfig) Summary() string {
	return "Bounds a write; one that takes longer counts as a retryable error. Listed before retry it bounds each attempt, behind it all of them together. The commit of a transaction that takes longer ends the run, and the next one finds out whether it took effect."
}
