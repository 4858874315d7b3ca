package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/test/harness"
)

// What a preStop hook does must not outlive the process, or a pod would come back
// and stay empty. Readiness follows it, and an operator's order.
func TestDrainBeforeAStopIsForgottenByTheNextStart(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, 1)
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	node := func(name string) *process {
		return start(t, dir, []string{"MQBD_COORDINATOR=" + etcd.URL() + "/test"},
			"--name", name, "--data-dir", filepath.Join(dir, name), "--listen", "127.0.0.1:0", "--lease-ttl", "2s", "--routes", routes)
	}
	one, two := node("n1"), node("n2")
	all := func(ctx context.Context) (api.Leases, error) { return one.Leases(ctx, "") }
	held := func(name string) func(api.Leases) bool {
		return func(v api.Leases) bool {
			n := 0
			for _, l := range v.Leases {
				if l.Owner == name {
					n++
				}
			}
			return n > 0
		}
	}
	ready := func(ctx context.Context) (error, error) { return two.Ready(ctx), nil }
	says := func(word string) func(error) bool {
		return func(err error) bool { return err != nil && strings.Contains(err.Error(), word) }
	}
	eventually(t, "n2 at work", all, held("n2"))

	var out, errOut bytes.Buffer
	if code := execute([]string{"drain", "--server", two.addr}, &out, &errOut); code != 0 {
		t.Fatalf("drain: exit %d: %s", code, errOut.String())
	}
	v, err := all(t.Context())
	if err != nil || held("n2")(v) {
		t.Errorf("n2 is not empty: %+v %v", v, err)
	}
	eventually(t, "n2 not ready", ready, says("leaving"))
	if err := two.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := two.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	two = node("n2")
	eventually(t, "n2 at work again", all, held("n2"))
	eventually(t, "n2 ready", ready, func(err error) bool { return err == nil })
	if err := one.Drain(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n2 not ready by order", ready, says("drained by order"))
	if err := one.Undrain(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n2 ready again", ready, func(err error) bool { return err == nil })

	// The last one does not wait for somebody to take what it holds.
	if err := two.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	two.wait()
	if code := execute([]string{"drain", "--server", one.addr}, &out, &errOut); code != 0 {
		t.Errorf("drain of the last: exit %d: %s", code, errOut.String())
	}
}
