package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/harness"
)

// proxy stands before a real server and lets a test deal with each PUT.
type proxy struct {
	*httptest.Server
	server *harness.S3Server
	http   *http.Client

	mu   sync.Mutex
	puts int
	next func(put) // nil: forward
}

// put is a PUT on its way.
type put struct {
	http.ResponseWriter
	p    *proxy
	r    *http.Request
	body []byte
}

func newProxy(t *testing.T, server *harness.S3Server) *proxy {
	p := &proxy{server: server, http: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		p.http.CloseIdleConnections()
	})
	return p
}

// onPut replaces what happens to every PUT from now on.
func (p *proxy) onPut(f func(put)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.puts = f, 0
}

// seen is the number of PUTs since onPut.
func (p *proxy) seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.puts
}

// await returns when a PUT is on its way.
func (p *proxy) await(t *testing.T) {
	t.Helper()
	harness.Eventually(t, time.Minute, func() error {
		if p.seen() == 0 {
			return errors.New("no PUT is on its way yet")
		}
		return nil
	})
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req := put{w, p, r, body}
	p.mu.Lock()
	f := p.next
	if r.Method == http.MethodPut {
		p.puts++
	}
	p.mu.Unlock()
	if r.Method == http.MethodPut && f != nil {
		f(req)
		return
	}
	req.reply(req.forward())
}

// forward makes the request at the server, even if the client has gone.
func (r put) forward() (status int, header http.Header, body []byte) {
	req := r.r.Clone(context.WithoutCancel(r.r.Context()))
	req.RequestURI, req.Body, req.ContentLength = "", io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
	// The signature covers the host that the client knows.
	req.URL.Scheme, req.URL.Host = "http", r.p.server.Endpoint[len("http://"):]
	resp, err := r.p.http.Do(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return resp.StatusCode, resp.Header, body
}

func (r put) reply(status int, header http.Header, body []byte) {
	for name, values := range header {
		r.Header()[name] = values
	}
	r.WriteHeader(status)
	_, _ = r.Write(body)
}

// cut breaks the connection without an answer.
func (r put) cut() { panic(http.ErrAbortHandler) }
