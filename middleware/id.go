package middleware

import (
	"context"
	"errors"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func idType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "id",
			NewConfig: func() any { return new(IDConfig) },
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true}
			},
			Input: true, // by the output, whoever needed the id has seen the message
		},
		New: func(config any, _ *route.Spec) (func() connectors.Middleware, error) {
			template := config.(*IDConfig).template
			return func() connectors.Middleware { return &id{template: template} }, nil
		},
	}
}

// IDConfig is a bare template.
type IDConfig struct{ template *route.Template }

// Summary implements route.Summarizer.
func (*IDConfig) Summary() string {
	return "Gives each message a business id (metadata `mqb.id`) from a template, written as a single value: `id: \"${payload:order.id}\"`. A message in which any part of the template is missing keeps the id it had, or none."
}

// FromScalar compiles the template.
func (c *IDConfig) FromScalar(s string) error {
	t, err := route.CompileTemplate(s)
	if err != nil {
		return err
	}
	if len(t.Tokens()) == 0 {
		return errors.New("the template needs at least one ${payload:…} or ${metadata:…}: else all messages share an id")
	}
	for _, token := range t.Tokens() {
		if token.Namespace == "message" {
			return errors.New("${message:id} is what this template makes, it cannot be part of it")
		}
	}
	c.template = t
	return nil
}

// Validate implements the decoder's check.
func (c *IDConfig) Validate(route.Side) []error {
	if c.template == nil {
		return []error{&route.ConfigError{Msg: "needs a template", Hint: `id: "${payload:order.id}"`}}
	}
	return nil
}

type id struct {
	template *route.Template
	scratch  []byte
}

func (m *id) Process(_ context.Context, b *message.Batch) error {
	for i := range b.Len() {
		var ok bool
		m.scratch, ok = m.template.Append(m.scratch[:0], b, i, route.RenderOptions{})
		// An id with a part missing would be shared by unrelated messages, and
		// whatever drops duplicates would drop all but the first of them.
		if ok && len(m.scratch) > 0 {
			b.PutMeta(i, route.IDKey, m.scratch)
		}
	}
	return nil
}

func (*id) Close() error { return nil }
