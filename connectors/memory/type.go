// Package memory is the "memory" endpoint: named topics inside this process. A
// topic lives as long as something refers to it or it holds records; nothing of
// it survives the process, which is why its positions are not durable.
package memory

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// Config is the endpoint as written in a spec.
type Config struct {
	Topic    string `yaml:"topic" doc:"name of the topic in this process"`
	URL      string `yaml:"url" doc:"the topic as a URL: a bare name or memory://name"`
	Capacity int    `yaml:"capacity" default:"100" doc:"records that may wait to be read before a writer has to wait"`
	// EnableNack keeps what was read until it is settled.
	EnableNack bool `yaml:"enable_nack" doc:"keep a record until it is settled, so that a run that failed is followed by one that reads it again"`
	Partitions int  `yaml:"partitions" default:"1" doc:"ordered parts of the topic on each node; a record with a key always goes to the same one"`
}

// FromScalar reads `memory: name`.
func (c *Config) FromScalar(s string) error {
	c.URL = s
	return nil
}

// Validate reports every fault of the endpoint.
func (c *Config) Validate(route.Side) []error {
	var errs []error
	if _, err := c.name(); err != nil {
		errs = append(errs, err)
	}
	if c.Capacity < 1 {
		errs = append(errs, fmt.Errorf("capacity: %d is less than 1", c.Capacity))
	}
	if c.Partitions < 1 || c.Partitions > maxPartitions {
		errs = append(errs, fmt.Errorf("partitions: %d is not within 1 and %d", c.Partitions, maxPartitions))
	}
	return errs
}

const maxPartitions = 1024

func (c *Config) name() (string, error) {
	fromURL := c.URL
	if scheme, rest, ok := strings.Cut(c.URL, "://"); ok {
		switch scheme {
		case "memory":
			fromURL = rest
		case "ipc", "unix", "pipe":
			return "", fmt.Errorf("url: %s:// is not supported yet", scheme)
		default:
			return "", fmt.Errorf("url: no memory topic has the scheme %s://", scheme)
		}
	}
	switch {
	case c.Topic == "" && fromURL == "":
		return "", errors.New("topic: missing")
	case c.Topic == "":
		return fromURL, nil
	case fromURL != "" && fromURL != c.Topic:
		return "", fmt.Errorf("url: names topic %q, but topic says %q", fromURL, c.Topic)
	}
	return c.Topic, nil
}

// Type is the endpoint type.
func Type() connectors.Type {
	const why = "a memory topic ends with its process"
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "memory",
			NewConfig: func() any { return new(Config) },
			Source: func(config any) route.SourceCapabilities {
				return route.SourceCapabilities{
					NumberedPosition: true,
					// Without it what was read is gone from the topic at once.
					SettleDeletes: config.(*Config).EnableNack,
					EndsItself:    true,
					Locality:      route.EveryNode,
					Why:           why,
				}
			},
			Sink: func(any) route.SinkCapabilities {
				return route.SinkCapabilities{
					Tier:     route.TierNone,
					Locality: route.EveryNode,
					Why:      why,
				}
			},
			Reserved: []string{"subscribe_mode", "request_reply", "request_timeout_ms"},
		},
		NewSource: func(config any, spec *route.Spec, env connectors.Env) (connectors.Source, error) {
			t, err := open(config.(*Config), spec)
			if err != nil {
				return nil, err
			}
			return &source{topic: t, node: env.Node, keep: config.(*Config).EnableNack}, nil
		},
		NewSink: func(config any, spec *route.Spec, _ connectors.Env) (connectors.Sink, error) {
			t, err := open(config.(*Config), spec)
			if err != nil {
				return nil, err
			}
			return &sink{topic: t}, nil
		},
	}
}

func open(c *Config, spec *route.Spec) (*topic, error) {
	name, err := c.name()
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: memory: %w", spec.Name, err), "")
	}
	t, err := topics.open(name, c.Capacity, c.Partitions)
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("route %s: memory: %w", spec.Name, err), "")
	}
	return t, nil
}
