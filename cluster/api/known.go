package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
)

type tlsKey struct{}

// withTLS keeps the TLS connection that may be under c, since net/http finds it
// only where nothing is around it.
func withTLS(ctx context.Context, c net.Conn) context.Context {
	for {
		switch v := c.(type) {
		case *tls.Conn:
			return context.WithValue(ctx, tlsKey{}, v)
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return ctx
		}
	}
}

// known refuses who shows neither the token nor a certificate. Health and
// readiness are for those that have neither, and say nothing about routes.
func (s *Server) known(next http.Handler) http.Handler {
	if s.cfg.Token == "" && !s.cfg.ClientCertificates {
		return next
	}
	want := sha256.Sum256([]byte(s.cfg.Token))
	hint := "show the token: --token-file or MQBCTL_TOKEN_FILE"
	if s.cfg.ClientCertificates {
		hint = "show a certificate: --cert and --key, or MQBCTL_CERT and MQBCTL_KEY"
		if s.cfg.Token != "" {
			hint += "; or the token: --token-file or MQBCTL_TOKEN_FILE"
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
		if open || s.hasCertificate(r) || s.hasToken(r, want) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, &Error{Message: "this node does not know who asks", Code: CodeUnknownClient, Hint: hint})
	})
}

func (s *Server) hasCertificate(r *http.Request) bool {
	c, _ := r.Context().Value(tlsKey{}).(*tls.Conn)
	return s.cfg.ClientCertificates && c != nil && len(c.ConnectionState().VerifiedChains) > 0
}

// hasToken compares digests, so that the time it takes tells neither the content
// nor the length.
func (s *Server) hasToken(r *http.Request, want [sha256.Size]byte) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(token))
	return s.cfg.Token != "" && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
