package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
)

func completed(t *testing.T, server string, args ...string) []string {
	t.Helper()
	r := mqbctl(t, "", append([]string{"__complete", "--server", server}, args...)...)
	if r.code != 0 {
		t.Fatalf("%v: %+v", args, r)
	}
	out := strings.Split(strings.TrimSpace(r.out), "\n")
	return out[:len(out)-1] // the last line is for the shell
}

func TestCompletionKnowsRoutesPartitionsAndNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if r := n.ctl(t, "", "apply", "-f", write(t, "r.yaml", plain)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	n.put(t, n.keys.Partition("orders", "p-1"), lease.Encode(lease.Partition{ID: "p-1"}))
	n.put(t, n.keys.Node("n1"), lease.Encode(lease.Node{Name: "n1", Instance: "i"}))
	for _, c := range []struct {
		args, want string
	}{
		{"pause|", "orders"}, {"pause|orders|", ""}, {"leases|", "orders"}, {"leases|--route|", "orders"}, {"leases|--node|", "n1"},
		{"leases|--route|orders|--partition|", "p-1"}, {"drain|", "n1"}, {"checkpoint|set|", "orders"}, {"checkpoint|set|orders|", "p-1"}, {"checkpoint|set|orders|p-1|", ""},
		{"move|", "orders/p-1"}, {"move|orders/p-1|--to|", "n1"}, {"nodes|remove|", "n1"}, {"doctor|", ""}, {"doctor|-o|", "table,json,yaml"},
	} {
		if got := completed(t, n.addr, strings.Split(c.args, "|")...); !slices.Equal(got, slices.DeleteFunc(strings.Split(c.want, ","), func(s string) bool { return s == "" })) {
			t.Errorf("%s: %q", c.args, got)
		}
	}
}

// The tab key must not hang where there is no cluster.
func TestCompletionOfADeadServerIsEmptyAndQuick(t *testing.T) {
	t.Parallel()
	started := time.Now()
	if got := completed(t, closedPort(t), "pause", ""); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := mqbctl(t, "", "completion", shell); r.code != 0 || len(r.out) < 1000 {
			t.Errorf("%s: %d bytes, %s", shell, len(r.out), r.err)
		}
	}
}
