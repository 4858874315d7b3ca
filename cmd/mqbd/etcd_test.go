package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/test/harness"
)

// TestTwoNodesOnEtcdAndOneIsKilled: nobody joined anybody, and there is no raft.
func TestTwoNodesOnEtcdAndOneIsKilled(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 1)
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	node := func(name string) *process {
		return start(t, dir, []string{"MQBD_COORDINATOR=" + cluster.URL() + "/test"},
			"--name", name, "--data-dir", filepath.Join(dir, name), "--listen", "127.0.0.1:0", "--lease-ttl", "2s", "--routes", routes)
	}
	one, two := node("n1"), node("n2")
	all := func(ctx context.Context) (api.Leases, error) { return one.Leases(ctx, "") }
	owned := func(v api.Leases) map[string]int {
		out := map[string]int{}
		for _, l := range v.Leases {
			out[l.Owner]++
		}
		return out
	}
	before := eventually(t, "both at work", all, func(v api.Leases) bool { return running(v) && len(owned(v)) == 2 })
	nodes := eventually(t, "two nodes", one.Nodes, func(v api.Nodes) bool { return len(v.Nodes) == 2 })
	schedulers := 0
	for _, n := range nodes.Nodes {
		if n.Scheduler {
			schedulers++
		}
		if n.Voter {
			t.Errorf("%s votes in a raft that is not there", n.Name)
		}
	}
	if schedulers != 1 {
		t.Errorf("%d schedulers", schedulers)
	}
	if _, err := os.Stat(filepath.Join(dir, "n1", "raft")); !os.IsNotExist(err) {
		t.Errorf("state of a raft: %v", err)
	}

	killed := time.Now()
	if err := two.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	after := eventually(t, "moved", all, func(v api.Leases) bool { return owned(v)["n1"] == 3 })
	t.Logf("moved %v after the kill", time.Since(killed).Round(time.Millisecond))
	for i, l := range after.Leases {
		want := before.Leases[i].Epoch
		if before.Leases[i].Owner == "n2" {
			want++
		}
		if l.Epoch != want {
			t.Errorf("%s: epoch %d, want %d", l.Partition, l.Epoch, want)
		}
	}
	eventually(t, "done", all, func(v api.Leases) bool {
		for _, l := range v.Leases {
			if l.State != lease.StateDone {
				return false
			}
		}
		return true
	})
	times := map[string]int{}
	parts, err := filepath.Glob(filepath.Join(dir, "out", "[^_]*")) // without the manifest
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range parts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var row struct{ ID json.Number }
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			times[row.ID.String()]++
		}
	}
	for i := range 5000 {
		if n := times[fmt.Sprint(i)]; n != 3 {
			t.Fatalf("row %d is there %d times, want once from each of 3 files", i, n)
		}
	}
	if err := one.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := one.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestEtcdThatIsNotThereIsWaitedForAndAPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	cluster := harness.Etcd(t, 1)
	cluster.Kill()
	hosts := cluster.Members[0].Addr
	p := launch(t, t.TempDir(), nil, "--coordinator", "etcd://user:secret@"+hosts, "--listen", "127.0.0.1:0")
	p.until(t, "waiting for etcd")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "user:***@"+hosts) {
		t.Error("the log shows the password, or not the address")
	}
}
