package raft

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease"
)

// closes fails the test if the member does not come to its end.
func closes(t *testing.T, n *node) {
	t.Helper()
	closed := make(chan struct{})
	go func() { defer close(closed); n.stop() }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("the member does not close")
	}
}

// A member that closes while calls stand before its loop, and while it has just
// come to lead, must answer them all and end.
func TestACloseAmongProposalsThatNobodyTookDoesNotHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 25 {
		n := newNode(t, "n1", filepath.Join(dir, strconv.Itoa(i)), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for c := range 8 {
			callers.Go(func() {
				for ctx.Err() == nil {
					_, _ = n.Txn(ctx, nil, []lease.Op{lease.Put("/k"+strconv.Itoa(c), []byte("v"))})
				}
			})
		}
		callers.Go(func() {
			for ctx.Err() == nil {
				_, _, _ = n.Get(ctx, "/k0")
			}
		})
		if i%2 == 0 { // else it closes while it is still coming up
			_, _, _ = n.Get(ctx, "/k0")
		}
		closes(t, n)
		cancel()
		callers.Wait()
	}
}

// A majority whose disks are full answers heartbeats and stores nothing: its leader
// neither commits nor steps down, so what was asked of it is never answered while it
// lives.
func TestACloseOfALeaderWhoseFollowersCannotStoreDoesNotHang(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1", t.TempDir(), Options{})
	put(t, n, "/k", "1")
	peer := newPuppet(t)
	if err := n.raft.Load().AddVoter("peer", peer.address(), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	peer.full.Store(true)
	answered := make(chan error, 1)
	go func() {
		_, err := n.Txn(t.Context(), nil, []lease.Op{lease.Put("/k", []byte("2"))})
		answered <- err
	}()
	select {
	case <-peer.refused:
	case <-time.After(time.Minute):
		t.Fatal("the leader does not ask the follower to store")
	}
	closes(t, n)
	if err := <-answered; err == nil {
		t.Fatal("what nobody else stored was acknowledged")
	}
}

// The library gives a member more time for a snapshot the larger that is, minutes for
// some megabytes, and a member that is frozen takes all of it.
func TestACloseWhileAFrozenMemberTakesASnapshotDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1", t.TempDir(), Options{})
	value := make([]byte, 1<<20)
	for i := range 8 {
		put(t, n, "/k"+strconv.Itoa(i), string(value))
	}
	r := n.raft.Load()
	conf := r.ReloadableConfig()
	conf.TrailingLogs = 0 // so that the member cannot do without the snapshot
	if err := r.ReloadConfig(conf); err != nil {
		t.Fatal(err)
	}
	if err := r.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	peer := newPuppet(t)
	peer.full.Store(true) // so that it is sent what came before
	if err := r.AddNonvoter("peer", peer.address(), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-peer.installing:
	case <-time.After(time.Minute):
		t.Fatal("the leader sends no snapshot")
	}
	closes(t, n)
}

// A leader that was frozen learns of its successor from the answer to an entry, while
// it sends others.
func TestALeaderDeposedInTheMiddleOfItsEntriesCloses(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1", t.TempDir(), Options{})
	put(t, n, "/k", "1")
	peer := newPuppet(t)
	if err := n.raft.Load().AddVoter("peer", peer.address(), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // the library is at its full pace
		put(t, n, "/k", strconv.Itoa(i))
	}
	peer.deposes.Store(true)
	var callers sync.WaitGroup
	for range 10 {
		last := n.raft.Load().LastIndex()
		callers.Go(func() { _, _ = n.Txn(t.Context(), nil, []lease.Op{lease.Put("/k", []byte("lost"))}) })
		until(t, "the leader has the entry", func() bool { return n.raft.Load().LastIndex() > last })
	}
	close(peer.answers)
	until(t, "the leader is deposed", func() bool { return n.raft.Load().State() != hraft.Leader })
	closes(t, n)
	callers.Wait()
}

// puppet is a member by what it answers: it acknowledges what it is told and keeps
// nothing. Once it is full it refuses to store, and it never ends taking a snapshot.
type puppet struct {
	net.Listener
	full                atomic.Bool
	refused, installing chan struct{} // closed when that happened first

	// deposes has it answer entries with a later term, once answers is closed.
	deposes atomic.Bool
	answers chan struct{}
}

func newPuppet(t *testing.T) *puppet {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &puppet{Listener: l, refused: make(chan struct{}), installing: make(chan struct{}), answers: make(chan struct{})}
	trans := hraft.NewNetworkTransport(p, 3, time.Minute, io.Discard)
	over := make(chan struct{})
	var obeying sync.WaitGroup
	obeying.Go(func() {
		refused, installing := sync.OnceFunc(func() { close(p.refused) }), sync.OnceFunc(func() { close(p.installing) })
		for {
			select {
			case rpc := <-trans.Consumer():
				switch req := rpc.Command.(type) {
				case *hraft.AppendEntriesRequest:
					answer := &hraft.AppendEntriesResponse{Term: req.Term, Success: true}
					if len(req.Entries) > 0 && p.deposes.Load() {
						answer.Term++
						obeying.Go(func() {
							select {
							case <-p.answers:
							case <-over:
							}
							rpc.Respond(answer, nil)
						})
						continue
					}
					if p.full.Load() && (len(req.Entries) > 0 || req.PrevLogEntry > 0) { // else a heartbeat
						answer.Success = false
						refused()
					}
					rpc.Respond(answer, nil)
				case *hraft.InstallSnapshotRequest:
					installing()
				default:
					rpc.Respond(nil, errors.New("not of a puppet"))
				}
			case <-over:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(over)
		obeying.Wait()
		_ = trans.Close()
		trans.CloseStreams()
	})
	return p
}

func (p *puppet) address() hraft.ServerAddress { return hraft.ServerAddress(p.Addr().String()) }

// Accept returns the next connection of the library and closes every other.
func (p *puppet) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		b := make([]byte, len(preface(prefaceRaft, "test")))
		if _, err := io.ReadFull(c, b); err == nil && string(b[:prefaceSize]) == prefaceRaft {
			return c, nil
		}
		_ = c.Close()
	}
}

func (p *puppet) Dial(hraft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, errors.New("not of a puppet")
}
