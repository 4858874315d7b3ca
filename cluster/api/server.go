package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/cluster/events"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// Bounds of the server (invariant 8). They keep a stuck or hostile client from
// taking the node down; no legitimate one comes near them.
const (
	maxBodyBytes   = 2*route.MaxFileBytes + 64<<10 // a file as a JSON string
	maxHeaderBytes = 16 << 10
	maxConnections = 512
	maxRequests    = 64
	headerTimeout  = 5 * time.Second
	readTimeout    = 30 * time.Second
	writeTimeout   = 60 * time.Second
	idleTimeout    = 2 * time.Minute
	// requestTimeout is shorter than writeTimeout, so that a request that ran
	// out of time still gets its answer.
	requestTimeout = 30 * time.Second
)

// Config is what a Server answers from.
type Config struct {
	Catalog     *catalog.Catalog
	Coordinator lease.Coordinator
	Keys        lease.Keys
	Node        string
	Cluster     string
	Version     string
	// Hosts are names by which clients may call this node besides localhost and
	// plain addresses: those it advertises.
	Hosts []string
	// Token is the bearer token that clients must show; "" asks for none.
	Token string
	// ClientCertificates lets in who has a certificate that the listener verified.
	// With Token either is enough; with neither of them everybody is let in.
	ClientCertificates bool
	// Ready says why this node cannot do its work now, nil if it can.
	Ready func(ctx context.Context) error
	// Leave makes this node hand over what it holds, before it stops.
	Leave func(ctx context.Context) error
	// Voters names the members of the embedded raft, as far as this node knows, and
	// says which of them vote; nil if there is none.
	Voters func(ctx context.Context) map[string]bool
	// RemoveMember takes a node out of the embedded raft for good; nil without one.
	RemoveMember func(ctx context.Context, node string) error
	// Metrics serves /metrics; nil leaves it out.
	Metrics http.Handler
	// Events is what happened on this node lately; nil for none.
	Events *events.Ring
	// Vitals measures this node, for doctor; nil leaves that out.
	Vitals func(ctx context.Context) Vitals
	// Members lists the embedded raft; nil if there is none.
	Members func(ctx context.Context) []Member
	// Backup writes the coordinator's state; nil if that is kept elsewhere.
	Backup func(ctx context.Context, w io.Writer) error
	// Peer gets a path of another node; nil asks in plain HTTP. The caller closes
	// the body.
	Peer func(ctx context.Context, address, path string) (*http.Response, error)
	Log  *slog.Logger
}

// Server is the HTTP API of a node.
type Server struct {
	cfg    Config
	about  aboutCache
	tokens chan struct{}
}

// New makes a server. It holds nothing that needs closing.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, tokens: make(chan struct{}, maxRequests)}
}

// HTTP wraps the handler in a server with time, size and connection limits. The
// caller serves and shuts it down.
func (s *Server) HTTP() *http.Server {
	var open atomic.Int64
	return &http.Server{
		Handler:           s.Handler(),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       withTLS,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxConnections {
					_ = c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			}
		},
	}
}

// Handler serves the API, /healthz, /readyz and /metrics.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	for pattern, f := range map[string]func(*http.Request) (any, error){
		"GET /v1/version":                           s.version,
		"GET /v1/leases":                            s.leases,
		"GET /v1/nodes":                             s.nodes,
		"POST /v1/leave":                            s.leave,
		"GET /v1/routes":                            s.routes,
		"GET /v1/routes/{route}":                    s.route,
		"DELETE /v1/routes/{route}":                 s.deleteRoute,
		"GET /v1/routes/{route}/checkpoints":        s.checkpoints,
		"POST /v1/routes/{route}/checkpoints/reset": s.resetCheckpoints,
		"POST /v1/apply":                            s.apply,
		"POST /v1/validate":                         s.validate,
		"POST /v1/explain":                          s.explain,
	} {
		mux.HandleFunc(pattern, s.answer(f))
	}
	for pattern, f := range s.orders() {
		mux.HandleFunc(pattern, s.answer(f))
	}
	for pattern, f := range s.inspections() {
		mux.HandleFunc(pattern, s.answer(f))
	}
	mux.HandleFunc("GET /v1/backup", s.backup)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &Error{Message: fmt.Sprintf("no %s %s here", r.Method, r.URL.Path), Code: CodeNotFound})
	})
	// A page in somebody's browser must not drive the cluster: neither through a
	// name that it points at loopback, nor by posting from another origin.
	return s.limit(s.ownHost(s.known(http.NewCrossOriginProtection().Handler(mux))))
}

// limit bounds requests in flight.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.tokens <- struct{}{}:
			defer func() { <-s.tokens }()
			next.ServeHTTP(w, r)
		default:
			writeError(w, &Error{Message: "too many requests at once", Code: CodeUnreachable, Hint: "try again"})
		}
	})
}

// ownHost refuses requests whose Host header names somebody else: a web page can
// make its own name resolve to 127.0.0.1, but cannot change what the browser
// sends as Host. Plain addresses cannot be rebound.
func (s *Server) ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		if _, err := netip.ParseAddr(host); err == nil || strings.EqualFold(host, "localhost") {
			next.ServeHTTP(w, r)
			return
		}
		for _, own := range s.cfg.Hosts {
			if strings.EqualFold(host, own) {
				next.ServeHTTP(w, r)
				return
			}
		}
		writeError(w, &Error{
			Message: "this node does not answer under the name in the Host header", Code: CodeRefused,
			Hint: "call it by its address, or start it with --advertise NAME:PORT",
		})
	})
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Ready != nil {
		if err := s.cfg.Ready(r.Context()); err != nil {
			writeError(w, &Error{Message: err.Error(), Code: CodeUnreachable})
			return
		}
	}
	_, _ = fmt.Fprintln(w, "ready")
}

func (s *Server) answer(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		v, err := f(r)
		if err != nil {
			e := AsError(err)
			if e.Code == CodeFailed {
				s.cfg.Log.Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", e.Message)
			}
			writeError(w, e)
			return
		}
		writeJSON(w, http.StatusOK, v)
	}
}

func writeError(w http.ResponseWriter, e *Error) { writeJSON(w, e.status(), e) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client is gone, and so is the place to say it
}

// readJSON decodes a request body; an empty one is the zero value.
func readJSON(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var tooBig *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooBig):
		return &Error{Message: fmt.Sprintf("the request has more than %d bytes", tooBig.Limit), Code: CodeUsage}
	}
	return &Error{Message: "the request is no JSON of this call: " + err.Error(), Code: CodeUsage}
}
