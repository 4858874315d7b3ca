package middleware

import (
	"time"

	"github.com/mqbridge/mqb/connectors"
)

func bufferType() connectors.MiddlewareType {
	t := connectors.MiddlewareType{
		MiddlewareType: rule("buffer", func() any { return new(BufferConfig) }),
		Ask: func(config any, s *connectors.Sending) {
			c := config.(*BufferConfig)
			s.Buffer = &connectors.Buffer{Messages: c.MaxMessages, Delay: c.MaxDelay}
		},
	}
	t.Input = true
	return t
}

// BufferConfig configures buffer.
type BufferConfig struct {
	MaxMessages int           `yaml:"max_messages" default:"1024" min:"1" max:"1000000" doc:"As many are written at once, at most a batch more; with a dlq at most 16384."`
	MaxDelay    time.Duration `yaml:"max_delay_ms" default:"20" min:"1ms" max:"1h" doc:"The longest that the first of them waits."`
}

// Summary implements route.Summarizer.
func (*BufferConfig) Summary() string {
	return "Gathers messages, so that a sink that is paid by the write gets fewer and larger ones. A SQL sink gathers up to 16,384 rows or 20 ms for a transaction anyway, and this changes both; parts are gathered by roll."
}
