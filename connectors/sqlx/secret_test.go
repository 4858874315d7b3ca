package sqlx_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

// Whatever goes wrong on the way to the server or on it, at start or later.
func TestThePasswordStandsInNoError(t *testing.T) {
	t.Parallel()
	good := strings.Replace(harness.Postgres(t).NewDatabase(t), "postgres@", "postgres:hunter2@", 1)
	harness.PostgresExec(t, good, "CREATE TABLE t (a int CHECK (a < 5))")
	for name, url := range map[string]string{
		"bad port":       "postgres://u:hunter2@127.0.0.1:99999999/db",
		"bad setting":    "postgres://u:hunter2@127.0.0.1/db?sslmode=hunter",
		"bad escape":     "postgres://u:hunter2%zz@127.0.0.1/db",
		"in the query":   "postgres://127.0.0.1:1/db?user=u&password=hunter2",
		"nobody listens": "postgres://u:hunter2@127.0.0.1:1/db",
		"no database":    good + "x",
		"no user":        strings.Replace(good, "postgres:hunter2", "nobody:hunter2", 1),
		"no TLS":         good + "?sslmode=require",
	} {
		c := sqlx.Type().NewConfig().(*sqlx.Config)
		route.SetDefaults(c)
		c.URL, c.Table = url, "t"
		err := errors.Join(c.Validate(route.Output)...)
		if err == nil {
			sink, newErr := sqlx.Type().NewSink(c, &route.Spec{Name: "r"}, connectors.Env{})
			if err = newErr; err == nil {
				err = sink.Check(t.Context())
				_, storeErr := sink.(connectors.TxSink).Store(t.Context())
				err = errors.Join(err, storeErr)
				_ = sink.Close()
			}
		}
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := start(t, sqlx.Config{URL: good, Table: "t", Columns: "auto"}, 1)
	if err := r.commit(t.Context(), batchOf(1, func(int) string { return `{"a":7}` })); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a refused row: %v", err)
	}
	harness.PostgresExec(t, good, "DROP TABLE t")
	if err := r.commit(t.Context(), batchOf(1, func(int) string { return `{"a":1}` })); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("no table any more: %v", err)
	}
}

// With a tls block nothing is sent in the clear, and the server must be who it says.
func TestTLSBlockIsAskedForAndVerified(t *testing.T) {
	t.Parallel()
	server := harness.StartPostgres(t)
	url := server.NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (a int)")
	block := tlsconfig.Config{Required: true}
	if err := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", TLS: block}).Check(t.Context()); connectors.Classify(err) != connectors.ClassConnection || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("a server without TLS: class %s, %v", connectors.Classify(err), err)
	}
	cert, key := selfSigned(t)
	for _, set := range []string{"ssl_cert_file = '" + cert + "'", "ssl_key_file = '" + key + "'", "ssl = on"} {
		harness.PostgresExec(t, url, "ALTER SYSTEM SET "+set)
	}
	harness.PostgresExec(t, url, "SELECT pg_reload_conf()")
	harness.Eventually(t, 10*time.Second, func() error {
		if on := harness.PostgresValue[string](t, url, "SHOW ssl"); on != "on" {
			return errors.New("ssl is " + on)
		}
		return nil
	})
	if err := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", TLS: block}).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody we trust: %v", err)
	}
	block.CAFile = cert
	r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", TLS: block}, 1)
	commitAll(t, r, `{"a":1}`)
	expect(t, url, "SELECT bool_and(ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name LIKE 'mqb%'", "true")
	c := sqlx.Type().NewConfig().(*sqlx.Config)
	route.SetDefaults(c)
	c.URL, c.Table, c.TLS = url+"?sslmode=disable", "t", block
	if _, err := sqlx.Type().NewSink(c, &route.Spec{Name: "r"}, connectors.Env{}); err == nil || !strings.Contains(err.Error(), "keep one") {
		t.Errorf("sslmode and tls: %v", err)
	}
}

// selfSigned makes a certificate for 127.0.0.1 and its key, in files of the server's user.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// Not below t.TempDir, which other users cannot enter.
	dir, err := os.MkdirTemp("/tmp", "mqb-tls-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	owner, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(owner.Uid)
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		err = errors.Join(err, os.WriteFile(file, pem.EncodeToMemory(block), 0o600), os.Chown(file, uid, -1))
	}
	if err = errors.Join(err, os.Chown(dir, uid, -1)); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}
