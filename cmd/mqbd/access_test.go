package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
)

const testToken = "s3cret-of-the-test"

// authority is a CA of a test and the directory of its files.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.key = a.issue(t, "ca", a.cert)
	a.write(t, "token", []byte(testToken+"\n"))
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(a.path(name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes NAME.pem and NAME.key.
func (a *authority) issue(t *testing.T, name string, c *x509.Certificate) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	by := a.key
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}))
	return key
}

// node issues a certificate that is a server's and a client's.
func (a *authority) node(t *testing.T, name string, dnsNames ...string) client.Access {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: dnsNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if len(dnsNames) == 0 {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	a.issue(t, name, c)
	return client.Access{CAFile: a.path("ca.pem"), CertFile: a.path(name + ".pem"), KeyFile: a.path(name + ".key")}
}

// flags are those of mqbd for x, or of its health and drain.
func flags(x client.Access) []string {
	var args []string
	for _, f := range [][2]string{{"tls-ca", x.CAFile}, {"tls-cert", x.CertFile}, {"tls-key", x.KeyFile},
		{"token-file", x.TokenFile}, {"tls-server-name", x.ServerName}} {
		if f[1] != "" {
			args = append(args, "--"+f[0], f[1])
		}
	}
	return args
}

func TestAccessSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	const anywhere = "--listen=0.0.0.0:7070"
	cert := []string{"--tls-cert=c", "--tls-key=k"}
	with := func(args ...string) []string { return append(args, cert...) }
	for name, c := range map[string]struct {
		args []string
		says string // "" if accepted
	}{
		"nothing on loopback":           {nil, ""},
		"token on loopback":             {[]string{"--token-file=t"}, ""},
		"TLS on loopback":               {cert, ""},
		"TLS and token":                 {with(anywhere, "--token-file=t"), ""},
		"TLS and CA":                    {with(anywhere, "--tls-ca=a"), ""},
		"TLS, CA and token":             {with(anywhere, "--tls-ca=a", "--token-file=t", "--tls-client-auth"), ""},
		"by name":                       {with("--listen=n1:7070", "--token-file=t"), ""},
		"all addresses":                 {with("--listen=:7070", "--token-file=t"), ""},
		"members with TLS and CA":       {with(anywhere, "--tls-ca=a", "--join=n2:7070"), ""},
		"nothing beyond loopback":       {[]string{anywhere}, "beyond loopback"},
		"token in plain text":           {[]string{anywhere, "--token-file=t"}, "beyond loopback"},
		"TLS for everybody":             {with(anywhere), "beyond loopback"},
		"certificate without key":       {[]string{"--tls-cert=c"}, "go together"},
		"key without certificate":       {[]string{"--tls-key=k"}, "go together"},
		"CA without TLS":                {[]string{"--tls-ca=a"}, "need --tls-cert"},
		"client certificates, no CA":    {with("--tls-client-auth"), "needs --tls-ca"},
		"members with TLS, without CA":  {with(anywhere, "--token-file=t", "--join=n2:7070"), "--join with TLS"},
		"a name for peers, without TLS": {[]string{"--tls-server-name=n"}, "need --tls-cert"},
	} {
		_, err := parse(t, nil, "", c.args...)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdvertisedAddressIsOneThatCanBeCalled(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:7070": "127.0.0.1:7070", "n1:7070": "n1:7070", "0.0.0.0:7070": "pod-1:7070", "[::]:7070": "pod-1:7070", ":7070": "pod-1:7070",
	} {
		if got := (&options{host: "pod-1"}).advertised(listen); got != want {
			t.Errorf("%s: %s", listen, got)
		}
	}
	if got := (&options{host: "pod-1", Advertise: "x:1"}).advertised("0.0.0.0:7070"); got != "x:1" {
		t.Errorf("got %s", got)
	}
}

func TestUnusableFilesEndTheProcessAsWrongUsage(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	x := a.node(t, "node")
	if err := os.Chmod(a.path("token"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"token for everybody": {"--token-file", a.path("token")},
		"no such key":         {"--tls-cert", x.CertFile, "--tls-key", a.path("none")},
		"CA is no PEM":        {"--tls-cert", x.CertFile, "--tls-key", x.KeyFile, "--tls-ca", a.path("token")},
	} {
		var out, errOut bytes.Buffer
		code := execute(append(args, "--listen", "127.0.0.1:0", "--data-dir", t.TempDir()), &out, &errOut)
		if code != 2 || strings.Contains(errOut.String(), testToken) {
			t.Errorf("%s: exit %d: %s", name, code, errOut.String())
		}
	}
}

// mqbctl builds the program and returns what runs it with an environment.
func mqbctl(t *testing.T) func(env []string, args ...string) (int, string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "mqbctl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../mqbctl").CombinedOutput(); err != nil {
		t.Fatalf("build mqbctl: %v\n%s", err, out)
	}
	return func(env []string, args ...string) (int, string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if strings.Contains(string(out), testToken) {
			t.Errorf("%v shows the token", args)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
}

// memberAnswers speaks to a node as a member that asks for its status, and reports
// whether it got an answer.
func memberAnswers(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b := append([]byte("\x00mqb\x01c\n"), 3, 'm', 'q', 'b')
	b = binary.BigEndian.AppendUint32(b, 8+1+4)
	b = binary.BigEndian.AppendUint64(b, 1)
	b = append(b, 5) // status
	b = binary.BigEndian.AppendUint32(b, 1000)
	if _, err := c.Write(b); err != nil {
		return false
	}
	// A TLS alert is no answer, so it is read to the id of the call.
	answer := make([]byte, 4+8)
	_, err := io.ReadFull(c, answer)
	return err == nil && binary.BigEndian.Uint64(answer[4:]) == 1
}

// Hazard: members have no token, so a port that clients reach with one would be
// open to whoever speaks the members' protocol.
func TestThreeNodesOverTLS(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	access := a.node(t, "node")
	access.TokenFile = a.path("token")
	nodes := map[string]*process{}
	for _, name := range []string{"n1", "n2", "n3"} {
		args := append(flags(access), "--name", name, "--data-dir", filepath.Join(dir, name), "--listen", "127.0.0.1:0")
		if n1 := nodes["n1"]; n1 != nil {
			args = append(args, "--join", n1.addr)
		}
		nodes[name] = startWith(t, dir, access, nil, args...)
	}
	one := nodes["n1"]
	silent, err := net.Dial("tcp", one.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	began := time.Now()
	eventually(t, "three voters", one.Nodes, func(v api.Nodes) bool {
		n := 0
		for _, x := range v.Nodes {
			if x.Voter && x.State == api.NodeActive {
				n++
			}
		}
		return n == 3
	})

	ctl := mqbctl(t)
	env := []string{"MQBCTL_SERVER=https://" + nodes["n2"].addr, "MQBCTL_CA=" + access.CAFile, "MQBCTL_TOKEN_FILE=" + access.TokenFile}
	if code, out := ctl(env, "nodes"); code != 0 || !strings.Contains(out, "n3") {
		t.Errorf("exit %d: %s", code, out)
	}
	// The nodes ask each other.
	if code, out := ctl(env, "events"); code != 0 || strings.Contains(out, "unreachable") || strings.Contains(out, "not answer") || !strings.Contains(out, "n3") {
		t.Errorf("events: exit %d: %s", code, out)
	}
	for name, c := range map[string]struct {
		code int
		env  []string
	}{
		"no token":      {5, []string{"MQBCTL_TOKEN_FILE="}},
		"no authority":  {4, []string{"MQBCTL_CA="}},
		"in plain text": {4, []string{"MQBCTL_SERVER=http://" + one.addr}},
		"a certificate, which --tls-client-auth would want": {5, []string{"MQBCTL_TOKEN_FILE=", "MQBCTL_CERT=" + access.CertFile, "MQBCTL_KEY=" + access.KeyFile}},
	} {
		if code, out := ctl(append(env[:len(env):len(env)], c.env...), "leases"); code != c.code {
			t.Errorf("%s: exit %d: %s", name, code, out)
		}
	}

	conf, err := client.Access{CAFile: access.CAFile}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	anyone := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	for path, want := range map[string]int{"/metrics": 401, "/v1/nodes": 401, "/healthz": 200, "/readyz": 200} {
		resp, err := anyone.Get("https://" + one.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}

	stranger := newAuthority(t).node(t, "stranger")
	stranger.CAFile = access.CAFile // it trusts us, we do not trust it
	for name, c := range map[string]struct {
		as   *client.Access
		want bool
	}{
		"in plain text": {nil, false}, "without a certificate": {&client.Access{CAFile: access.CAFile}, false},
		"with a stranger's certificate": {&stranger, false}, "as a member": {&access, true},
	} {
		conn, err := net.Dial("tcp", one.addr)
		if err != nil {
			t.Fatal(err)
		}
		if c.as != nil {
			conf, err := c.as.TLS()
			if err != nil {
				t.Fatal(err)
			}
			conf.ServerName = "127.0.0.1"
			conn = tls.Client(conn, conf)
		}
		if got := memberAnswers(conn); got != c.want {
			t.Errorf("%s: answered %v", name, got)
		}
		_ = conn.Close()
	}

	var out, errOut bytes.Buffer
	for _, command := range []string{"health", "drain"} {
		if code := execute(append([]string{command, "--server", nodes["n3"].addr}, flags(access)...), &out, &errOut); code != 0 {
			t.Errorf("%s: exit %d: %s", command, code, errOut.String())
		}
	}

	_ = silent.SetReadDeadline(began.Add(30 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that makes no handshake stays: %v", err)
	}
	for name, p := range nodes {
		_ = p.cmd.Process.Kill()
		p.wait()
		if strings.Contains(p.log.String(), testToken) {
			t.Errorf("the log of %s shows the token", name)
		}
	}
}

// The certificate names something else than the address: --tls-server-name.
func TestCertificateInsteadOfToken(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	access := a.node(t, "node", "mqbd")
	access.ServerName = "mqbd"
	p := startWith(t, dir, access, nil, append(flags(access), "--listen", "127.0.0.1:0")...)
	eventually(t, "ready", func(ctx context.Context) (error, error) { return p.Ready(ctx), nil }, func(err error) bool { return err == nil })
	if _, err := p.Nodes(t.Context()); err != nil {
		t.Error(err)
	}
	access.CertFile, access.KeyFile = "", ""
	nobody, err := client.New(p.addr, access)
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	var e *api.Error
	if _, err := nobody.Nodes(t.Context()); !errors.As(err, &e) || e.Code != api.CodeUnknownClient || !strings.Contains(e.Hint, "--cert") {
		t.Errorf("without a certificate: %v", err)
	}
	access.ServerName = ""
	wrong, err := client.New(p.addr, access)
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	if _, err := wrong.Nodes(t.Context()); !errors.As(err, &e) || e.Code != api.CodeUnreachable || !strings.Contains(e.Hint, "--ca") {
		t.Errorf("a certificate of another name: %v", err)
	}
}

// Hazard: without an authority no certificate can be verified, and everybody could
// become a member.
func TestWithoutAnAuthorityNobodyIsAMember(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	access := a.node(t, "node")
	alone := client.Access{CertFile: access.CertFile, KeyFile: access.KeyFile, TokenFile: a.path("token")}
	access.TokenFile = alone.TokenFile
	p := startWith(t, dir, access, nil, append(flags(alone), "--listen", "127.0.0.1:0")...)
	if _, err := p.Version(t.Context()); err != nil {
		t.Error(err)
	}
	conf, err := access.TLS()
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", p.addr, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if memberAnswers(c) {
		t.Error("a member was let in")
	}
}
