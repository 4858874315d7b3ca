package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
)

// Hazard: a path that is registered beside the others is served to everybody.
func TestOnlyWhoShowsTheTokenIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *api.Config) {
		c.Token = "s3cret"
		c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	})
	ask := func(method, path, authorization string) (int, api.Error) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var e api.Error
		_ = json.NewDecoder(resp.Body).Decode(&e)
		if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: 401 without a challenge", path)
		}
		return resp.StatusCode, e
	}
	for _, call := range []string{"GET /v1/version", "GET /v1/nodes", "POST /v1/leave", "POST /v1/apply", "DELETE /v1/routes/x",
		"GET /v1/events", "GET /v1/backup", "GET /v1/doctor", "GET /metrics", "GET /nowhere", "GET /healthz/../v1/nodes"} {
		method, path, _ := strings.Cut(call, " ")
		for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret2", "Basic s3cret", "s3cret"} {
			code, e := ask(method, path, wrong)
			if code != http.StatusUnauthorized || e.Code != api.CodeUnknownClient || e.Hint == "" || e.ExitCode() != 5 || strings.Contains(e.Error(), "s3cret") {
				t.Errorf("%s with %q: %d %+v", call, wrong, code, e)
			}
		}
	}
	for _, path := range []string{"/v1/nodes", "/metrics"} {
		if code, e := ask("GET", path, "bearer s3cret"); code != http.StatusOK {
			t.Errorf("%s: %d %+v", path, code, e)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, _ := ask("GET", path, ""); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestCertificatesAloneLetNobodyInWithoutTLS(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *api.Config) { c.ClientCertificates = true })
	if _, err := f.Nodes(t.Context()); code(err) != api.CodeUnknownClient {
		t.Errorf("got %v", err)
	}
}
