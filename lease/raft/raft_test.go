package raft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/leasetest"
)

func TestConformanceOfOneNode(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) *leasetest.Harness {
		return &leasetest.Harness{Clients: []lease.Coordinator{newCluster(t, 1, smallHistory())[0]}, HistoryEvents: testHistory}
	})
}

func TestConformanceOfThreeNodes(t *testing.T) {
	t.Parallel()
	leasetest.Run(t, func(t *testing.T) *leasetest.Harness {
		// No member must lose its office only because the machine is busy: what a
		// leader did not answer may have been done or not, and the suite wants to know.
		o := smallHistory()
		o.HeartbeatTimeout = 2 * time.Second
		nodes := newCluster(t, 3, o)
		h := &leasetest.Harness{HistoryEvents: testHistory}
		first, rest := leader(t, nodes)
		cut := append([]*node{first}, rest...)
		for _, n := range cut {
			h.Clients = append(h.Clients, n)
		}
		h.SetAvailable = func(_ *testing.T, i int, up bool) { cut[i].setCut(!up) }
		if testing.Short() {
			return h
		}
		h.Disturb = func(t *testing.T) {
			for range 2 { // each time another one leads
				old, rest := leader(t, nodes)
				old.setCut(true)
				leader(t, rest)
				old.setCut(false)
			}
			leader(t, nodes)
		}
		return h
	})
}

func TestANewLeaderTakesOverAndNothingIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a lease's end")
	}
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	old, rest := leader(t, nodes)
	ctx := t.Context()
	held, err := rest[0].Grant(ctx, 6*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rest[0].Txn(ctx, nil, []lease.Op{lease.PutLeased("/held", nil, held)}); err != nil {
		t.Fatal(err)
	}
	from := put(t, old, "/n", "0") + 1
	watches := []<-chan lease.WatchResponse{rest[0].Watch(ctx, "/n", from), rest[1].Watch(ctx, "/n", from)}
	for i := 1; i <= 10; i++ {
		put(t, rest[i%2], "/n", fmt.Sprint(i))
	}
	old.setCut(true)
	cut := time.Now()
	if v := get(t, rest[0], "/n"); v != "10" {
		t.Fatalf("the new leader knows %q", v)
	}
	took := time.Since(cut)
	t.Logf("a new leader answered %v after the old one was cut off", took)
	if took > 20*time.Second {
		t.Errorf("no leader for %v", took)
	}
	if _, err := rest[1].KeepAlive(ctx, held); err != nil {
		t.Fatalf("the lease did not survive its leader: %v", err)
	}
	for i := 11; i <= 20; i++ {
		put(t, rest[i%2], "/n", fmt.Sprint(i))
	}
	for _, w := range watches {
		for want := 1; want <= 20; want++ {
			if r := <-w; r.Err != nil || string(r.Events[0].KV.Value) != fmt.Sprint(want) {
				t.Fatalf("watch: %+v, want value %d", r, want)
			}
		}
	}
	// Nobody keeps the lease: the new leader ends it.
	until(t, "the lease's end", func() bool { _, ok := rest[0].store.TTL(held); return !ok })
	old.setCut(false)
	until(t, "the old leader follows", func() bool { return old.State() == hraft.Follower.String() })
	if v := get(t, old, "/n"); v != "20" {
		t.Fatalf("the old leader knows %q", v)
	}
}

// State names the member's part, for tests.
func (n *node) State() string { return n.raft.Load().State().String() }

func TestALeaderCutOffAnswersNothing(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	old, rest := leader(t, nodes)
	id, err := old.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	put(t, old, "/x", "1")
	old.setCut(true)
	for name, call := range map[string]func(context.Context) error{
		"get":       func(ctx context.Context) error { _, _, err := old.Get(ctx, "/x"); return err },
		"keepalive": func(ctx context.Context) error { _, err := old.KeepAlive(ctx, id); return err },
		"txn": func(ctx context.Context) error {
			_, err := old.Txn(ctx, nil, []lease.Op{lease.Put("/x", nil)})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		begin := time.Now()
		err := call(ctx)
		cancel()
		if !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("%s took %v with a deadline of 400 ms", name, took)
		}
	}
	until(t, "a successor", func() bool { name, _ := rest[0].Leader(); return name != "" && name != old.o.Node })
	put(t, rest[0], "/x", "2")
	old.setCut(false)
	if v := get(t, old, "/x"); v != "2" {
		t.Fatalf("read %q", v)
	}
}

func TestAFullRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	fullRestart(t, false)
}

// fullRestart opens all three members again, two of them at new addresses if moved.
func fullRestart(t *testing.T, moved bool) {
	t.Helper()
	nodes := newCluster(t, 3, Options{})
	id, err := nodes[1].Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[1].Txn(t.Context(), nil, []lease.Op{lease.PutLeased("/held", []byte("v"), id)}); err != nil {
		t.Fatal(err)
	}
	var rev int64
	for i := range 50 {
		rev = put(t, nodes[i%3], "/n", fmt.Sprint(i))
	}
	if err := nodes[0].raft.Load().Snapshot().Error(); err != nil { // one from a snapshot, two from logs
		t.Fatal(err)
	}
	for _, n := range nodes {
		n.stop()
	}
	for i, n := range nodes {
		n.reopen(moved && i > 0)
	}
	for _, n := range nodes {
		if v := get(t, n, "/n"); v != "49" {
			t.Fatalf("%s knows %q", n.o.Node, v)
		}
		if got := n.store.Revision(); got != rev {
			t.Fatalf("%s is at revision %d, was at %d", n.o.Node, got, rev)
		}
	}
	if ttl, err := nodes[2].KeepAlive(t.Context(), id); err != nil || ttl != time.Minute {
		t.Fatalf("lease after the restart: %v, %v", ttl, err)
	}
	if got := put(t, nodes[2], "/n", "50"); got != rev+1 {
		t.Fatalf("revision %d after %d", got, rev)
	}
	until(t, "new addresses in the configuration", func() bool {
		for _, n := range nodes {
			if s, _ := nodes[0].server(hraft.ServerID(n.o.Node)); string(s.Address) != n.o.Advertise {
				return false
			}
		}
		return true
	})
}

func TestASoleNodeThatMovedIsFoundAtItsNewAddress(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, Options{})[0]
	put(t, n, "/x", "1")
	n.restart(true)
	if v := get(t, n, "/x"); v != "1" {
		t.Fatalf("read %q", v)
	}
	until(t, "the new address", func() bool { m := n.Members(t.Context()); return m[0].Address == n.o.Advertise })
	other := newNode(t, "other", t.TempDir(), Options{Join: []string{n.o.Advertise}})
	if v := get(t, other, "/x"); v != "1" {
		t.Fatalf("read %q", v)
	}
}

func TestAFollowerStepsInForARemovedVoter(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 4, Options{})
	first, rest := leader(t, nodes)
	untilVoters(t, first, 3)
	var gone string
	for _, m := range first.Members(t.Context()) {
		if !m.Reachable {
			t.Errorf("%s is not reachable", m.Node)
		}
		if m.Voter && !m.Leader {
			gone = m.Node
		}
	}
	if err := rest[0].Remove(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	until(t, "three voters of three", func() bool { return len(first.voters()) == 3 && len(first.servers()) == 3 })
	if err := first.Remove(t.Context(), gone); err == nil {
		t.Error("removed twice")
	}
	put(t, first, "/x", "1")
}

func TestRemovingTheLeaderOrTheOnlyVoter(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	first, rest := leader(t, nodes)
	if err := rest[0].Remove(t.Context(), first.o.Node); err != nil {
		t.Fatal(err)
	}
	put(t, rest[0], "/x", "1")
	if v := get(t, rest[1], "/x"); v != "1" {
		t.Fatalf("read %q", v)
	}
	one := newCluster(t, 1, Options{})[0]
	if err := one.Remove(t.Context(), one.o.Node); err == nil {
		t.Error("a group of nobody")
	}
}

func TestAVoterThatLostItsDiskJoinsAsNew(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	put(t, nodes[0], "/x", "1")
	_, rest := leader(t, nodes)
	wiped := rest[0]
	wiped.stop()
	wiped.o.DataDir, wiped.o.Join = filepath.Join(t.TempDir(), "empty"), []string{rest[1].o.Advertise}
	wiped.reopen(false)
	if v := get(t, wiped, "/x"); v != "1" {
		t.Fatalf("read %q", v)
	}
	untilVoters(t, rest[1], 3)
}

func TestANameOfALiveNodeIsNotGivenAway(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	_, rest := leader(t, nodes)
	thief := newNode(t, rest[0].o.Node, t.TempDir(), Options{Join: []string{rest[1].o.Advertise}})
	a, err := thief.calls.call(t.Context(), rest[1].o.Advertise, verbJoin,
		encode(candidate{Node: thief.o.Node, Address: thief.o.Advertise, Instance: thief.instance}))
	if err != nil || a.status != statusRefused {
		t.Fatalf("status %d, %v", a.status, err)
	}
	if thief.IsReady() {
		t.Fatal("two nodes of one name")
	}
	if v := put(t, rest[0], "/x", "1"); v == 0 {
		t.Fatal("the rightful one is out")
	}
}

func TestAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, Options{})[0]
	c, err := net.Dial("tcp", n.o.Advertise)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write(preface(prefaceCalls, "another"))
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && err == nil {
		t.Fatal("it was answered")
	}
}

func TestOnePortServesHTTPBesideMembers(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "people") })}
	done := make(chan error)
	go func() { done <- srv.Serve(nodes[1].http) }()
	defer func() { _ = srv.Close(); <-done }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	// Connections that say nothing, or nonsense, keep nobody out.
	for range 50 {
		c, err := net.Dial("tcp", nodes[1].o.Advertise)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	for i := range 5 {
		res, err := client.Get("http://" + nodes[1].o.Advertise)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(b) != "people" {
			t.Fatalf("got %q", b)
		}
		put(t, nodes[1], "/x", fmt.Sprint(i))
	}
}

func TestGarbageFromAMemberCostsItsConnectionOnly(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, Options{})[0]
	for _, garbage := range []string{
		string(preface(prefaceCalls, "test")) + "\xff\xff\xff\xff",
		string(preface(prefaceCalls, "test")) + "\x00\x00\x00\x02ab",
		string(preface(prefaceCalls, "test")) + "\x00\x00\x00\x0900000000\x01",
		string(preface(prefaceRaft, "test")) + "\xff\xff",
		"\x00mqb\x02x\n",
		"\x00",
	} {
		c, err := net.Dial("tcp", n.o.Advertise)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(garbage))
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	put(t, n, "/x", "1")
}

func TestASnapshotReachesAMemberFarBehind(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	first, rest := leader(t, nodes)
	behind := rest[1]
	put(t, first, "/x", "0")
	from := behind.store.Revision() + 1
	behind.setCut(true)
	for i := range 3 * trailingEntries / 64 {
		done := make(chan error, 64)
		for range 64 {
			go func() {
				_, err := first.Txn(t.Context(), nil, []lease.Op{lease.Put("/x", fmt.Append(nil, i))})
				done <- err
			}()
		}
		for range 64 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := first.raft.Load().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	want := get(t, first, "/x")
	behind.setCut(false)
	until(t, "the snapshot", func() bool { return behind.store.Revision() == first.store.Revision() })
	if v := get(t, behind, "/x"); v != want {
		t.Fatalf("read %q", v)
	}
	if r := <-behind.Watch(t.Context(), "/x", from); !errors.Is(r.Err, lease.ErrCompacted) {
		t.Fatalf("a watch over the gap got %+v", r)
	}
}

func TestASoleNodeStartsWithoutWaitingForAnElection(t *testing.T) {
	dir := t.TempDir()
	o := Options{Cluster: "test", Node: "n", DataDir: dir, Advertise: "127.0.0.1:1", HeartbeatTimeout: time.Hour, Log: slog.New(slog.DiscardHandler)}
	for _, what := range []string{"new", "existing", "existing"} {
		begin := time.Now()
		e, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		put(t, e, "/x", what)
		took := time.Since(begin)
		t.Logf("%s data: first transaction after %v", what, took)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADirectoryInUseIsRefused(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, Options{})[0]
	o := n.o
	if _, err := Open(o); err == nil {
		t.Fatal("two processes on one directory")
	}
}

func BenchmarkTxn(b *testing.B) {
	e, err := Open(Options{Cluster: "test", Node: "n", DataDir: b.TempDir(), Advertise: "127.0.0.1:1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := e.Txn(context.Background(), nil, []lease.Op{lease.Put("/x", make([]byte, 200))}); err != nil {
				b.Error(err)
			}
		}
	})
}
