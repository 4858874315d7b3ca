package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/leasetest"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// testHistory is small so that a slow watcher overflows quickly.
const testHistory = 4_000

// cable is a client's network, which can be pulled out.
type cable struct {
	// deaf swallows what the other end says.
	deaf atomic.Bool

	mu   sync.Mutex
	cut  bool
	open map[net.Conn]struct{}
}

type end struct {
	net.Conn
	cable *cable
}

func (e end) Read(p []byte) (int, error) {
	for {
		n, err := e.Conn.Read(p)
		if err != nil || !e.cable.deaf.Load() {
			return n, err
		}
	}
}

var errCut = errors.New("cable pulled")

func (w *cable) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = c.Close()
		return nil, errCut
	}
	if w.open == nil {
		w.open = map[net.Conn]struct{}{}
	}
	w.open[c] = struct{}{}
	return end{c, w}, nil
}

func (w *cable) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.open {
			_ = c.Close()
		}
		clear(w.open)
	}
}

func open(t *testing.T, o Options) *Coordinator {
	t.Helper()
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, c lease.Coordinator, key, value string) int64 {
	t.Helper()
	r, err := c.Txn(within(t), nil, []lease.Op{lease.Put(key, []byte(value))})
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

func get(t *testing.T, c lease.Coordinator, key string) string {
	t.Helper()
	kv, _, err := c.Get(within(t), key)
	if err != nil {
		t.Fatal(err)
	}
	if kv == nil {
		return ""
	}
	return string(kv.Value)
}

// conformance runs the suite with three clients, which all know all members.
func conformance(t *testing.T, members int) {
	leasetest.Run(t, func(t *testing.T) *leasetest.Harness {
		cluster := harness.Etcd(t, members)
		h := &leasetest.Harness{TTL: time.Second, HistoryEvents: testHistory, Compact: func(t *testing.T) { cluster.Compact(t) }}
		cables := make([]*cable, 3)
		for i := range cables {
			cables[i] = &cable{}
			h.Clients = append(h.Clients, open(t, Options{
				Endpoints: cluster.Endpoints(), Namespace: "/ns", Dial: cables[i].dial,
				WatchEvents: testHistory,
			}))
		}
		h.SetAvailable = func(_ *testing.T, i int, up bool) { cables[i].set(!up) }
		h.Disturb = func(t *testing.T) {
			for range 2 {
				m := cluster.Leader(t)
				m.Process().Kill()
				if members > 1 {
					cluster.Leader(t)
				}
				m.Start(t)
				m.AwaitHealthy(t)
			}
		}
		return h
	})
}

func TestConformanceOfOneMember(t *testing.T) { conformance(t, 1) }

func TestConformanceOfThreeMembers(t *testing.T) { conformance(t, 3) }

// session is a node's session with a key under its lease, which is a short one.
func session(t *testing.T, c lease.Coordinator, key string) *lease.Session {
	t.Helper()
	return sessionOf(t, c, key, lease.MinTTL)
}

func sessionOf(t *testing.T, c lease.Coordinator, key string, ttl time.Duration) *lease.Session {
	t.Helper()
	s, err := lease.NewSession(c, lease.SessionOptions{
		TTL: ttl, Log: slog.New(slog.DiscardHandler),
		Register: func(ctx context.Context, id lease.LeaseID) error {
			_, err := c.Txn(ctx, nil, []lease.Op{lease.PutLeased(key, []byte("here"), id)})
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	awaitGate(t, s, true)
	return s
}

// awaitGate waits for the gate to be open, or closed.
func awaitGate(t *testing.T, s *lease.Session, open bool) {
	t.Helper()
	ctx := within(t)
	for {
		changed := s.Changed()
		if (s.Gate() == nil) == open {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the gate is not as it should be: open = %v", open)
		}
	}
}

// mirror follows a prefix until the test ends.
func mirror(t *testing.T, c lease.Coordinator, prefix string) *lease.Mirror {
	t.Helper()
	m := lease.NewMirror(c, prefix, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	awaitMirror(t, m, func(s lease.Snapshot) bool { return s.Synced })
	return m
}

func awaitMirror(t *testing.T, m *lease.Mirror, ok func(lease.Snapshot) bool) {
	t.Helper()
	ctx := within(t)
	for {
		changed := m.Changed()
		if ok(m.Snapshot()) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the mirror does not follow")
		}
	}
}

func shows(key, value string) func(lease.Snapshot) bool {
	return func(s lease.Snapshot) bool {
		kv, ok := s.Get(key)
		return ok && string(kv.Value) == value || !ok && value == ""
	}
}

func TestANewLeaderTakesOverAndNothingIsLost(t *testing.T) {
	cluster := harness.Etcd(t, 3)
	c := open(t, Options{Endpoints: cluster.Endpoints()})
	const ttl = 3 * lease.MinTTL // an election takes a second, or two on a busy machine
	s := sessionOf(t, c, "/node", ttl)
	m := mirror(t, c, "/")
	id, generation := s.Lease(), s.Generation()
	for i := range 10 {
		put(t, c, "/n", fmt.Sprint(i))
	}
	old := cluster.Leader(t)
	killed := time.Now()
	old.Process().Kill()
	ctx := within(t)
	for {
		// What was on its way to the old leader is answered, if at all, when the
		// server gives it up, seconds later; its outcome is unknown.
		try, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := c.Txn(try, nil, []lease.Op{lease.Put("/n", []byte("after"))})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, lease.ErrUnavailable) || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(killed)
	t.Logf("a new leader answered %v after the old one was killed", took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("no leader for %v", took)
	}
	awaitMirror(t, m, shows("/n", "after"))
	// The lease outlives its leader by a whole TTL at least, so the session keeps it.
	pace := time.NewTicker(ttl / 20)
	defer pace.Stop()
	for end := time.Now().Add(ttl + lease.MinTTL); time.Now().Before(end); <-pace.C {
		if _, err := c.KeepAlive(ctx, id); err != nil && !errors.Is(err, lease.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if s.Gate() != nil || s.Lease() != id || s.Generation() != generation {
		t.Fatalf("gate %v, lease %d, was %d", s.Gate(), s.Lease(), id)
	}
	if got := get(t, c, "/node"); got != "here" {
		t.Fatalf("the session's key: %q", got)
	}
	old.Start(t)
	old.AwaitHealthy(t)
}

// TestATransactionWhoseAnswerIsLostIsNotSentAgain: the client could not tell
// whether it was carried out, and here it was.
func TestATransactionWhoseAnswerIsLostIsNotSentAgain(t *testing.T) {
	cluster := harness.Etcd(t, 1)
	wire := &cable{}
	c := open(t, Options{Endpoints: cluster.Endpoints(), Dial: wire.dial})
	other := open(t, Options{Endpoints: cluster.Endpoints()})
	put(t, c, "/warm", "")
	wire.deaf.Store(true)
	answer := make(chan error, 1)
	go func() {
		_, err := c.Txn(within(t), nil, []lease.Op{lease.Put("/x", nil)})
		answer <- err
	}()
	harness.Eventually(t, time.Minute, func() error {
		kv, _, err := other.Get(t.Context(), "/x")
		if err == nil && kv == nil {
			err = errors.New("not carried out")
		}
		return err
	})
	wire.set(true)
	wire.deaf.Store(false)
	wire.set(false)
	if err := <-answer; !errors.Is(err, lease.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if kv, _, err := c.Get(within(t), "/x"); err != nil || kv.Version != 1 {
		t.Errorf("%+v, %v: carried out more than once", kv, err)
	}
}

// TestAnOutageOfAllMembersClosesTheGateAndEndsByItself: longer than the TTL.
func TestAnOutageOfAllMembersClosesTheGateAndEndsByItself(t *testing.T) {
	cluster := harness.Etcd(t, 3)
	c := open(t, Options{Endpoints: cluster.Endpoints()})
	s := session(t, c, "/node")
	m := mirror(t, c, "/")
	put(t, c, "/n", "before")
	cluster.Kill()
	down := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		asked := time.Now()
		if s.Gate() != nil {
			break
		}
		if open := asked.Sub(down); open > lease.MinTTL {
			t.Fatalf("the gate is open %v after the last member died, the TTL is %v", open, lease.MinTTL)
		}
	}
	for name, call := range map[string]func(context.Context) error{
		"get":       func(ctx context.Context) error { _, _, err := c.Get(ctx, "/n"); return err },
		"keepalive": func(ctx context.Context) error { _, err := c.KeepAlive(ctx, s.Lease()); return err },
		"txn": func(ctx context.Context) error {
			_, err := c.Txn(ctx, nil, []lease.Op{lease.Put("/lost", nil)})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		begin := time.Now()
		err := call(ctx)
		cancel()
		if !errors.Is(err, lease.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%s took %v with a deadline of 1 s", name, took)
		}
	}
	cluster.Start(t)
	up := time.Now()
	awaitGate(t, s, true)
	if took := time.Since(up); took > 30*time.Second {
		t.Errorf("the gate opened %v after etcd was back", took)
	}
	// What was sent into the outage was never sent at all.
	if got := get(t, c, "/n"); got != "before" {
		t.Fatalf("read %q", got)
	}
	put(t, c, "/n", "after")
	awaitMirror(t, m, shows("/n", "after"))
}

// TestAWatchDoesNotGoOnInAStoreRestoredFromABackup: the revisions that the mirror
// counted mean something else there, and the store is far behind them.
func TestAWatchDoesNotGoOnInAStoreRestoredFromABackup(t *testing.T) {
	for _, way := range []struct {
		name string
		args []string
		more int // writes after the restore, before the watcher can connect
	}{
		{"behind", nil, 0},
		{"overtaken", nil, 40},
		{"bumped", []string{"--bump-revision=1000000", "--mark-compacted"}, 0},
	} {
		t.Run(way.name, func(t *testing.T) {
			cluster := harness.Etcd(t, 1)
			wire := &cable{}
			watcher := open(t, Options{Endpoints: cluster.Endpoints(), Dial: wire.dial})
			writer := open(t, Options{Endpoints: cluster.Endpoints()})
			m := mirror(t, watcher, "/")
			s := session(t, writer, "/node")
			put(t, writer, "/kept", "old")
			snapshot := cluster.Snapshot(t)
			put(t, writer, "/kept", "new")
			for i := range 20 {
				put(t, writer, "/gone", fmt.Sprint(i))
			}
			awaitMirror(t, m, shows("/gone", "19"))
			wire.set(true)
			cluster.Kill()
			awaitGate(t, s, false)
			cluster.Restore(t, snapshot, way.args...)
			for i := range way.more {
				put(t, writer, "/more", fmt.Sprint(i))
			}
			wire.set(false)
			awaitMirror(t, m, shows("/gone", ""))
			awaitMirror(t, m, shows("/kept", "old"))
			put(t, writer, "/kept", "newest")
			awaitMirror(t, m, shows("/kept", "newest"))
			awaitGate(t, s, true)
			awaitMirror(t, m, shows("/node", "here"))
		})
	}
}

// TestCompactionWhileAWatcherIsBehindLosesNothing: cut off, it misses changes that
// etcd then forgets.
func TestCompactionWhileAWatcherIsBehindLosesNothing(t *testing.T) {
	cluster := harness.Etcd(t, 3)
	wire := &cable{}
	watcher := open(t, Options{Endpoints: cluster.Endpoints(), Dial: wire.dial})
	writer := open(t, Options{Endpoints: cluster.Endpoints()})
	put(t, writer, "/a", "1")
	put(t, writer, "/b", "1")
	m := mirror(t, watcher, "/")
	wire.set(true)
	put(t, writer, "/a", "2")
	if _, err := writer.Txn(within(t), nil, []lease.Op{lease.Delete("/b")}); err != nil {
		t.Fatal(err)
	}
	put(t, writer, "/c", "1")
	cluster.Compact(t)
	wire.set(false)
	for k, v := range map[string]string{"/a": "2", "/b": "", "/c": "1"} {
		awaitMirror(t, m, shows(k, v))
	}
}

// shortly is a context for what is not going to be answered.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}
