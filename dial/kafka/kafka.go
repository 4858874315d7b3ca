// Package kafka makes Kafka clients from configuration, for connectors and
// checkpoint stores alike.
package kafka

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/dial/tlsconfig"
)

// Config names a cluster and says how to get in.
type Config struct {
	// URL lists brokers to begin with, host or host:port, comma separated.
	URL string
	// ClientID is what the broker's logs and quotas know us by; "" is mqb.
	ClientID string
	// DialTimeout bounds one attempt to connect; 0 is DefaultDialTimeout.
	DialTimeout time.Duration

	// Protocol is what the brokers' listener speaks; "" takes the one that TLS
	// and Username ask for, which never sends a password in the clear.
	Protocol Protocol
	TLS      tlsconfig.Config
	// Username and Password log in, by Mechanism ("" is PLAIN).
	Username, Password string
	Mechanism          Mechanism
}

// DefaultDialTimeout is how long one broker may take to accept a connection.
const DefaultDialTimeout = 5 * time.Second

const defaultPort = "9092"

// Brokers returns the addresses in the URL, with the default port where none is
// given. Errors do not quote the URL, which could hold a password.
func (c Config) Brokers() ([]string, error) {
	if strings.Contains(c.URL, "@") {
		return nil, errors.New("a Kafka URL holds no credentials: use username and password")
	}
	var brokers []string
	for s := range strings.SplitSeq(c.URL, ",") {
		s = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(s), "kafka://"), "/")
		if s == "" {
			continue
		}
		if strings.Contains(s, "://") || strings.Contains(s, "/") {
			return nil, fmt.Errorf("%q is not host:port", s)
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), defaultPort
		}
		if host == "" || port == "" || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return nil, fmt.Errorf("%q is not host:port", s)
		}
		brokers = append(brokers, net.JoinHostPort(host, port))
	}
	if len(brokers) == 0 {
		return nil, errors.New("no broker is named")
	}
	return brokers, nil
}

// Timeout is the effective dial time-out.
func (c Config) Timeout() time.Duration {
	if c.DialTimeout > 0 {
		return c.DialTimeout
	}
	return DefaultDialTimeout
}

// Client makes a client. It does not connect: the first request does.
func Client(c Config, opts ...kgo.Opt) (*kgo.Client, error) {
	brokers, err := c.Brokers()
	if err != nil {
		return nil, err
	}
	secure, err := c.security()
	if err != nil {
		return nil, err
	}
	id := c.ClientID
	if id == "" {
		id = "mqb"
	}
	return kgo.NewClient(slices.Concat([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.ClientID(id),
		kgo.DialTimeout(c.Timeout()),
		// Retrying for longer is the route's business, which knows give_up_after.
		kgo.RetryTimeout(c.Timeout()),
		// After a failed broker the new leader is looked for this often.
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.DisableClientMetrics(),
	}, secure, opts)...)
}
