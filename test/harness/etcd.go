package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdCluster is an etcd cluster on loopback with real fsync. Election time-outs
// are half of etcd's default, so that the shortest lease is one second.
type EtcdCluster struct {
	Members []*EtcdMember

	bin, dir string
	args     []string
	scheme   string
}

// EtcdMember is one server of a cluster. It keeps its ports and its data when it
// is stopped or killed and started again. Safe for concurrent use.
type EtcdMember struct {
	Name string
	// Addr is the host:port for clients.
	Addr string

	cluster      *EtcdCluster
	peer, health string // URLs

	mu   sync.Mutex
	proc *Process
}

// Etcd starts a cluster that ends with the test; args are added to the command
// line of every member. With --cert-file among them clients must use TLS.
func Etcd(t testing.TB, members int, args ...string) *EtcdCluster {
	t.Helper()
	bin := Cached(t, "etcd-"+etcdModule(t), buildEtcd)
	c := &EtcdCluster{bin: bin, dir: t.TempDir(), args: args, scheme: "http"}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--cert-file") }) {
		c.scheme = "https"
	}
	for i := range members {
		c.Members = append(c.Members, &EtcdMember{
			Name:    fmt.Sprintf("m%d", i),
			Addr:    fmt.Sprintf("127.0.0.1:%d", FreePort(t)),
			cluster: c,
			peer:    fmt.Sprintf("http://127.0.0.1:%d", FreePort(t)),
			health:  fmt.Sprintf("http://127.0.0.1:%d", FreePort(t)),
		})
	}
	t.Cleanup(func() {
		for _, m := range c.Members {
			p := m.Process()
			if p == nil {
				continue
			}
			p.Kill()
			if t.Failed() {
				t.Logf("last output of etcd %s:\n%s", m.Name, p.Log())
			}
		}
	})
	c.Start(t)
	return c
}

// etcdSource is the module that pins the server.
func etcdSource() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "servers", "etcd")
}

// etcdModule is a digest of the module, so that a changed one is built anew.
func etcdModule(t testing.TB) string {
	t.Helper()
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		b, err := os.ReadFile(filepath.Join(etcdSource(), name))
		if err != nil {
			t.Fatalf("harness: %v", err)
		}
		_, _ = sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

// buildEtcd builds the server and its offline tool.
func buildEtcd(dir string) error {
	for name, pkg := range map[string]string{"etcd": ".", "etcdutl": "go.etcd.io/etcd/etcdutl/v3"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Dir = etcdSource()
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// Endpoints are the members' client addresses.
func (c *EtcdCluster) Endpoints() []string {
	var addrs []string
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// URL names the cluster as mqbd's --coordinator does.
func (c *EtcdCluster) URL() string { return "etcd://" + strings.Join(c.Endpoints(), ",") }

// Start starts the members that do not run and waits until all are healthy.
func (c *EtcdCluster) Start(t testing.TB) {
	t.Helper()
	for _, m := range c.Members {
		m.Start(t)
	}
	for _, m := range c.Members {
		m.AwaitHealthy(t)
	}
}

// Kill ends every member at once.
func (c *EtcdCluster) Kill() {
	for _, m := range c.Members {
		m.Process().Kill()
	}
}

// Leader is the member that leads, as most members say.
func (c *EtcdCluster) Leader(t testing.TB) *EtcdMember {
	t.Helper()
	var leader *EtcdMember
	Eventually(t, 30*time.Second, func() error {
		votes := map[uint64]int{}
		ids := map[uint64]*EtcdMember{}
		for _, m := range c.Members {
			status, err := m.status(t)
			if err != nil {
				continue
			}
			votes[status.Leader]++
			ids[status.Header.MemberId] = m
		}
		for id, n := range votes {
			if m := ids[id]; m != nil && n > len(c.Members)/2 {
				leader = m
				return nil
			}
		}
		return fmt.Errorf("no leader: %v", votes)
	})
	return leader
}

func (m *EtcdMember) status(t testing.TB) (*clientv3.StatusResponse, error) {
	c := m.cluster.client(t, m.Addr)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return c.Status(ctx, m.Addr)
}

// client is for the harness's own calls, on clusters without TLS.
func (c *EtcdCluster) client(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("harness: etcd client: %v", err)
	}
	return client
}

// Compact forgets the history up to now, on every member: a watch of an earlier
// revision is refused when Compact has returned.
func (c *EtcdCluster) Compact(t testing.TB) {
	t.Helper()
	client := c.client(t, c.Endpoints()...)
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := client.Get(ctx, "compact")
	if err == nil {
		_, err = client.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil {
		t.Fatalf("harness: compact etcd: %v", err)
	}
	for _, m := range c.Members {
		// A linearizable read waits until the member has applied the compaction.
		one := c.client(t, m.Addr)
		_, err := one.Get(ctx, "compact")
		_ = one.Close()
		if err != nil {
			t.Fatalf("harness: compact etcd: %v", err)
		}
	}
}

// Snapshot saves the whole store into a new file and returns its path.
func (c *EtcdCluster) Snapshot(t testing.TB) string {
	t.Helper()
	client := c.client(t, c.Members[0].Addr)
	defer func() { _ = client.Close() }()
	f, err := os.CreateTemp(c.dir, "snapshot-")
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	defer f.Close()
	r, err := client.Snapshot(t.Context())
	if err == nil {
		_, err = io.Copy(f, r)
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		t.Fatalf("harness: etcd snapshot: %v", err)
	}
	return f.Name()
}

// Restore puts what Snapshot saved in the place of every member's data, the way
// an operator does after a disaster, and starts the cluster; args are added to
// those of etcdutl's restore. The members must have been stopped or killed.
func (c *EtcdCluster) Restore(t testing.TB, snapshot string, args ...string) {
	t.Helper()
	for _, m := range c.Members {
		if err := os.RemoveAll(m.data()); err != nil {
			t.Fatalf("harness: %v", err)
		}
		cmd := exec.Command(filepath.Join(c.bin, "etcdutl"), append([]string{"snapshot", "restore", snapshot,
			"--name=" + m.Name, "--data-dir=" + m.data(), "--initial-cluster=" + c.initial(),
			"--initial-advertise-peer-urls=" + m.peer}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("harness: etcdutl snapshot restore: %v\n%s", err, out)
		}
	}
	c.Start(t)
}

func (c *EtcdCluster) initial() string {
	var peers []string
	for _, m := range c.Members {
		peers = append(peers, m.Name+"="+m.peer)
	}
	return strings.Join(peers, ",")
}

func (m *EtcdMember) data() string { return filepath.Join(m.cluster.dir, m.Name) }

// Process is the member's current life: freeze, thaw, kill or stop it there. Nil
// before the first.
func (m *EtcdMember) Process() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc
}

// Start starts the member if it does not run, on the data it has. It does not
// wait: a member alone cannot be healthy before most of the others run.
func (m *EtcdMember) Start(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		select {
		case <-m.proc.Done():
		default:
			return
		}
	}
	clients := m.cluster.scheme + "://" + m.Addr
	p, err := start(context.Background(), Spec{
		Name: "etcd " + m.Name,
		Path: filepath.Join(m.cluster.bin, "etcd"),
		Args: append([]string{
			"--name=" + m.Name, "--data-dir=" + m.data(), "--initial-cluster=" + m.cluster.initial(),
			"--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
			"--listen-peer-urls=" + m.peer, "--initial-advertise-peer-urls=" + m.peer,
			"--listen-metrics-urls=" + m.health, "--log-level=warn",
			"--heartbeat-interval=50", "--election-timeout=500",
		}, m.cluster.args...),
	})
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	m.proc = p
}

// AwaitHealthy returns when the member takes part in a cluster with a leader.
func (m *EtcdMember) AwaitHealthy(t testing.TB) {
	t.Helper()
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	Eventually(t, 60*time.Second, func() error {
		select {
		case <-m.Process().Done():
			t.Fatalf("harness: etcd %s ended:\n%s", m.Name, m.Process().Log())
		default:
		}
		r, err := client.Get(m.health + "/health")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("etcd %s: %s", m.Name, r.Status)
		}
		return nil
	})
}
