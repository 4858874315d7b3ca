package kafka

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

const secret = "hunter2-a9f3"

func TestTLSAndLogin(t *testing.T) {
	t.Parallel()
	a := harness.NewAuthority(t)
	b := harness.StartKafka(t, harness.KafkaOptions{
		TLS: a.Issue(t, "broker"), Users: map[string]string{"alice": secret, "carol": secret},
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS;User:alice;User:bob;User:dave;User:CN=client",
			// Clients have to log in again that often.
			"connections.max.reauth.ms": "2000",
		},
	})
	b.ScramUser(t, "bob", secret)
	b.ScramUser(t, "dave", secret)
	t.Run("FromSinkToSource", func(t *testing.T) { testTLSAndLogins(t, b, a) })
	t.Run("AWrongOneIsPermanentAndSaysNoPassword", func(t *testing.T) { testWrongLogins(t, b, a) })
	t.Run("AUserWithoutTheRightIsTold", func(t *testing.T) { testRights(t, b, a) })
	t.Run("ALoginThatIsTakenBackEndsARunThatReads", func(t *testing.T) { testLoginTakenBack(t, b, a) })
	t.Run("TheWrongListenerIsNamedAsSuch", func(t *testing.T) { testWrongListener(t, b, a) })
}

// through writes to a topic and reads it with the same settings, and returns the
// first error; all that is logged goes to log.
func through(t *testing.T, addr, topic string, log *bytes.Buffer, set func(*Config)) error {
	t.Helper()
	out := &Config{URL: addr, Topic: topic, ConnectTimeout: 2 * time.Second}
	set(out)
	in := *out
	in.ConsumerOptions, out.ConsumerOptions = out.ConsumerOptions, nil
	out.ProducerOptions = in.ConsumerOptions
	one := int32(1)
	out.Partitions = &one
	spec := &route.Spec{Name: "orders", BatchSize: 10, MaxRecordBytes: 1 << 20}
	s, err := newSink(out, spec)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Prepare(t.Context(), connectors.Partition{})
	if err != nil {
		return err
	}
	claim := sinkClaim()
	claim.Log = slog.New(slog.NewTextHandler(log, nil))
	w, err := p.Open(t.Context(), claim)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.(*writer).Write(t.Context(), payloads("0", "1"), 0, 2); err != nil {
		return err
	}
	src, err := newSource(&in, spec)
	if err != nil {
		return err
	}
	defer src.Close()
	r, err := src.Open(t.Context(), src.testClaim(t, 0, message.Position{}))
	if err != nil {
		return err
	}
	defer r.Close()
	wantOrder(t, readN(t, r.(*reader), 2), 0, 2)
	return nil
}

func testTLSAndLogins(t *testing.T, b *harness.KafkaBroker, a *harness.Authority) {
	client := a.Issue(t, "client")
	p12 := filepath.Join(t.TempDir(), "client.p12")
	bundle(t, client, p12)
	user := func(name, how string) func(*Config) {
		return func(c *Config) {
			c.Username, c.Password, c.TLS.CAFile = name, secret, a.CA
			if how != "" {
				c.ConsumerOptions = [][2]string{{"sasl.mechanism", how}}
			}
		}
	}
	for _, c := range []struct {
		name, addr string
		set        func(*Config)
		warns      bool
	}{
		{"plain", b.SASLSSL, user("alice", ""), false},
		{"scram-256", b.SASLSSL, user("bob", "SCRAM-SHA-256"), false},
		{"scram-512", b.SASLSSL, user("bob", "scram-sha-512"), false},
		{"in-the-clear-on-request", b.SASLPlain, func(c *Config) {
			c.Username, c.Password = "alice", secret
			c.ConsumerOptions = [][2]string{{"security.protocol", "SASL_PLAINTEXT"}}
		}, false},
		{"certificate", b.SSL, func(c *Config) {
			c.TLS = tlsconfig.Config{Required: true, CAFile: a.CA, CertFile: client.Cert, KeyFile: client.Key}
		}, false},
		{"bundle", b.SSL, func(c *Config) {
			c.TLS = tlsconfig.Config{CAFile: a.CA, CertFile: p12, CertPassword: secret}
		}, false},
		{"librdkafka", b.SASLSSL, func(c *Config) {
			c.ConsumerOptions = [][2]string{{"security.protocol", "sasl_ssl"}, {"sasl.mechanisms", "SCRAM-SHA-256"}, {"sasl.username", "bob"}, {"sasl.password", secret}, {"ssl.ca.location", a.CA}}
		}, false},
		{"unchecked", b.SASLSSL, func(c *Config) {
			c.Username, c.Password, c.TLS.AcceptInvalidCerts = "alice", secret, true
		}, true},
	} {
		var log bytes.Buffer
		if err := through(t, c.addr, "t-"+c.name, &log, c.set); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if warned := strings.Contains(log.String(), "level=WARN"); warned != c.warns {
			t.Errorf("%s: %s", c.name, &log)
		}
	}
}

// bundle writes an identity as PKCS#12.
func bundle(t *testing.T, id *harness.Identity, path string) {
	t.Helper()
	der := func(file string) []byte {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := pem.Decode(text)
		return b.Bytes
	}
	key, err1 := x509.ParsePKCS8PrivateKey(der(id.Key))
	cert, err2 := x509.ParseCertificate(der(id.Cert))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	raw, err := pkcs12.Modern.Encode(key, cert, nil, secret)
	if err == nil {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Each of these would try again for ever, if it were taken for a network that is
// down; none of them may say the password.
func testWrongLogins(t *testing.T, b *harness.KafkaBroker, a *harness.Authority) {
	stranger := harness.NewAuthority(t)
	strange := stranger.Issue(t, "client")
	const wrong = "wrong-" + secret
	for _, c := range []struct {
		name, addr string
		set        func(*Config)
	}{
		{"password", b.SASLSSL, func(c *Config) { c.Username, c.Password, c.TLS.CAFile = "alice", wrong, a.CA }},
		{"scram password", b.SASLSSL, func(c *Config) {
			c.Username, c.Password, c.TLS.CAFile = "bob", wrong, a.CA
			c.ConsumerOptions = [][2]string{{"sasl.mechanism", "SCRAM-SHA-512"}}
		}},
		{"unknown user", b.SASLSSL, func(c *Config) {
			c.Username, c.Password, c.TLS.CAFile = "eve", wrong, a.CA
			c.ConsumerOptions = [][2]string{{"sasl.mechanism", "SCRAM-SHA-256"}}
		}},
		{"broker of an authority that is not trusted", b.SASLSSL, func(c *Config) { c.Username, c.Password, c.TLS.CAFile = "alice", wrong, stranger.CA }},
		{"broker of an authority that the system does not know", b.SASLSSL, func(c *Config) { c.Username, c.Password = "alice", wrong }},
		{"no certificate", b.SSL, func(c *Config) { c.TLS.CAFile = a.CA }},
		{"certificate of a stranger", b.SSL, func(c *Config) {
			c.TLS = tlsconfig.Config{CAFile: a.CA, CertFile: strange.Cert, KeyFile: strange.Key}
		}},
		{"file that is not there", b.SSL, func(c *Config) { c.TLS.CAFile = a.CA + ".gone" }},
	} {
		var log bytes.Buffer
		began := time.Now()
		err := through(t, c.addr, "t", &log, c.set)
		if connectors.Classify(err) != connectors.ClassPermanent {
			t.Errorf("%s: %s: %v", c.name, connectors.Classify(err), err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s: took %v", c.name, d)
		}
		if said := fmt.Sprintf("%v %+v %s", err, err, &log); strings.Contains(said, secret) {
			t.Errorf("%s: the password is in %s", c.name, said)
		}
	}
}

func TestNoPasswordGoesInTheClearAndTLSIsNotLeftOutSilently(t *testing.T) {
	for _, c := range []struct {
		name, want string
		set        func(*Config)
	}{
		{"required, but in the clear", "tls", func(c *Config) {
			c.TLS.Required = true
			c.ConsumerOptions = [][2]string{{"security.protocol", "plaintext"}}
		}},
		{"authority named, but in the clear", "tls", func(c *Config) {
			c.TLS.CAFile = "ca.pem"
			c.Username, c.Password = "u", secret
			c.ConsumerOptions = [][2]string{{"security.protocol", "sasl_plaintext"}}
		}},
		{"password without TLS and login", "username", func(c *Config) {
			c.Username, c.Password = "u", secret
			c.ConsumerOptions = [][2]string{{"security.protocol", "ssl"}}
		}},
		{"password without user", "username", func(c *Config) { c.Password = secret }},
		{"user without password", "username", func(c *Config) { c.Username = "u" }},
		{"unknown protocol", "security.protocol", func(c *Config) { c.ConsumerOptions = [][2]string{{"security.protocol", secret}} }},
		{"unknown mechanism", "GSSAPI", func(c *Config) {
			c.Username, c.Password = "u", secret
			c.ConsumerOptions = [][2]string{{"sasl.mechanism", "GSSAPI"}}
		}},
		{"two passwords", "sasl.password", func(c *Config) {
			c.Username, c.Password = "u", "x"
			c.ConsumerOptions = [][2]string{{"sasl.password", secret}}
		}},
		{"key without certificate", "cert_file", func(c *Config) { c.TLS.KeyFile = "key.pem" }},
		{"password in the URL", "credentials", func(c *Config) { c.URL = "u:" + secret + "@a:1" }},
	} {
		cfg := &Config{URL: "a:1", Topic: "t"}
		c.set(cfg)
		errs := fmt.Sprint(cfg.Validate(route.Input))
		if !strings.Contains(errs, c.want) || (strings.Contains(errs, secret) && c.name != "unknown protocol") {
			t.Errorf("%s: %s", c.name, errs)
		}
	}
	c := &Config{URL: "a:1", Topic: "t", Username: "u", Password: secret}
	if s, _ := c.settings(route.Input); !s.dial.Encrypted() {
		t.Error("a user alone does not turn TLS on")
	}
}

// The broker answers every question up to the login, so it does not look like one
// that is down, and the client tries for ever.
func testLoginTakenBack(t *testing.T, b *harness.KafkaBroker, a *harness.Authority) {
	topic := b.Topic(t, 1)
	b.ProduceN(t, topic, 0, 0, 10)
	s := newTestSource(t, b, topic, func(c *Config, _ *route.Spec) {
		c.URL, c.Username, c.Password, c.TLS.CAFile = b.SASLSSL, "dave", secret, a.CA
		c.ConsumerOptions = [][2]string{{"sasl.mechanism", "SCRAM-SHA-256"}}
	})
	r := openAt(t, s, 0, message.Position{})
	end := readN(t, r, 10).end
	began := time.Now()
	if got, err := b.Admin(t).AlterUserSCRAMs(t.Context(), []kadm.DeleteSCRAM{{User: "dave", Mechanism: kadm.ScramSha256}}, nil); err != nil || !got.Ok() {
		t.Fatal(got, err)
	}
	err := readError(t, r)
	if c := connectors.Classify(err); c != connectors.ClassConnection && c != connectors.ClassPermanent {
		t.Errorf("%s: %v", c, err)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("noticed after %v", d)
	}
	// What the partition does next says why.
	if _, err := s.Open(t.Context(), s.testClaim(t, 0, end)); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "username") {
		t.Errorf("%v", err)
	}
}

// A client that speaks plaintext to a listener with TLS, and the other way round.
func testWrongListener(t *testing.T, b *harness.KafkaBroker, a *harness.Authority) {
	for name, c := range map[string]struct {
		addr, hint string
		set        func(*Config)
	}{
		"plaintext to TLS":    {b.SASLSSL, "speaking to a tls endpoint", func(*Config) {}},
		"TLS to plaintext":    {b.Addr, "TLS", func(c *Config) { c.TLS.CAFile = a.CA }},
		"no login to a login": {b.SASLPlain, "username", func(*Config) {}},
	} {
		var log bytes.Buffer
		err := through(t, c.addr, "t", &log, c.set)
		if err == nil || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testRights(t *testing.T, b *harness.KafkaBroker, a *harness.Authority) {
	adm := b.Admin(t)
	allow := func(topic string, ops ...kadm.ACLOperation) {
		t.Helper()
		r, err := adm.CreateACLs(t.Context(), kadm.NewACLs().Topics(topic).Allow("User:carol").AllowHosts("*").Operations(ops...).ResourcePatternType(kadm.ACLPatternLiteral))
		if err == nil {
			err = r[0].Err
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(topic string) error {
		w, err := openSink(t, newTestSink(t, b.SASLSSL, topic, func(c *Config, _ *route.Spec) {
			c.Username, c.Password, c.TLS.CAFile = "carol", secret, a.CA
		}))
		if err == nil {
			err = w.Write(t.Context(), payloads("a"), 0, 1)
		}
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("the password is in %v", err)
		}
		return err
	}
	b.CreateTopic(t, "hers", 1)
	b.CreateTopic(t, "to-look-at", 1)
	allow("hers", kadm.OpDescribe, kadm.OpWrite)
	allow("to-look-at", kadm.OpDescribe)
	allow("to-create", kadm.OpDescribe, kadm.OpWrite)
	// Her rights reach the broker a moment later.
	harness.Eventually(t, 20*time.Second, func() error { return write("hers") })
	for topic, hint := range map[string]string{"foreign": "right", "to-look-at": "right", "to-create": "create the topic, or let the user create topics"} {
		if err := write(topic); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %s: %v", topic, connectors.Classify(err), err)
		}
	}
}
