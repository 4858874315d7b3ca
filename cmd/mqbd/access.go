package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
)

// tls reports whether the port speaks TLS.
func (o *options) tls() bool { return o.Access.CertFile != "" }

// clientCertificates reports whether a certificate is enough for a client.
func (o *options) clientCertificates() bool {
	return o.Access.CAFile != "" && (o.TLSClientAuth || o.Access.TokenFile == "")
}

// checkAccess refuses what would let in everybody, or nobody.
func (o *options) checkAccess(bad func(format string, args ...any)) {
	a := o.Access
	if (a.CertFile == "") != (a.KeyFile == "") {
		bad("--tls-cert and --tls-key go together")
	}
	if !o.tls() && (a.CAFile != "" || a.ServerName != "" || o.TLSClientAuth) {
		bad("--tls-ca, --tls-server-name and --tls-client-auth need --tls-cert and --tls-key")
	}
	if o.TLSClientAuth && a.CAFile == "" {
		bad("--tls-client-auth needs --tls-ca")
	}
	if o.tls() && a.CAFile == "" && len(o.Join) > 0 {
		bad("--join with TLS needs --tls-ca: members of the embedded raft know each other by its certificates")
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		bad("--listen %s: must be host:port", o.Listen)
		return
	}
	// Whoever speaks to the port owns the cluster.
	ip, err := netip.ParseAddr(host)
	loopback := host == "localhost" || err == nil && ip.IsLoopback()
	if !loopback && !(o.tls() && (a.TokenFile != "" || a.CAFile != "")) {
		bad("--listen %s: beyond loopback, --tls-cert, --tls-key and one of --tls-ca and --token-file are needed; or put a tunnel in front", o.Listen)
	}
	if everywhere(host) && o.Advertise == "" && o.host == "" {
		bad("--listen %s: needs --advertise, as this machine has no name", o.Listen)
	}
}

// everywhere reports whether a host to listen on is no address to call.
func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// advertised is the address that others call, of a node that listens on listen.
func (o *options) advertised(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case o.Advertise != "":
		return o.Advertise
	case err == nil && everywhere(host):
		return net.JoinHostPort(o.host, port)
	}
	return listen
}

// access is who may speak to this node, and as whom it speaks to others.
type access struct {
	// server is nil without TLS.
	server *tls.Config
	token  string
	// names are those of the certificate, by which clients may call this node.
	names []string
	// dial and verify are for the members of the embedded raft; nil without TLS.
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	verify func(net.Conn) error
	peer   func(ctx context.Context, address, path string) (*http.Response, error)
}

// open reads the files. They are not read again.
func (o *options) open() (a access, err error) {
	if a.peer, err = o.Access.Peer(); err != nil {
		return a, &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	if o.Access.TokenFile != "" {
		if a.token, err = client.ReadToken(o.Access.TokenFile); err != nil {
			return a, &api.Error{Message: err.Error(), Code: api.CodeUsage}
		}
	}
	if !o.tls() {
		return a, nil
	}
	conf, err := o.Access.TLS()
	if err != nil {
		return a, &api.Error{Message: err.Error(), Code: api.CodeUsage}
	}
	a.server = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: conf.Certificates}
	if o.Access.CAFile != "" {
		// Not required of all: clients may have a token, and health is for everybody.
		a.server.ClientAuth, a.server.ClientCAs = tls.VerifyClientCertIfGiven, conf.RootCAs
	}
	if leaf := conf.Certificates[0].Leaf; leaf != nil {
		a.names = leaf.DNSNames
	}
	a.dial = (&tls.Dialer{Config: conf}).DialContext
	a.verify = verifyMember
	return a, nil
}

// listener serves TLS on l where there is a certificate.
func (a access) listener(l net.Listener) net.Listener {
	if a.server == nil {
		return l
	}
	return tls.NewListener(l, a.server)
}

// verifyMember asks for a certificate of --tls-ca: members have no token. Without
// an authority nobody has one, and the node remains alone.
func verifyMember(c net.Conn) error {
	t, ok := c.(*tls.Conn)
	if !ok {
		return fmt.Errorf("no TLS: %T", c)
	}
	if len(t.ConnectionState().VerifiedChains) == 0 {
		return errors.New("it showed no certificate of --tls-ca")
	}
	return nil
}
