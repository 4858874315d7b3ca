package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/coordinator"
	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/catalog"
	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
	"github.com/mqbridge/mqb/route"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	if os.Getenv("MQBCTL_TEST_PROCESS") != "" {
		main() // a test runs this binary as the program itself
	}
	goleak.VerifyTestMain(m)
}

// result of one command line.
type result struct {
	code     int
	out, err string
}

func mqbctl(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := execute(t.Context(), args, strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// golden compares with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}

// node is an API over a coordinator in memory.
type node struct {
	c    lease.Coordinator
	keys lease.Keys
	addr string
}

func newNode(t *testing.T) *node {
	t.Helper()
	c := memory.New()
	t.Cleanup(func() { _ = c.Close() })
	keys := lease.NewKeys("mqb")
	store := coordinator.New(c, keys)
	t.Cleanup(func() { _ = store.Close() })
	s := httptest.NewUnstartedServer(nil)
	s.Config = api.New(api.Config{
		Coordinator: c, Keys: keys, Node: "n1", Cluster: "mqb", Log: slog.New(slog.DiscardHandler),
		Catalog: catalog.New(catalog.Config{
			Coordinator: c, Keys: keys, Cluster: "mqb", Registry: builtin.Registry(),
			OpenStore: func(context.Context, *route.Spec) (checkpoint.Store, func() error, error) {
				return store, func() error { return nil }, nil
			},
		}),
	}).HTTP()
	s.Start()
	t.Cleanup(s.Close)
	n := &node{c: c, keys: keys, addr: s.Listener.Addr().String()}
	n.put(t, keys.ClusterUID(), []byte("uid"))
	return n
}

func (n *node) put(t *testing.T, key string, value []byte) {
	t.Helper()
	if _, err := n.c.Txn(t.Context(), nil, []lease.Op{lease.Put(key, value)}); err != nil {
		t.Fatal(err)
	}
}

func (n *node) ctl(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return mqbctl(t, stdin, append([]string{"--server", n.addr}, args...)...)
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const plain = "routes:\n  orders:\n    input: {static: hello}\n    output: null\n"

func TestTables(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var b bytes.Buffer
	leasesTable(&b, api.Leases{
		Leases: []api.Lease{
			{Route: "orders", Partition: "orders-2", Owner: "n1", Epoch: 4, State: lease.StateRunning, Position: "1200", Lag: 7, Guarantee: "exactly-once", Since: now.Add(-95 * time.Second)},
			{Route: "orders", Partition: "orders-10", Owner: "n2", Epoch: 1, State: lease.StateDone, Position: "88", Lag: 0, Guarantee: "exactly-once", Since: now.Add(-26 * time.Hour)},
			{Route: "orders", Partition: "evil\x1b[2Jname", State: lease.StateUnassigned, Lag: -1, Guarantee: "exactly-once", Reason: "no live nodes"},
			{Route: "a", Partition: "0", State: lease.StateUnassigned, Lag: -1, Reason: "waiting"},
			{Route: "a", Partition: "1", State: lease.StateUnassigned, Lag: -1, Reason: "waiting"},
			{Route: "a", Partition: "2", State: lease.StateUnassigned, Lag: -1, Reason: "waiting"},
			{Route: "a", Partition: "3", State: lease.StateUnassigned, Lag: -1, Reason: "waiting"},
		},
		Problems: []api.Problem{{Route: "b", Error: "n1: no such directory"}},
		Summary:  api.Summary{Text: "2 nodes, 7 partitions, 5 not owned"},
	}, now)
	golden(t, "leases.txt", b.String())

	b.Reset()
	nodesTable(&b, api.Nodes{Nodes: []api.Node{
		{Name: "n1", Address: "127.0.0.1:7070", State: api.NodeActive, Partitions: 3, Scheduler: true, Voter: true, Version: "v1", Started: now.Add(-time.Minute), Labels: map[string]string{"zone": "b", "disk": "ssd"}},
		{Name: "n9", State: api.NodeGone},
	}}, now)
	golden(t, "nodes.txt", b.String())

	b.Reset()
	routesTable(&b, []api.Route{
		{Name: "orders", Input: "kafka", Output: "sqlx", Generation: 3, State: lease.StateRunning, Owned: 8, Partitions: 8, Written: 1000000, Lag: 12, Guarantee: "exactly-once"},
		{Name: "files", Input: "file", Output: "file", Generation: 1, State: lease.StateQuarantined, Partitions: 1, Lag: -1, Error: "disk full"},
	})
	golden(t, "routes.txt", b.String())

	b.Reset()
	checkpointsTable(&b, api.Checkpoints{Checkpoints: []api.Checkpoint{
		{Partition: "orders-0", Leg: "out", Position: "1200", Epoch: 4, Generation: 3, Series: "abc", Version: 99, Store: "coordinator"},
	}})
	golden(t, "checkpoints.txt", b.String())

	b.Reset()
	appliedTable(&b, api.ApplyResult{DryRun: true, Routes: []api.Applied{
		{Route: "orders", Outcome: "created", Generation: 1, Guarantee: "exactly-once", Position: "starts at the beginning"},
		{Route: "files", Outcome: "refused", Guarantee: "at-least-once"},
	}})
	golden(t, "apply.txt", b.String())
}

func TestSizesAndAges(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 119407424: "113.9 MiB", 1 << 50: "1024.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s", n, got)
		}
	}
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1500 * time.Millisecond: "1s", 61 * time.Minute: "1h1m", 50 * time.Hour: "2d2h",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("age of %s = %s", d, got)
		}
	}
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("age of nothing = %s", got)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	good := write(t, "good.yaml", plain)
	if r := n.ctl(t, "", "apply", "-f", good); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()
	bad := write(t, "bad.yaml", "routes:\n  a: {input: {statik: x}}\n  b: {inptu: {static: x}}\n")
	weak := write(t, "weak.yaml", "routes:\n  a: {input: {static: x}, output: {memory: t}, required_delivery: exactly-once}\n")
	other := write(t, "other.yaml", strings.Replace(plain, "hello", "bye", 1))
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"done":               {[]string{"leases"}, 0, ""},
		"no such route":      {[]string{"pause", "nope"}, 1, "not found"},
		"unknown command":    {[]string{"lease"}, 2, "unknown command"},
		"unknown subcommand": {[]string{"checkpoint", "shwo", "orders"}, 2, "show, set, reset or adopt"},
		"unknown flag":       {[]string{"leases", "--wach"}, 2, "unknown flag"},
		"missing argument":   {[]string{"pause"}, 2, "accepts 1 arg"},
		"unknown format":     {[]string{"leases", "-o", "xml"}, 2, "table, json or yaml"},
		"missing file":       {[]string{"apply", "-f", "nope.yaml"}, 2, "no such file"},
		"invalid file":       {[]string{"validate", bad}, 3, "errors in the configuration"},
		"invalid file, sent": {[]string{"apply", "-f", bad}, 3, "errors in the configuration"},
		"too weak":           {[]string{"validate", weak}, 3, "required_delivery"},
		"nobody there":       {[]string{"--server", nobody, "leases"}, 4, "MQBCTL_SERVER"},
		"position":           {[]string{"apply", "-f", other}, 5, "--position"},
		"not confirmed":      {[]string{"checkpoint", "reset", "orders"}, 5, "--yes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := n.ctl(t, "no\n", c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.says) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestOutputsHaveTheSameKeys(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(t, n.keys.Partition("orders", "p0"), lease.Encode(lease.Partition{ID: "p0"}))
	r := n.ctl(t, "", "leases", "-o", "json")
	var v api.Leases
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || len(v.Leases) != 1 || v.Leases[0].Partition != "p0" {
		t.Errorf("json: %v %+v", err, r)
	}
	r = n.ctl(t, "", "leases", "-o", "yaml")
	if !strings.Contains(r.out, "partition: p0") || !strings.Contains(r.out, "idle_nodes: 0") {
		t.Errorf("yaml: %+v", r)
	}
}

func TestResetAsksAndReports(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if r := n.ctl(t, plain, "apply", "-f", "-"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := n.ctl(t, "y\n", "checkpoint", "reset", "orders"); r.code != 0 || !strings.Contains(r.err, "[y/N]") {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "checkpoint", "reset", "orders", "--yes", "-o", "json"); r.code != 0 || strings.Contains(r.err, "[y/N]") {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "routes", "-o", "json"); !strings.Contains(r.out, `"generation": 3`) {
		t.Errorf("%+v", r)
	}
}

func TestWatchPrintsChangesUntilInterrupted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- execute(ctx, []string{"--server", n.addr, "nodes", "--watch", "-o", "json"}, nil, w, io.Discard)
		_ = w.Close()
	}()
	dec := json.NewDecoder(r)
	for _, want := range []int{0, 1} {
		var v api.Nodes
		if err := dec.Decode(&v); err != nil || len(v.Nodes) != want {
			t.Fatalf("got %+v %v, want %d nodes", v, err, want)
		}
		n.put(t, n.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1"}))
	}
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
}

func TestDrainWaitsUntilTheNodeIsEmpty(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(t, n.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1"}))
	n.put(t, n.keys.Owner("orders", "p0"), lease.Encode(lease.Owner{Node: "n1", Epoch: 1}))
	watch := n.c.Watch(t.Context(), n.keys.Cordons(), 1)
	done := make(chan result, 1)
	go func() { done <- n.ctl(t, "", "drain", "n1") }()
	<-watch
	select {
	case r := <-done:
		t.Fatalf("came back with a partition left: %+v", r)
	default:
	}
	if _, err := n.c.Txn(t.Context(), nil, []lease.Op{lease.Delete(n.keys.Owner("orders", "p0"))}); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "drain", "n9"); r.code != 1 {
		t.Errorf("unknown node: %+v", r)
	}
}

func TestDrainGivesUpAfterItsTimeout(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(t, n.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1"}))
	n.put(t, n.keys.Owner("orders", "p0"), lease.Encode(lease.Owner{Node: "n1", Epoch: 1}))
	r := n.ctl(t, "", "drain", "n1", "--timeout", "150ms")
	if r.code != 1 || !strings.Contains(r.err, "1 partitions left") {
		t.Errorf("%+v", r)
	}
	if r := n.ctl(t, "", "drain", "n1", "--no-wait"); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestCompletionExists(t *testing.T) {
	t.Parallel()
	if r := mqbctl(t, "", "completion", "bash"); r.code != 0 || !strings.Contains(r.out, "mqbctl") {
		t.Errorf("code %d", r.code)
	}
}
