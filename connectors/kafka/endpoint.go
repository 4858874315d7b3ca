package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/kafka"
	"github.com/mqbridge/mqb/route"
)

// endpoint is what a source and a sink are both: a topic, and one client for
// questions about it, made on first use.
type endpoint struct {
	config   *Config
	spec     *route.Spec
	settings settings

	mu     sync.Mutex
	client *kgo.Client
	closed bool
}

func (e *endpoint) init(config *Config, spec *route.Spec, side route.Side) error {
	if errs := config.Validate(side); len(errs) > 0 {
		return connectors.Permanent(fmt.Errorf("route %s: kafka: %w", spec.Name, errors.Join(errs...)), "")
	}
	e.config, e.spec = config, spec
	e.settings, _ = config.settings(side)
	return nil
}

// remark says once a run what is unusual about the settings.
func (e *endpoint) remark(log *slog.Logger) {
	if e.settings.dial.TLS.AcceptInvalidCerts {
		log.Warn("kafka: certificates are not checked (tls.accept_invalid_certs): anybody on the way can read and change everything", "topic", e.config.Topic)
	}
	if len(e.settings.unused) > 0 {
		log.Info("kafka: options without effect", "topic", e.config.Topic, "options", e.settings.unused)
	}
}

// connection returns the shared client.
func (e *endpoint) connection() (*kgo.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, e.fail("connect", errClosed)
	}
	if e.client == nil {
		c, err := dial.Client(e.settings.dial)
		if err != nil {
			return nil, e.fail("connect", connectors.Permanent(err, ""))
		}
		e.client = c
	}
	return e.client, nil
}

var errClosed = errors.New("closed")

// bounded limits a few questions to the brokers, so that a cluster that is not
// there is an error soon.
func (e *endpoint) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 2*e.settings.dial.Timeout())
}

// fail adds where it happened and gives the error its class. What only another
// configuration can cure is permanent: nobody logs in with a wrong password for ever.
func (e *endpoint) fail(op string, err error) error {
	err = fmt.Errorf("route %s: kafka %s: topic %s: %s: %w", e.spec.Name, e.config.URL, e.config.Topic, op, err)
	var classified *connectors.Error
	var broker *kerr.Error
	var cert *tls.CertificateVerificationError
	var remote *net.OpError
	var noTLS tls.RecordHeaderError
	var eof *kgo.ErrFirstReadEOF
	switch {
	case errors.As(err, &classified), errors.Is(err, context.Canceled), errors.Is(err, connectors.ErrGap), errors.Is(err, checkpoint.ErrForeign):
		return err
	case errors.As(err, &broker):
		return byCode(broker, err)
	case errors.As(err, &cert):
		return connectors.Permanent(err, "tls.ca_file names the authority that the brokers' certificates are from")
	case errors.As(err, &remote) && remote.Op == tlsAlert:
		return connectors.Permanent(err, "the broker refused our side of TLS: tls.cert_file and tls.key_file are what it knows us by")
	case errors.As(err, &noTLS):
		return connectors.Permanent(err, "this listener does not speak TLS")
	case errors.As(err, &eof):
		return &connectors.Error{Class: connectors.ClassConnection, Err: err, Hint: "does this listener want TLS (tls.required), or a login (username, password)?"}
	}
	return connectors.Connection(err)
}

// tlsAlert is how crypto/tls marks what the other side says in an alert.
const tlsAlert = "remote error"

func byCode(code *kerr.Error, err error) error {
	switch code {
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed:
		return connectors.Permanent(err, "the user needs the right for it")
	case kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism:
		return connectors.Permanent(err, "username, password and sasl.mechanism are what the broker knows")
	case kerr.InvalidTopicException, kerr.PolicyViolation, kerr.InvalidPartitions, kerr.InvalidRequiredAcks:
		return connectors.Permanent(err, "")
	case kerr.InvalidReplicationFactor:
		return connectors.Permanent(err, "the brokers' default.replication.factor needs more brokers than there are: start them, or create the topic yourself")
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return &connectors.Error{Class: connectors.ClassData, Err: err, Hint: "the limit is max.message.bytes of the topic, or message.max.bytes of producer_options where that is less"}
	case kerr.InvalidRecord, kerr.InvalidTimestamp:
		return &connectors.Error{Class: connectors.ClassData, Err: err}
	}
	return &connectors.Error{Class: connectors.ClassRetryable, Err: err}
}

// topic is what the brokers say about our topic.
type topic struct {
	cluster string
	id      kadm.TopicID
	leaders map[int32]int32 // by partition
}

// topic asks a broker: the clients' own metadata may be older than a topic that
// was just created anew.
func (e *endpoint) topic(ctx context.Context) (*kadm.Client, topic, error) {
	c, err := e.connection()
	if err != nil {
		return nil, topic{}, err
	}
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &e.config.Topic
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{asked}
	resp, err := req.RequestWith(ctx, c)
	if err == nil && len(resp.Topics) == 1 {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		// Not permanent: a topic is often created by who writes to it, and later than
		// the route that reads it. The pace of the attempts is the route's.
		err = &connectors.Error{
			Class: connectors.ClassRetryable,
			Err:   fmt.Errorf("there is no topic of this name: %w", err),
			Hint:  "are the name and the brokers right? If so, create the topic: a route that is kept running finds it within a minute",
		}
	}
	if err != nil {
		return nil, topic{}, e.fail("metadata", err)
	}
	if len(resp.Topics) != 1 {
		return nil, topic{}, e.fail("metadata", fmt.Errorf("%d topics instead of one in the answer", len(resp.Topics)))
	}
	t := topic{id: resp.Topics[0].TopicID, leaders: map[int32]int32{}}
	if resp.ClusterID != nil {
		t.cluster = *resp.ClusterID
	}
	for _, p := range resp.Topics[0].Partitions {
		t.leaders[p.Partition] = p.Leader
	}
	return kadm.NewClient(c), t, nil
}

func (e *endpoint) Close() error {
	e.mu.Lock()
	c := e.client
	e.client, e.closed = nil, true
	e.mu.Unlock()
	if c != nil {
		c.Close()
	}
	return nil
}
