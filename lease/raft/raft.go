// Package raft is the embedded coordinator: a hashicorp/raft group inside the
// nodes themselves, one node out of the box, three or five joined. Every node is
// a full Coordinator: it sends writes to the leader, learns from it how far its
// own copy must be for a linearizable read, and serves watches from that copy.
package raft

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

// Options configures a member.
type Options struct {
	// Cluster is the name that members of one group share; others are refused.
	Cluster string
	// Node names this member. It is its identity: it stays when the address changes.
	Node string
	// DataDir holds log and snapshots; it is made if it does not exist.
	DataDir string
	// Advertise is the host:port at which others reach the listener given to Mux.
	Advertise string
	// Join names any members of a group to join; without it a first start makes
	// a group of one. Ignored once DataDir belongs to a member.
	Join []string
	// Voters is how many members vote; further ones follow and step in when a
	// voter is removed. Default 3.
	Voters int
	// HeartbeatTimeout and ElectionTimeout default to 500 ms each. A sole voter
	// does not wait for either.
	HeartbeatTimeout, ElectionTimeout time.Duration
	// History bounds what watches are served from.
	History kv.Options
	// Log defaults to slog.Default().
	Log *slog.Logger
	// Verify refuses a connection that Mux took and that says it is a member's,
	// before anything else is read from it; nil takes every one. With TLS the
	// handshake is over by then.
	Verify func(net.Conn) error
	// Dial connects to other members; default net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o *Options) defaults() error {
	switch {
	case o.Node == "":
		return errors.New("raft: no node name")
	case o.DataDir == "":
		return errors.New("raft: no data directory")
	case o.Advertise == "":
		return errors.New("raft: no address to advertise")
	case len(o.Cluster) > 255:
		return errors.New("raft: cluster name of more than 255 bytes")
	}
	if o.Voters == 0 {
		o.Voters = 3
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 500 * time.Millisecond
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = max(500*time.Millisecond, o.HeartbeatTimeout)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return nil
}

const (
	// maxCall bounds a call whose context has no end.
	maxCall = 10 * time.Second
	// commitTick is how soon followers learn of a commit when nothing follows it.
	commitTick = 10 * time.Millisecond
	// A snapshot is taken after so many entries or bytes; so many entries stay for
	// members that are a little behind.
	snapshotEntries = 8 << 10
	snapshotBytes   = 32 << 20
	trailingEntries = 1 << 10
	// answerWithin is how long Close waits for the answers to what was asked.
	answerWithin = 5 * time.Second
)

// Engine is one member. It implements lease.Coordinator.
type Engine struct {
	o        Options
	log      *slog.Logger
	instance string // random, tells two processes of one name apart

	store  *kv.Store
	fsm    *fsm
	lessor *lessor
	stream *stream
	trans  *hraft.NetworkTransport
	bolt   *raftboltdb.BoltStore
	raft   atomic.Pointer[hraft.Raft] // the transport asks before it is there
	calls  peers
	conns  connSet

	confirmer confirmer
	// readyTerm is the term in which this member leads and has applied everything
	// from earlier terms; 0 otherwise. It may be out of date: prove compares it.
	readyTerm atomic.Uint64
	// admitted: this member may take part in raft.
	admitted atomic.Bool

	mu      sync.Mutex
	leader  hraft.ServerID
	at      hraft.ServerAddress
	changed chan struct{} // closed and replaced when leader changes
	moves   map[hraft.ServerID]move

	admitting sync.Mutex    // one change of members after the other
	kick      chan struct{} // wakes the leader's upkeep

	closing sync.Mutex
	shut    bool
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	asked   sync.WaitGroup // what await waits for
	closed  sync.Once
	err     error // of Close
}

var _ lease.Coordinator = (*Engine)(nil)

// Open starts the member and returns at once; calls wait until there is a
// leader. Connections of others are served once Mux has a listener.
func Open(o Options) (*Engine, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	e := &Engine{
		o: o, log: o.Log, instance: rand.Text(),
		store:   kv.New(o.History),
		changed: make(chan struct{}), moves: map[hraft.ServerID]move{}, kick: make(chan struct{}, 1),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.calls.e = e
	e.confirmer.prove, e.confirmer.spawn = e.prove, e.spawn
	e.lessor = &lessor{store: e.store, expire: e.expire}
	e.fsm = newFSM(e.store)
	e.fsm.granted, e.fsm.revoked = e.lessor.granted, e.lessor.revoked
	e.stream = &stream{e: e, accepted: make(chan net.Conn), done: make(chan struct{})}
	if err := e.open(); err != nil {
		e.cancel()
		if e.trans != nil {
			_ = e.trans.Close()
		}
		if e.bolt != nil {
			_ = e.bolt.Close()
		}
		return nil, fmt.Errorf("raft: open %s: %w", o.DataDir, err)
	}
	return e, nil
}

func (e *Engine) open() error {
	if err := os.MkdirAll(e.o.DataDir, 0o700); err != nil {
		return err
	}
	var err error
	e.bolt, err = raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(e.o.DataDir, "raft.db"),
		BoltOptions: &bbolt.Options{
			Timeout: time.Second, // another process holds the directory
			// The list of free pages is found again at start: one write less per commit.
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
		},
	})
	if err != nil {
		return fmt.Errorf("raft.db, which another process may hold: %w", err)
	}
	logger := newLogger(e.ctx, e.log)
	logs, err := hraft.NewLogCache(128, e.bolt)
	if err != nil {
		return err
	}
	snaps, err := hraft.NewFileSnapshotStoreWithLogger(e.o.DataDir, 2, logger)
	if err != nil {
		return err
	}
	e.trans = hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		ServerAddressProvider: e, Logger: logger, Stream: e.stream, MaxPool: 3, Timeout: 5 * time.Second,
		// No pipeline: one whose follower answers with a later term while another entry
		// stands before it never ends, and nor does the library after it.
		MaxRPCsInFlight: 1,
	})
	conf := hraft.DefaultConfig()
	conf.LocalID = hraft.ServerID(e.o.Node)
	conf.HeartbeatTimeout, conf.ElectionTimeout = e.o.HeartbeatTimeout, e.o.ElectionTimeout
	conf.LeaderLeaseTimeout = e.o.HeartbeatTimeout
	conf.CommitTimeout = commitTick
	// With a buffer between callers and the loop, what lies in it when the loop ends
	// is never answered, and Close waits for it for ever. Without one, callers that
	// wait together still share a write to disk.
	conf.BatchApplyCh = false
	conf.ShutdownOnRemove = false
	conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = snapshotEntries, trailingEntries, time.Minute
	conf.Logger = logger
	conf.NoLegacyTelemetry = true

	member, err := hraft.HasExistingState(logs, e.bolt, snaps)
	if err != nil {
		return err
	}
	if !member && len(e.o.Join) == 0 {
		self := hraft.Server{Suffrage: hraft.Voter, ID: conf.LocalID, Address: hraft.ServerAddress(e.o.Advertise)}
		if err := hraft.BootstrapCluster(conf, logs, e.bolt, snaps, e.trans, hraft.Configuration{Servers: []hraft.Server{self}}); err != nil {
			return err
		}
		member = true
	}
	e.admitted.Store(member)
	r, err := hraft.NewRaft(conf, e.fsm, logs, e.bolt, snaps, e.trans)
	if err != nil {
		return err
	}
	e.raft.Store(r)
	e.wg.Go(e.followLeader)
	e.wg.Go(e.lead)
	e.wg.Go(e.upkeep)
	e.wg.Go(e.snapshot)
	if !member {
		e.wg.Go(e.join)
	} else {
		e.wg.Go(e.announce)
	}
	if e.soleVoter() {
		e.electSelf()
	}
	return nil
}

func (e *Engine) soleVoter() bool {
	voters := e.voters()
	return len(voters) == 1 && string(voters[0].ID) == e.o.Node
}

// electSelf spares a sole voter the time-out after which it would stand for
// election anyway: there is nobody whose heartbeat it could be waiting for.
func (e *Engine) electSelf() {
	self := hraft.ServerAddress(e.o.Advertise)
	req := &hraft.TimeoutNowRequest{RPCHeader: hraft.RPCHeader{
		ProtocolVersion: hraft.ProtocolVersionMax, ID: []byte(e.o.Node), Addr: []byte(self),
	}}
	if err := e.trans.TimeoutNow(hraft.ServerID(e.o.Node), self, req, &hraft.TimeoutNowResponse{}); err != nil {
		e.log.Debug("no election at once", "error", err)
	}
}

// followLeader keeps leader and its address current.
func (e *Engine) followLeader() {
	ch := make(chan hraft.Observation, 16)
	o := hraft.NewObserver(ch, false, func(o *hraft.Observation) bool {
		_, ok := o.Data.(hraft.LeaderObservation)
		return ok
	})
	r := e.raft.Load()
	r.RegisterObserver(o)
	defer r.DeregisterObserver(o)
	check := time.NewTicker(250 * time.Millisecond) // an observation may be dropped
	defer check.Stop()
	for {
		at, id := r.LeaderWithID()
		e.mu.Lock()
		if id != e.leader || at != e.at {
			if id != "" && id != e.leader {
				e.log.Info("coordinator leader", "leader", string(id), "address", string(at))
			}
			e.leader, e.at = id, at
			close(e.changed)
			e.changed = make(chan struct{})
		}
		e.mu.Unlock()
		select {
		case <-ch:
		case <-check.C:
		case <-e.ctx.Done():
			return
		}
	}
}

// current returns the leader as this member knows it and a channel that is
// closed when that changes.
func (e *Engine) current() (hraft.ServerID, hraft.ServerAddress, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leader, e.at, e.changed
}

// Leader returns the leader's name and address, empty while there is none.
func (e *Engine) Leader() (name, address string) {
	id, at, _ := e.current()
	return string(id), string(at)
}

// IsReady reports whether this member belongs to the group and knows a leader.
func (e *Engine) IsReady() bool {
	id, _, _ := e.current()
	return id != "" && e.admitted.Load()
}

// snapshot bounds the log in bytes; the library bounds it in entries.
func (e *Engine) snapshot() {
	for sleep(e.ctx, time.Second) {
		if e.fsm.pending.Load() > snapshotBytes {
			if err := e.raft.Load().Snapshot().Error(); err != nil {
				e.log.Warn("snapshot failed", "error", err)
				sleep(e.ctx, 10*time.Second)
			}
		}
	}
}

// Close hands leadership over where there is somebody to take it, stops the
// member and closes its files and connections. Watches end.
func (e *Engine) Close() error {
	e.closed.Do(func() {
		r := e.raft.Load()
		if r.State() == hraft.Leader && len(e.voters()) > 1 {
			if err := r.LeadershipTransfer().Error(); err != nil {
				e.log.Debug("leadership not handed over", "error", err)
			}
		}
		e.closing.Lock()
		e.shut = true
		e.closing.Unlock()
		e.cancel()
		e.store.Close()
		e.awaitAnswers()
		ended := r.Shutdown()
		// The library waits for what it has asked other members, of which one that is
		// frozen answers nothing for minutes. With the connections gone there is
		// nothing to wait for.
		e.conns.closeAll()
		_ = e.trans.Close()
		e.trans.CloseStreams()
		e.err = ended.Error()
		e.wg.Wait()
		e.lessor.stop() // nothing starts it any more
		e.lessor.wg.Wait()
		if err := e.bolt.Close(); e.err == nil {
			e.err = err
		}
	})
	if e.err != nil {
		return fmt.Errorf("raft: close: %w", e.err)
	}
	return nil
}

// awaitAnswers waits until the library has answered all that it was asked, for a
// while. What it cannot commit it answers when it ends.
func (e *Engine) awaitAnswers() {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		e.asked.Wait()
	}()
	t := time.NewTimer(answerWithin)
	defer t.Stop()
	select {
	case <-answered:
	case <-t.C:
	}
}

// spawn starts f as a goroutine that Close waits for, unless Close has begun.
func (e *Engine) spawn(f func()) bool {
	e.closing.Lock()
	defer e.closing.Unlock()
	if !e.shut {
		e.wg.Go(f)
	}
	return !e.shut
}

// sleep reports whether it waited d out.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
