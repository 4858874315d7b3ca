package harness

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// secure picks the addresses of the listeners with TLS or login, and returns the
// properties that make them.
func (b *KafkaBroker) secure(controller int, ports []int, opts KafkaOptions) map[string]string {
	b.SSL, b.SASLSSL, b.SASLPlain = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1]), fmt.Sprintf("127.0.0.1:%d", ports[2])
	open := fmt.Sprintf("PLAINTEXT://%s,SSL://%s,SASL_SSL://%s,SASL_PLAINTEXT://%s", b.Addr, b.SSL, b.SASLSSL, b.SASLPlain)
	plain := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, user := range slices.Sorted(maps.Keys(opts.Users)) {
		plain += fmt.Sprintf(" user_%s=%q", user, opts.Users[user])
	}
	p := map[string]string{
		"listeners":                         fmt.Sprintf("%s,CONTROLLER://127.0.0.1:%d", open, controller),
		"advertised.listeners":              open,
		"listener.security.protocol.map":    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
		"ssl.keystore.type":                 "PEM",
		"ssl.keystore.location":             opts.TLS.Bundle,
		"ssl.truststore.type":               "PEM",
		"ssl.truststore.location":           opts.TLS.CA,
		"listener.name.ssl.ssl.client.auth": "required",
		"sasl.enabled.mechanisms":           "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
	}
	for _, l := range []string{"sasl_ssl", "sasl_plaintext"} {
		p["listener.name."+l+".plain.sasl.jaas.config"] = plain + ";"
		for _, m := range []string{"scram-sha-256", "scram-sha-512"} {
			p["listener.name."+l+"."+m+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		}
	}
	maps.Copy(p, opts.Properties)
	return p
}

// ScramUser lets a user log in by SCRAM, in both ways.
func (b *KafkaBroker) ScramUser(t testing.TB, user, password string) {
	t.Helper()
	adm := b.Admin(t)
	// A request may name a user once.
	for _, m := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		Eventually(t, 30*time.Second, func() error {
			got, err := adm.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: user, Mechanism: m, Iterations: 4096, Password: password}})
			if err != nil {
				return err
			}
			return got[user].Err
		})
	}
}
