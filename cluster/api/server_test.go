package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/actors"
	"github.com/mqbridge/mqb/actors/pipeline"
	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/route"
)

type endpoint struct {
	URL string `yaml:"url"`
}

func registry() *connectors.Registry {
	return connectors.NewRegistry([]connectors.Type{{EndpointType: route.EndpointType{
		Name: "sys", NewConfig: func() any { return new(endpoint) },
		Source: func(any) route.SourceCapabilities {
			return route.SourceCapabilities{StableIdentity: true, DurablePosition: true, Locality: route.Shared}
		},
		Sink: func(any) route.SinkCapabilities {
			return route.SinkCapabilities{Tier: route.TierNone, Locality: route.Shared}
		},
	}}}, nil)
}

type fixture struct {
	*client.Client
	c    *memory.Client
	keys lease.Keys
	url  string
}

func newFixture(t *testing.T, change ...func(*api.Config)) *fixture {
	t.Helper()
	c := memory.New()
	t.Cleanup(func() { _ = c.Close() })
	keys := lease.NewKeys("mqb")
	store := coordinator.New(c, keys)
	t.Cleanup(func() { _ = store.Close() })
	cfg := api.Config{
		Coordinator: c, Keys: keys, Node: "n1", Cluster: "mqb", Version: "v0",
		Hosts: []string{"n1.example"}, Log: slog.New(slog.DiscardHandler),
		Catalog: catalog.New(catalog.Config{
			Coordinator: c, Keys: keys, Cluster: "mqb", Registry: registry(),
			OpenStore: func(context.Context, *route.Spec) (checkpoint.Store, func() error, error) {
				return store, func() error { return nil }, nil
			},
		}),
	}
	for _, f := range change {
		f(&cfg)
	}
	s := httptest.NewUnstartedServer(nil)
	s.Config = api.New(cfg).HTTP()
	s.Start()
	t.Cleanup(s.Close)
	cl, err := client.New(s.URL, client.Access{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	f := &fixture{Client: cl, c: c, keys: keys, url: s.URL}
	f.put(t, keys.ClusterUID(), []byte("uid"))
	return f
}

func (f *fixture) put(t *testing.T, key string, value []byte) {
	t.Helper()
	if _, err := f.c.Txn(t.Context(), nil, []lease.Op{lease.Put(key, value)}); err != nil {
		t.Fatal(err)
	}
}

const file = "routes:\n  orders/eu:\n    input: {sys: {url: \"pg://u:${PASS}@h/db\"}}\n    output: {sys: {url: b}}\n"

func (f *fixture) apply(t *testing.T, text, position string) api.ApplyResult {
	t.Helper()
	res, err := f.Apply(t.Context(), api.File{Name: "f.yaml", Text: text, Env: map[string]string{"PASS": "hunter2"}}, position, false)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func code(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestApplyAndLookThroughTheClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if res := f.apply(t, file, ""); res.Routes[0].Outcome != "created" || res.Routes[0].Guarantee == "" {
		t.Fatalf("got %+v", res)
	}
	f.put(t, f.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1", Address: "127.0.0.1:1"}))
	f.put(t, f.keys.Partition("orders/eu", "p/0"), lease.Encode(lease.Partition{ID: "p/0"}))
	ls, err := f.Leases(t.Context(), "orders/eu")
	if err != nil || len(ls.Leases) != 1 || ls.Leases[0].Partition != "p/0" || ls.Leases[0].Reason == "" {
		t.Errorf("leases %+v %v", ls, err)
	}
	if _, err := f.Leases(t.Context(), "nope"); code(err) != api.CodeNotFound {
		t.Errorf("leases of no route: %v", err)
	}
	if err := f.Pause(t.Context(), "orders/eu"); err != nil {
		t.Error(err)
	}
	rs, err := f.Routes(t.Context())
	if err != nil || len(rs.Routes) != 1 || rs.Routes[0].Input != "sys" {
		t.Errorf("routes %+v %v", rs, err)
	}
	if err := f.Resume(t.Context(), "orders/eu"); err != nil {
		t.Error(err)
	}
	if err := f.Drain(t.Context(), "n1"); err != nil {
		t.Error(err)
	}
	if ns, err := f.Nodes(t.Context()); err != nil || ns.Nodes[0].State != api.NodeDrained {
		t.Errorf("nodes %+v %v", ns, err)
	}
	if err := f.Undrain(t.Context(), "n1"); err != nil {
		t.Error(err)
	}
	if err := f.Drain(t.Context(), "n9"); code(err) != api.CodeNotFound {
		t.Errorf("drain of no node: %v", err)
	}
	if cs, err := f.ResetCheckpoints(t.Context(), "orders/eu", ""); err != nil || len(cs.Checkpoints) != 0 {
		t.Errorf("reset %+v %v", cs, err)
	}
	if v, err := f.Version(t.Context()); err != nil || v.Node != "n1" {
		t.Errorf("version %+v %v", v, err)
	}
	if err := f.Delete(t.Context(), "orders/eu"); err != nil {
		t.Error(err)
	}
	if err := f.Delete(t.Context(), "orders/eu"); code(err) != api.CodeNotFound {
		t.Errorf("second delete: %v", err)
	}
}

func TestSecretsOfSpecsAreMasked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, file, "")
	for _, path := range []string{"/v1/routes", "/v1/routes/orders%2Feu", "/v1/leases", "/v1/routes/orders%2Feu/checkpoints"} {
		_, body := f.get(t, path, "")
		if strings.Contains(body, "hunter2") {
			t.Errorf("%s shows the password: %s", path, body)
		}
	}
	r, err := f.Route(t.Context(), "orders/eu")
	if err != nil || !strings.Contains(r.Spec, "***") {
		t.Errorf("spec %q %v", r.Spec, err)
	}
}

// TestVariablesOfTheNodeAreNotTheCallers: a file must not read the environment
// of the process that answers.
func TestVariablesOfTheNodeAreNotTheCallers(t *testing.T) {
	t.Setenv("PASS", "of-the-node")
	f := newFixture(t)
	_, err := f.Apply(t.Context(), api.File{Text: file}, "", false)
	if code(err) != api.CodeInvalid || !strings.Contains(err.Error(), "PASS") {
		t.Errorf("got %v", err)
	}
}

func TestRefusalsAndInvalidFilesKeepTheirKind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.apply(t, file, "")
	res := f.apply(t, strings.Replace(file, "url: b", "url: c", 1), "")
	if e := res.Routes[0].Error; e == nil || e.ExitCode() != 5 || !strings.Contains(e.Hint, "--position") {
		t.Errorf("got %+v", res.Routes[0])
	}
	_, err := f.Apply(t.Context(), api.File{Text: "routes: {r: {inptu: 1}, s: {input: {sys: {ulr: x}}}}"}, "", false)
	var e *api.Error
	if !errors.As(err, &e) || e.ExitCode() != 3 || len(e.Details) < 2 {
		t.Errorf("got %#v", err)
	}
	if _, err := f.Apply(t.Context(), api.File{Text: file}, "latest", false); code(err) != api.CodeRefused {
		t.Errorf("latest: %v", err)
	}
}

func TestCoordinatorOutageIsUnreachable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.c.SetFault(func(string) memory.Fault { return memory.FaultRefuse })
	if _, err := f.Leases(t.Context(), ""); code(err) != api.CodeUnreachable {
		t.Errorf("got %v", err)
	}
}

// get is a plain request with a chosen Host header.
func (f *fixture) get(t *testing.T, path, host string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	req.Close = true // no idle connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestForeignHostHeaderIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for host, want := range map[string]int{
		"":                  http.StatusOK,
		"127.0.0.1:7070":    http.StatusOK,
		"[::1]:7070":        http.StatusOK,
		"localhost":         http.StatusOK,
		"N1.example:7070":   http.StatusOK,
		"evil.example":      http.StatusConflict,
		"evil.example:7070": http.StatusConflict,
		"127.0.0.1.evil.io": http.StatusConflict,
	} {
		if got, body := f.get(t, "/v1/leases", host); got != want {
			t.Errorf("Host %q: %d, want %d: %s", host, got, want, body)
		}
	}
}

func TestPostFromAnotherOriginIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/nodes/n1/drain", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "http://evil.example")
	if got, body := do(t, req); got != http.StatusForbidden {
		t.Errorf("got %d %s", got, body)
	}
}

func TestOversizedRequestIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, kind := range []string{"application/json", "application/yaml"} {
		body := strings.Repeat("#", 3*route.MaxFileBytes)
		if kind == "application/json" {
			body = `{"text":"` + body + `"}`
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/apply", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		if got, body := do(t, req); got != http.StatusBadRequest || !strings.Contains(body, "more than") {
			t.Errorf("%s: %d %.200s", kind, got, body)
		}
	}
}

func TestOversizedHeaderIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	}()
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 431") {
		t.Errorf("got %.100q", answer)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const limit = 512
	refused := 0
	for range limit + 8 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if refused > 0 {
			break
		}
		// A connection beyond the bound is closed at once; one within it answers.
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if n, _ := conn.Read(make([]byte, 1)); n == 0 {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("%d connections were served at once", limit+8)
	}
}

func TestRequestsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}, 100), make(chan struct{})
	f := newFixture(t, func(c *api.Config) {
		c.Ready = func(context.Context) error {
			entered <- struct{}{}
			<-leave
			return nil
		}
	})
	const limit = 64
	var wg sync.WaitGroup
	for range limit {
		wg.Go(func() {
			if err := f.Ready(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	for range limit {
		<-entered
	}
	if status, body := f.get(t, "/healthz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("got %d %s", status, body)
	}
	close(leave)
	wg.Wait()
}

func TestUnknownPathAnswersInJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, body := f.get(t, "/v1/nope", "")
	var e api.Error
	if err := json.Unmarshal([]byte(body), &e); err != nil || status != http.StatusNotFound || e.Code != api.CodeNotFound {
		t.Errorf("%d %s", status, body)
	}
}

func TestHealthReadinessAndMetrics(t *testing.T) {
	t.Parallel()
	var notReady error
	f := newFixture(t, func(c *api.Config) {
		c.Ready = func(context.Context) error { return notReady }
		c.Metrics = api.Metrics(func() []actors.Run {
			return []actors.Run{{
				Status: lease.PartitionStatus{
					Route: "r", Partition: "p", State: lease.StateRunning, Epoch: 4, Lag: -1,
					Counters: lease.Counters{Read: 5, Written: 4, Dropped: 1},
				},
				Bytes: 12, Commits: 2, FenceWait: 10 * time.Millisecond, RunTime: time.Second,
				Output: &pipeline.CallCounts{Messages: 4, Failed: 1, Errors: 2, Calls: 3, Took: time.Second, Within: map[float64]uint64{0.1: 2}},
			}}
		})
	})
	if got, body := f.get(t, "/healthz", ""); got != http.StatusOK {
		t.Errorf("healthz %d %s", got, body)
	}
	if err := f.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	_, body := f.get(t, "/metrics", "")
	for _, want := range []string{
		`mqb_records_total{partition="p",result="written",route="r"} 4`,
		`mqb_records_total{partition="p",result="dropped",route="r"} 1`,
		`mqb_partition_state{partition="p",route="r",state="running"} 1`,
		`mqb_bytes_total{partition="p",route="r"} 12`,
		`mqb_fence_wait_seconds_total{partition="p",route="r"} 0.01`,
		`mqb_partition_epoch{partition="p",route="r"} 4`,
		`mqb_endpoint_messages_total{partition="p",result="ok",route="r",side="output"} 4`,
		`mqb_endpoint_messages_total{partition="p",result="failed",route="r",side="output"} 1`,
		`mqb_endpoint_errors_total{partition="p",route="r",side="output"} 2`,
		`mqb_endpoint_call_seconds_bucket{partition="p",route="r",side="output",le="0.1"} 2`,
		`mqb_endpoint_call_seconds_count{partition="p",route="r",side="output"} 3`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, `side="input"`) {
		t.Error("an input that is not measured is shown")
	}
	if strings.Contains(body, "mqb_lag{") {
		t.Error("an unknown lag is shown")
	}
	notReady = errors.New("no leader")
	if err := f.Ready(t.Context()); code(err) != api.CodeUnreachable {
		t.Errorf("got %v", err)
	}
}
