package tlsconfig_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/dial/tlsconfig"
	"github.com/mqbridge/mqb/test/harness"
)

const secret = "hunter2-a9f3"

func TestClientIsCheckedAndChecks(t *testing.T) {
	ours, theirs := harness.NewAuthority(t), harness.NewAuthority(t)
	client, server := ours.Issue(t, "client"), ours.Issue(t, "server")
	keyPair, err := tls.LoadX509KeyPair(server.Cert, server.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := (&tlsconfig.Config{CAFile: ours.CA}).Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		tlsconfig.Config
		ok bool
	}{
		{"certificate and key", tlsconfig.Config{CAFile: ours.CA, CertFile: client.Cert, KeyFile: client.Key}, true},
		{"both in one file", tlsconfig.Config{CAFile: ours.CA, CertFile: client.Bundle}, true},
		{"server not checked", tlsconfig.Config{CertFile: client.Bundle, AcceptInvalidCerts: true}, true},
		{"server of another authority", tlsconfig.Config{CAFile: theirs.CA, CertFile: client.Bundle}, false},
		{"server unknown to the system", tlsconfig.Config{CertFile: client.Bundle}, false},
		{"no certificate", tlsconfig.Config{CAFile: ours.CA}, false},
		{"certificate of another authority", tlsconfig.Config{CAFile: ours.CA, CertFile: theirs.Issue(t, "client").Bundle}, false},
	} {
		got, err := c.Client()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := shake(t, got, &tls.Config{Certificates: []tls.Certificate{keyPair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots.RootCAs}); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// shake returns the first error of either side of a handshake on loopback.
func shake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
		served <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client.ServerName = "127.0.0.1"
	c := tls.Client(raw, client)
	defer c.Close()
	if err := c.Handshake(); err != nil {
		return err
	}
	return <-served
}

func TestFaultsNameTheFileAndNotWhatIsInIt(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	encrypted := "-----BEGIN ENCRYPTED PRIVATE KEY-----\n" + "AAAA" + "\n-----END ENCRYPTED PRIVATE KEY-----\n"
	for _, c := range []struct {
		tlsconfig.Config
		want string
	}{
		{tlsconfig.Config{CAFile: filepath.Join(dir, "gone")}, "gone"},
		{tlsconfig.Config{CAFile: file("ca", secret)}, "no certificate"},
		{tlsconfig.Config{CertFile: file("cert", secret), KeyFile: file("key", secret)}, "key"},
		{tlsconfig.Config{CertFile: file("cert", secret), KeyFile: file("locked", encrypted)}, "PKCS#12"},
		{tlsconfig.Config{CertFile: file("id.p12", secret), CertPassword: secret}, "id.p12"},
	} {
		if _, err := c.Client(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	for _, c := range []tlsconfig.Config{
		{KeyFile: "key"}, {CertFile: "a.p12", KeyFile: "key"}, {CertPassword: secret}, {CertFile: "a.pem", CertPassword: secret},
	} {
		if said := fmt.Sprint(c.Validate()); said == "[]" || strings.Contains(said, secret) {
			t.Errorf("%+v: %s", c, said)
		}
	}
}
