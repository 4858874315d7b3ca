package client_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
)

func tokenFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func TestTokenFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"plain":          {"s3cret\n", 0o600, ""},
		"for a group":    {"s3cret", 0o640, ""},
		"world-readable": {"s3cret", 0o644, "chmod"},
		"world-writable": {"s3cret", 0o602, "chmod"},
		"empty":          {" \n", 0o600, "1 to"},
		"two lines":      {"s3cret\ns3cret\n", 0o600, "one line"},
		"too long":       {strings.Repeat("s3cret", 1000), 0o600, "1 to"},
	} {
		got, err := client.ReadToken(tokenFile(t, c.text, c.mode))
		switch {
		case c.says == "" && (err != nil || got != "s3cret"):
			t.Errorf("%s: %q %v", name, got, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cret")):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Hazard: a token that anybody on the way can read is everybody's.
func TestTokenIsNotSentInPlainTextBeyondLoopback(t *testing.T) {
	t.Parallel()
	access := client.Access{TokenFile: tokenFile(t, "s3cret", 0o600)}
	for _, server := range []string{"mqb.example:7070", "http://192.0.2.1:7070"} {
		c, err := client.New(server, access)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Nodes(t.Context())
		var e *api.Error
		if !errors.As(err, &e) || e.ExitCode() != 5 || !strings.Contains(e.Error(), "plain text") || strings.Contains(e.Error(), "s3cret") {
			t.Errorf("%s: %v", server, err)
		}
	}
	peer, err := access.Peer()
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := peer(t.Context(), "192.0.2.1:7070", "/v1/events"); err == nil {
		_ = resp.Body.Close()
		t.Error("a peer beyond loopback was asked with the token")
	}
}

func TestTokenGoesToTheServerAndNowhereElse(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("redirected with %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(elsewhere.Close)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer s3cret" {
			t.Errorf("got %q", got)
		}
		http.Redirect(w, r, elsewhere.URL, http.StatusFound)
	}))
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, client.Access{TokenFile: tokenFile(t, "s3cret\n", 0o600)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.Nodes(t.Context()); err == nil {
		t.Error("a redirect is an answer")
	}
}

func TestLocalAddressOfAListener(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"": "", "127.0.0.1:7070": "127.0.0.1:7070", "n1:7070": "n1:7070",
		"0.0.0.0:7070": "127.0.0.1:7070", ":7070": "127.0.0.1:7070", "[::]:7070": "[::1]:7070",
	} {
		if got := client.Local(listen); got != want {
			t.Errorf("%q: %q", listen, got)
		}
	}
}
