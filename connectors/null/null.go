// Package null is the "null" endpoint: an output that discards.
package null

import (
	"context"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// Config is empty: `null:` has no settings.
type Config struct{}

// Type is the endpoint type.
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "null",
			NewConfig: func() any { return new(Config) },
			Sink: func(any) route.SinkCapabilities {
				return route.SinkCapabilities{
					Tier:     route.TierNone,
					Discards: true,
					Locality: route.Shared,
					Why:      "null keeps nothing",
				}
			},
		},
		NewSink: func(any, *route.Spec, connectors.Env) (connectors.Sink, error) { return sink{}, nil },
	}
}

type sink struct{}

func (sink) Prepare(context.Context, connectors.Partition) (connectors.Prepared, error) {
	return prepared{}, nil
}
func (sink) Check(context.Context) error { return nil }
func (sink) Close() error                { return nil }

type prepared struct{}

func (prepared) Session() string { return "" }
func (prepared) Open(context.Context, connectors.Claim) (connectors.Writer, error) {
	return writer{}, nil
}
func (prepared) Close() error { return nil }

// writer is a connectors.PlainWriter; it does nothing that a gate could forbid.
type writer struct{}

func (writer) Write(context.Context, *message.Batch, int, int) error { return nil }
func (writer) Close() error                                          { return nil }
