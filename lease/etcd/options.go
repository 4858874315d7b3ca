package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// Options says which etcd cluster is meant and how to reach it.
type Options struct {
	// Endpoints are host:port of members; any of them will do for a start, all of
	// them let calls go on when one is down.
	Endpoints []string
	// Namespace is put before every key, so that several users share an etcd.
	Namespace string
	// Username and Password log in; both or neither.
	Username, Password string
	// TLS is used for all endpoints; nil speaks plain text.
	TLS *tls.Config
	// WatchEvents and WatchBytes bound what one watch keeps for a receiver that
	// is slow (invariant 8); defaults 32,768 and 16 MiB.
	WatchEvents, WatchBytes int
	// Dial replaces the dialer of the system.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

const (
	defaultWatchEvents = 32 << 10
	defaultWatchBytes  = 16 << 20

	// loginTimeout bounds the login with user and password in Open.
	loginTimeout = 5 * time.Second
	// A member that is dead without having closed its connections, or frozen, is
	// noticed after pingEvery + pingTimeout. gRPC allows no more frequent pings.
	pingEvery   = 10 * time.Second
	pingTimeout = 3 * time.Second
	// connectTimeout bounds one attempt at a connection; a member that is back is
	// found within reconnectEvery.
	connectTimeout = 3 * time.Second
	reconnectFirst = 50 * time.Millisecond
	reconnectEvery = time.Second
)

// ParseURL reads
//
//	etcd://[user:password@]host:port[,host:port…][/namespace][?ca=…&cert=…&key=…&tls=true]
//
// ca, cert and key name PEM files; each of them turns TLS on, with the system's
// certificate authorities where ca is missing, and so does tls=true. The files of
// a client certificate are read again for each connection, so they can be renewed.
// Errors never repeat the URL, which may hold a password (invariant 11).
func ParseURL(s string) (Options, error) {
	// net/url takes one host only, so the list is parsed here and the rest there.
	rest, ok := strings.CutPrefix(s, "etcd://")
	if !ok {
		return Options{}, errors.New("etcd URL: must begin with etcd://")
	}
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse("etcd://" + user + "host" + rest[len(authority):])
	if err != nil {
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // without the URL
		}
		if user != "" && errors.As(err, new(url.EscapeError)) {
			return Options{}, errors.New("etcd URL: characters that need escaping (%40 for @) are in it")
		}
		return Options{}, fmt.Errorf("etcd URL: %w", err)
	}
	var o Options
	for _, h := range strings.Split(hosts, ",") {
		host, port, err := net.SplitHostPort(h)
		if n, badPort := strconv.ParseUint(port, 10, 16); err != nil || badPort != nil || n == 0 || host == "" {
			return Options{}, fmt.Errorf("etcd URL: %q is not host:port", h)
		}
		o.Endpoints = append(o.Endpoints, h)
	}
	o.Namespace = strings.TrimRight(u.Path, "/")
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	if (o.Username == "") != (o.Password == "") {
		return Options{}, errors.New("etcd URL: a user needs a password and a password a user")
	}
	if u.Fragment != "" {
		return Options{}, errors.New("etcd URL: has a fragment (#); escape it as %23")
	}
	return o, o.parseTLS(u.RawQuery)
}

func (o *Options) parseTLS(rawQuery string) error {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return errors.New("etcd URL: malformed parameters")
	}
	for k, v := range query {
		if !slices.Contains([]string{"ca", "cert", "key", "tls"}, k) {
			return fmt.Errorf("etcd URL: unknown parameter %q; known are ca, cert, key and tls", k)
		}
		if len(v) > 1 || v[0] == "" {
			return fmt.Errorf("etcd URL: parameter %q needs exactly one value", k)
		}
	}
	on := len(query) > 0
	if v := query.Get("tls"); v != "" {
		if on, err = strconv.ParseBool(v); err != nil {
			return fmt.Errorf("etcd URL: tls=%q is neither true nor false", v)
		}
		if !on && len(query) > 1 {
			return errors.New("etcd URL: tls=false contradicts the certificates")
		}
	}
	if !on {
		return nil
	}
	info := transport.TLSInfo{TrustedCAFile: query.Get("ca"), CertFile: query.Get("cert"), KeyFile: query.Get("key")}
	if (info.CertFile == "") != (info.KeyFile == "") {
		return errors.New("etcd URL: cert and key go together")
	}
	if o.TLS, err = info.ClientConfig(); err != nil {
		return fmt.Errorf("etcd URL: TLS: %w", err)
	}
	o.TLS.MinVersion = tls.VersionTLS12
	return nil
}

// String is the URL without credentials.
func (o Options) String() string {
	s := "etcd://"
	if o.Username != "" {
		s += url.User(o.Username).String() + ":***@"
	}
	return s + strings.Join(o.Endpoints, ",") + o.Namespace
}

// GoString keeps %#v from showing the password.
func (o Options) GoString() string { return o.String() }

// LogValue is String, for slog.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }
