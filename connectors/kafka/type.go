// Package kafka is the "kafka" endpoint: it reads the partitions of a topic.
//
// Each Kafka partition is one partition of the route. mqb's own scheduler gives
// them out, so no consumer group is joined; offsets are kept in the checkpoint
// record, and a group, where one is named, gets a copy of them for the tools that
// watch lag. Only committed transactions are read (read_committed).
package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/route"
)

// Config is the endpoint as written in a spec.
type Config struct {
	URL   string `yaml:"url" required:"true" doc:"brokers to begin with: host:port, comma separated"`
	Topic string `yaml:"topic" required:"true" doc:"name of the topic"`
	// GroupID is where a first start looks for offsets, and where they are copied to.
	GroupID        string        `yaml:"group_id" doc:"consumer group: a first start goes on at its committed offsets, else at the earliest record, and offsets are mirrored to it; without it a first start begins at the latest record"`
	ClientID       string        `yaml:"client_id" doc:"client id that brokers see" default:"mqb"`
	ConnectTimeout time.Duration `yaml:"connect_timeout" doc:"how long one attempt to connect may take" default:"5s"`
	SourceMetadata bool          `yaml:"source_metadata" doc:"add topic, partition, offset and timestamp as mqb.src.* metadata" default:"false"`
}

var legalTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// Validate reports every fault of the endpoint.
func (c *Config) Validate(route.Side) []error {
	var errs []error
	if _, err := c.dial().Brokers(); err != nil {
		errs = append(errs, fmt.Errorf("url: %w", err))
	}
	switch {
	case c.Topic == "":
		errs = append(errs, errors.New("topic: missing"))
	case !legalTopic.MatchString(c.Topic) || c.Topic == "." || c.Topic == "..":
		errs = append(errs, fmt.Errorf("topic: %q is no legal topic name", c.Topic))
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("connect_timeout: %v is negative", c.ConnectTimeout))
	}
	return errs
}

func (c *Config) dial() dial.Config {
	return dial.Config{URL: c.URL, ClientID: c.ClientID, DialTimeout: c.ConnectTimeout}
}

// Type is the endpoint type. It is a source only.
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "kafka",
			NewConfig: func() any { return new(Config) },
			Source: func(any) route.SourceCapabilities {
				return route.SourceCapabilities{
					StableIdentity:   true,
					DurablePosition:  true,
					NumberedPosition: true,
					Locality:         route.Shared,
				}
			},
			Reserved: []string{"username", "password", "tls", "consumer_options", "producer_options", "partition_key", "partitions", "delayed_ack", "shared"},
		},
		NewSource: func(config any, spec *route.Spec, _ connectors.Env) (connectors.Source, error) {
			return newSource(config.(*Config), spec)
		},
	}
}
