// Package kafka is the "kafka" endpoint: it reads the partitions of a topic, and
// writes to one.
//
// Each Kafka partition is one partition of the route. mqb's own scheduler gives
// them out, so no consumer group is joined; offsets are kept in the checkpoint
// record, and a group, where one is named, gets a copy of them for the tools that
// watch lag. Only committed transactions are read (read_committed).
//
// As an output it writes with an idempotent producer and acks=all, and the position
// follows: at-least-once.
package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/route"
)

// Config is the endpoint as written in a spec.
type Config struct {
	URL   string `yaml:"url" required:"true" doc:"brokers to begin with: host:port, comma separated"`
	Topic string `yaml:"topic" required:"true" doc:"name of the topic; an output creates it if it does not exist"`

	ClientID       string           `yaml:"client_id" doc:"client id that brokers see; mqb if none is given"`
	ConnectTimeout time.Duration    `yaml:"connect_timeout" doc:"how long one attempt to connect may take" default:"5s"`
	Username       string           `yaml:"username" doc:"log in, over TLS: sasl_ssl is spoken unless the options say security.protocol: sasl_plaintext. The way is sasl.mechanism in the options: PLAIN (default), SCRAM-SHA-256 or SCRAM-SHA-512"`
	Password       string           `yaml:"password" secret:"true" doc:"the password of username"`
	TLS            tlsconfig.Config `yaml:"tls" doc:"how to speak TLS"`

	// GroupID is where a first start looks for offsets, and where they are copied to.
	GroupID         string      `yaml:"group_id" doc:"input: consumer group: a first start goes on at its committed offsets, else at the earliest record, and offsets are mirrored to it; without it a first start begins at the latest record"`
	SourceMetadata  bool        `yaml:"source_metadata" doc:"input: add topic, partition, offset and timestamp as mqb.src.* metadata" default:"false"`
	ConsumerOptions [][2]string `yaml:"consumer_options" doc:"input: pairs of name and value, in librdkafka's names: auto.offset.reset, isolation.level, security.protocol, sasl.*, ssl.*"`

	PartitionKey    string      `yaml:"partition_key" doc:"output: the metadata that becomes the key of a record; without it, or where a message has none, the key that the message came with, else its id"`
	Partitions      *int32      `yaml:"partitions" min:"1" doc:"output: partitions of a topic that is created: 6 if nothing is said"`
	DelayedAck      bool        `yaml:"delayed_ack" default:"false" doc:"output: accepted and without effect, which validate warns about: the position follows the brokers' answers in any case"`
	ProducerOptions [][2]string `yaml:"producer_options" doc:"output: pairs of name and value, in librdkafka's names: acks, enable.idempotence, compression.type, compression.level, message.max.bytes, max.in.flight, retries, request.timeout.ms, delivery.timeout.ms, partitioner, security.protocol, sasl.*, ssl.*. With acks other than all the route is at-most-once"`
}

var legalTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

// Validate reports every fault of the endpoint.
func (c *Config) Validate(side route.Side) []error {
	s, errs := c.settings(side)
	if _, err := s.dial.Brokers(); err != nil {
		errs = append(errs, fmt.Errorf("url: %w", err))
	}
	errs = append(errs, s.dial.ValidateSecurity()...)
	switch {
	case c.Topic == "":
		errs = append(errs, errors.New("topic: missing"))
	case !legalTopic.MatchString(c.Topic) || c.Topic == "." || c.Topic == "..":
		errs = append(errs, fmt.Errorf("topic: %q is no legal topic name", c.Topic))
	}
	if c.ConnectTimeout < 0 {
		errs = append(errs, fmt.Errorf("connect_timeout: %v is negative", c.ConnectTimeout))
	}
	for _, k := range c.ofTheOther(side) {
		errs = append(errs, fmt.Errorf("%s: has no meaning on an %s", k, side))
	}
	return errs
}

// Remarks names what has no effect here: options that a file of the dialect has, and
// that are refused by nobody, because the route is no worse without them.
func (c *Config) Remarks(side route.Side) (remarks []string) {
	if c.DelayedAck {
		// There it lets the input go on before the brokers have answered.
		remarks = append(remarks, "delayed_ack has no effect: the position follows the brokers' answers, so that nothing counts as written that they do not have; batches are sent as a whole without it")
	}
	if s, _ := c.settings(side); len(s.unused) > 0 {
		why := "a batch of the route is sent at once and as a whole"
		if side == route.Input {
			why = "fetches find their size, and no consumer group is joined"
		}
		remarks = append(remarks, fmt.Sprintf("options without effect: %s: %s", strings.Join(s.unused, ", "), why))
	}
	return remarks
}

// ofTheOther lists the keys given that only the other side has.
func (c *Config) ofTheOther(side route.Side) (keys []string) {
	add := func(key string, given bool) {
		if given {
			keys = append(keys, key)
		}
	}
	if side == route.Output {
		add("group_id", c.GroupID != "")
		add("source_metadata", c.SourceMetadata)
		add("consumer_options", len(c.ConsumerOptions) > 0)
		return keys
	}
	add("partition_key", c.PartitionKey != "")
	add("partitions", c.Partitions != nil)
	add("delayed_ack", c.DelayedAck)
	add("producer_options", len(c.ProducerOptions) > 0)
	return keys
}

// settings brings keys and options together.
func (c *Config) settings(side route.Side) (settings, []error) {
	s := settings{
		dial: dial.Config{
			URL: c.URL, ClientID: c.ClientID, DialTimeout: c.ConnectTimeout, TLS: c.TLS, Username: c.Username, Password: c.Password,
		},
		acks: kgo.AllISRAcks(), retries: -1, request: requestTimeout, delivery: deliveryTimeout, isolation: kgo.ReadCommitted(),
	}
	if side == route.Output {
		errs := s.read("producer_options", c.ProducerOptions, producerOptions, unusedByProducer)
		return s, append(errs, s.validate()...)
	}
	return s, s.read("consumer_options", c.ConsumerOptions, consumerOptions, unusedByConsumer)
}

// defaultPartitions is how many partitions a topic is created with.
const defaultPartitions = 6

// Type is the endpoint type.
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
			Sink:     sinkCapabilities,
			Reserved: []string{"shared"},
		},
		NewSource: func(config any, spec *route.Spec, _ connectors.Env) (connectors.Source, error) {
			return newSource(config.(*Config), spec)
		},
		NewSink: func(config any, spec *route.Spec, _ connectors.Env) (connectors.Sink, error) {
			return newSink(config.(*Config), spec)
		},
	}
}
