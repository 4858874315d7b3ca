package client_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
)

func TestNobodyThereIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(addr, client.Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Nodes(t.Context())
	var e *api.Error
	if !errors.As(err, &e) || e.ExitCode() != 4 || e.Hint == "" {
		t.Errorf("got %#v", err)
	}
}

func TestAnotherServerIsUnreachable(t *testing.T) {
	t.Parallel()
	for _, h := range []http.HandlerFunc{
		http.NotFound,
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		c, err := client.New(s.URL, client.Access{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		_, err = c.Nodes(t.Context())
		var e *api.Error
		if !errors.As(err, &e) || e.ExitCode() != 4 {
			t.Errorf("got %v", err)
		}
	}
}

func TestServerAddresses(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "localhost:1", "http://127.0.0.1:7070", "http://[::1]:7070/", "https://h"} {
		if _, err := client.New(good, client.Access{}); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"ftp://h", "http://", "http://u:p@h", "http://h/x", "http://h:port"} {
		_, err := client.New(bad, client.Access{})
		var e *api.Error
		if !errors.As(err, &e) || e.ExitCode() != 2 {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
