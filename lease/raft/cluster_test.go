package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

func TestMain(m *testing.M) {
	if os.Getenv(memberEnv) != "" {
		runMember()
		return
	}
	goleak.VerifyTestMain(m)
}

// node is one member with its port, which can be pulled out of the network.
type node struct {
	*Engine
	t        *testing.T
	o        Options
	listener net.Listener
	http     net.Listener

	mu   sync.Mutex
	cut  bool
	open map[net.Conn]struct{}
}

func newNode(t *testing.T, name, dir string, o Options) *node {
	t.Helper()
	n := &node{t: t, o: o, open: map[net.Conn]struct{}{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine must not cost a leader its office.
	n.o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, time.Second)
	n.o.Cluster, n.o.Node, n.o.DataDir, n.o.Advertise = "test", name, dir, l.Addr().String()
	n.start(l)
	t.Cleanup(n.stop)
	return n
}

func (n *node) start(l net.Listener) {
	n.t.Helper()
	n.o.Log = slog.New(slog.DiscardHandler)
	if os.Getenv("MQB_TEST_LOG") != "" {
		n.o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("on", n.o.Node)
	}
	n.o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return n.track(c)
	}
	e, err := Open(n.o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Engine, n.listener = e, l
	n.http = e.Mux(&cuttable{Listener: l, n: n})
}

func (n *node) stop() {
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
}

// restart closes the member and opens it again on the same directory, at a new
// address when moved.
func (n *node) restart(moved bool) {
	n.t.Helper()
	n.stop()
	n.reopen(moved)
}

func (n *node) reopen(moved bool) {
	n.t.Helper()
	at := n.o.Advertise
	if moved {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		n.t.Fatal(err)
	}
	n.o.Advertise = l.Addr().String()
	n.start(l)
}

var errCut = errors.New("cable pulled")

func (n *node) track(c net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		_ = c.Close()
		return nil, errCut
	}
	n.open[c] = struct{}{}
	return c, nil
}

func (n *node) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for c := range n.open {
			_ = c.Close()
		}
		clear(n.open)
	}
}

type cuttable struct {
	net.Listener
	n *node
}

func (l *cuttable) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, err = l.n.track(c); err == nil {
			return c, nil
		}
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// newCluster starts n members, the first of which made the group.
func newCluster(t *testing.T, n int, o Options) []*node {
	t.Helper()
	dir := t.TempDir()
	var nodes []*node
	for i := range n {
		if i > 0 {
			o.Join = []string{nodes[i-1].o.Advertise} // any member will do
		}
		nodes = append(nodes, newNode(t, fmt.Sprintf("n%d", i), filepath.Join(dir, fmt.Sprint(i)), o))
		until(t, "ready", nodes[i].IsReady)
	}
	untilVoters(t, nodes[0], min(n, 3)|1)
	return nodes
}

func untilVoters(t *testing.T, n *node, want int) {
	t.Helper()
	until(t, fmt.Sprintf("%d voters", want), func() bool { return len(n.voters()) == want })
}

// leader waits until the nodes agree on one, and returns it and the others.
func leader(t *testing.T, nodes []*node) (*node, []*node) {
	t.Helper()
	var found *node
	var rest []*node
	until(t, "a leader", func() bool {
		found, rest = nil, nil
		name, _ := nodes[0].Leader()
		for _, n := range nodes {
			if now, _ := n.Leader(); now != name {
				return false
			}
			if n.o.Node == name && n.readyTerm.Load() != 0 {
				found = n
			} else {
				rest = append(rest, n)
			}
		}
		return found != nil
	})
	return found, rest
}

func put(t *testing.T, c lease.Coordinator, key, value string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := c.Txn(ctx, nil, []lease.Op{lease.Put(key, []byte(value))})
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

func get(t *testing.T, c lease.Coordinator, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kv, _, err := c.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if kv == nil {
		return ""
	}
	return string(kv.Value)
}

const testHistory = 4_000

func smallHistory() Options { return Options{History: kv.Options{HistoryEvents: testHistory}} }
