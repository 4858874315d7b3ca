package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
)

// Access says how a client shows who it is, and who vouches for the server. The
// zero value shows nothing and trusts the system's roots.
type Access struct {
	// CAFile are the authorities, in PEM, that may vouch for the server.
	CAFile string
	// CertFile and KeyFile are the client's certificate and its key, in PEM.
	CertFile, KeyFile string
	// TokenFile holds the bearer token; see ReadToken.
	TokenFile string
	// ServerName is what the server's certificate must be for; "" for the host of
	// its address.
	ServerName string
}

// maxTokenBytes bounds a token file; the header that carries it has its own bound.
const maxTokenBytes = 4096

// ReadToken reads a file of one line, the token. A file that everybody on the
// machine can read is refused. Errors do not show the token (invariant 11).
func ReadToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s: everybody may use the token (mode %#o): chmod o-rwx it", file, info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", err
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || len(b) > maxTokenBytes {
		return "", fmt.Errorf("%s: a token has 1 to %d bytes", file, maxTokenBytes)
	}
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("%s: a token is one line of printable ASCII without spaces", file)
		}
	}
	return string(b), nil
}

// TLS makes the configuration of a client's connections.
func (a Access) TLS() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.ServerName}
	if a.CAFile != "" {
		text, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: no certificate in PEM", a.CAFile)
		}
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		return nil, errors.New("a certificate and its key go together")
	}
	if a.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", a.CertFile, a.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// scheme is that of an address without one.
func (a Access) scheme() string {
	if a.CAFile != "" || a.CertFile != "" {
		return "https://"
	}
	return "http://"
}

// Peer returns what asks other nodes (see api.Config). It keeps no connections:
// peers are asked when a person asks.
func (a Access) Peer() (func(ctx context.Context, address, path string) (*http.Response, error), error) {
	c, err := a.http()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, address, path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.scheme()+address+path, nil)
		if err != nil {
			return nil, err
		}
		req.Close = true
		return c.Do(req)
	}, nil
}

func (a Access) http() (*http.Client, error) {
	conf, err := a.TLS()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		// The address is the operator's own; no proxy stands between
		// them and the node.
		Proxy:               nil,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: 5 * time.Second,
	}
	c := &http.Client{
		Timeout:   time.Minute,
		Transport: t,
		// No node sends a client, and its token, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if a.TokenFile != "" {
		token, err := ReadToken(a.TokenFile)
		if err != nil {
			return nil, err
		}
		c.Transport = &bearer{Transport: t, token: token}
	}
	return c, nil
}

// bearer shows the token to whom TLS or the machine's own loopback hides it from
// others (invariant 11).
type bearer struct {
	*http.Transport
	token string
}

func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !loopback(r.URL.Hostname()) {
		return nil, &api.Error{
			Message: "the token is not sent to " + r.URL.Host + " in plain text", Code: api.CodeRefused,
			Hint: "use https://",
		}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Local is the address at which a node that listens on listen is reached from its
// own machine.
func Local(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip, err := netip.ParseAddr(cmp.Or(host, "0.0.0.0")); err == nil && ip.IsUnspecified() {
		if ip.Is4() {
			return net.JoinHostPort("127.0.0.1", port)
		}
		return net.JoinHostPort("::1", port)
	}
	return listen
}
