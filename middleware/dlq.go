package middleware

import (
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

func dlqType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: rule("dlq", func() any { return new(DLQConfig) }),
		Ask:            func(config any, s *connectors.Sending) { s.DeadLetters = config.(*DLQConfig).DeadLetters() },
	}
}

// DLQConfig configures dlq.
type DLQConfig struct {
	Endpoint route.Endpoint `yaml:"endpoint" required:"true" doc:"Where dead letters go, written as an output is."`
}

// DeadLetters implements route.DeadLetterer.
func (c *DLQConfig) DeadLetters() *route.Endpoint { return &c.Endpoint }

// Validate implements the decoder's check.
func (c *DLQConfig) Validate(route.Side) []error {
	if len(c.Endpoint.Middlewares) > 0 {
		return []error{&route.ConfigError{Field: "endpoint", Msg: "middlewares of a dlq's endpoint are not supported yet", Hint: "a dead letter is written as its record was"}}
	}
	return nil
}

// Summary implements route.Summarizer.
func (*DLQConfig) Summary() string {
	return "Takes each record that cannot be read, transformed or written, with its metadata and mqb.dlq.error, .route, .partition, .ordinal and .place; mqb.id is the letter's own id, <route uid>/<series>/<partition>/<ordinal>, the same whenever the letter is written. A letter is durable before the position moves over its record, and what a sink refused is decided once, in the record, before it is written. Sets on_error: dlq. Connection errors never come here: the route waits for its systems."
}
