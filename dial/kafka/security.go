package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Protocol is what a listener speaks, in Kafka's own words.
type Protocol string

const (
	Plaintext     Protocol = "plaintext"
	SSL           Protocol = "ssl"
	SASLPlaintext Protocol = "sasl_plaintext"
	SASLSSL       Protocol = "sasl_ssl"
)

var protocols = []Protocol{Plaintext, SSL, SASLPlaintext, SASLSSL}

// Mechanism is a way to log in.
type Mechanism string

const (
	Plain       Mechanism = "PLAIN"
	ScramSHA256 Mechanism = "SCRAM-SHA-256"
	ScramSHA512 Mechanism = "SCRAM-SHA-512"
)

var mechanisms = []Mechanism{Plain, ScramSHA256, ScramSHA512}

// protocol is the one in effect. A user without a protocol gets TLS: a password
// goes over the network in the clear only where sasl_plaintext was written.
func (c *Config) protocol() Protocol {
	switch {
	case c.Protocol != "":
		return c.Protocol
	case c.Username != "":
		return SASLSSL
	case c.TLS.Given():
		return SSL
	}
	return Plaintext
}

// Encrypted reports whether connections are made over TLS.
func (c *Config) Encrypted() bool {
	p := c.protocol()
	return p == SSL || p == SASLSSL
}

// ValidateSecurity reports what contradicts itself, without reading any file.
func (c *Config) ValidateSecurity() []error {
	errs := c.TLS.Validate()
	p := c.protocol()
	logsIn := p == SASLSSL || p == SASLPlaintext
	switch {
	case !slices.Contains(protocols, p):
		errs = append(errs, fmt.Errorf("security.protocol: %q is not one of %s", p, list(protocols)))
	case c.TLS.Given() && !c.Encrypted():
		errs = append(errs, fmt.Errorf("tls: asks for TLS, but security.protocol %s is in the clear", p))
	case logsIn && (c.Username == "" || c.Password == ""):
		errs = append(errs, fmt.Errorf("username and password: security.protocol %s needs both", p))
	case !logsIn && (c.Username != "" || c.Password != ""):
		errs = append(errs, fmt.Errorf("username and password: security.protocol %s does not log in", p))
	}
	if c.Mechanism != "" && !slices.Contains(mechanisms, c.Mechanism) {
		errs = append(errs, fmt.Errorf("sasl.mechanism: %q is not one of %s", c.Mechanism, list(mechanisms)))
	}
	return errs
}

func list[S ~string](names []S) string {
	var out []string
	for _, n := range names {
		out = append(out, string(n))
	}
	return strings.Join(out, ", ")
}

// security is the options of a client that gets in.
func (c *Config) security() ([]kgo.Opt, error) {
	if errs := c.ValidateSecurity(); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	var opts []kgo.Opt
	if c.Encrypted() {
		t, err := c.TLS.Client()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(t))
	}
	if c.Username == "" {
		return opts, nil
	}
	var how sasl.Mechanism
	switch c.Mechanism {
	case ScramSHA256:
		how = scram.Auth{User: c.Username, Pass: c.Password}.AsSha256Mechanism()
	case ScramSHA512:
		how = scram.Auth{User: c.Username, Pass: c.Password}.AsSha512Mechanism()
	default:
		how = plain.Auth{User: c.Username, Pass: c.Password}.AsMechanism()
	}
	return append(opts, kgo.SASL(how)), nil
}
