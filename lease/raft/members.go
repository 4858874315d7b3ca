package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	hraft "github.com/hashicorp/raft"
)

// Member is one node of the group.
type Member struct {
	Node, Address string
	Voter, Leader bool
	// Reachable says that it answered this member just now.
	Reachable bool
}

// candidate is a node that wants in, or that has moved.
type candidate struct {
	Node     string `json:"node"`
	Address  string `json:"address"`
	Instance string `json:"instance"`
}

type memberStatus struct {
	Node      string `json:"node"`
	Instance  string `json:"instance"`
	LastIndex uint64 `json:"last_index"`
}

// move is an announced address that is not in the configuration yet. It counts
// as long as the configuration still says from.
type move struct{ from, to hraft.ServerAddress }

const (
	// askTimeout bounds a question to one member.
	askTimeout = 300 * time.Millisecond
	// caughtUp is how many entries a member may lack and still be made a voter.
	caughtUp = 64
)

func (e *Engine) servers() []hraft.Server {
	return e.raft.Load().GetConfiguration().Configuration().Servers
}

func (e *Engine) voters() []hraft.Server {
	return slices.DeleteFunc(slices.Clone(e.servers()), func(s hraft.Server) bool { return s.Suffrage != hraft.Voter })
}

func (e *Engine) server(id hraft.ServerID) (hraft.Server, bool) {
	for _, s := range e.servers() {
		if s.ID == id {
			return s, true
		}
	}
	return hraft.Server{}, false
}

// ServerAddr tells where a member is: what it announced last, or what the
// configuration says. It lets members that all moved find each other before they
// have a leader that could write the new addresses down.
func (e *Engine) ServerAddr(id hraft.ServerID) (hraft.ServerAddress, error) {
	if e.raft.Load() == nil {
		return "", errors.New("raft: not started")
	}
	s, ok := e.server(id)
	if !ok {
		return "", fmt.Errorf("raft: no member %s", id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if m, ok := e.moves[id]; ok && m.from == s.Address {
		return m.to, nil
	}
	return s.Address, nil
}

// Members returns every member, and whether each can be reached from here.
func (e *Engine) Members(ctx context.Context) []Member {
	leader, _, _ := e.current()
	servers := e.servers()
	members := make([]Member, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		at, err := e.ServerAddr(s.ID)
		if err != nil {
			at = s.Address
		}
		members[i] = Member{Node: string(s.ID), Address: string(at), Voter: s.Suffrage == hraft.Voter, Leader: s.ID == leader}
		if string(s.ID) == e.o.Node {
			members[i].Reachable = true
			continue
		}
		wg.Go(func() {
			st, err := e.status(ctx, string(at))
			members[i].Reachable = err == nil && st.Node == string(s.ID)
		})
	}
	wg.Wait()
	return members
}

// Remove takes a node out of the group for good; a follower steps in for a voter.
// To come back it must start with an empty data directory.
func (e *Engine) Remove(ctx context.Context, node string) error {
	if _, err := e.ask(ctx, verbRemove, []byte(node), true); err != nil {
		return fmt.Errorf("raft: remove %s: %w", node, err)
	}
	return nil
}

// answerMember answers what is about membership.
func (e *Engine) answerMember(ctx context.Context, v verb, body []byte) reply {
	switch v {
	case verbStatus:
		return reply{body: encode(memberStatus{Node: e.o.Node, Instance: e.instance, LastIndex: e.raft.Load().LastIndex()})}
	case verbRemove:
		return e.change(func() error { return e.remove(string(body)) })
	}
	var c candidate
	if err := json.Unmarshal(body, &c); err != nil || c.Node == "" || c.Address == "" {
		return refuse(errors.New("malformed candidate"))
	}
	switch v {
	case verbJoin:
		if !e.admitted.Load() {
			return reply{status: statusNotLeader}
		}
		_, err := e.ask(ctx, verbAdmit, body, true)
		var refused *refusedError
		switch {
		case errors.As(err, &refused):
			return refuse(errors.New(refused.reason))
		case err != nil:
			return reply{status: statusNotLeader}
		}
		return reply{}
	case verbAdmit:
		return e.change(func() error { return e.admit(ctx, c) })
	case verbAnnounce:
		e.moved(c)
		// The leader may have moved too, to where the announcer cannot know.
		if id, at, _ := e.current(); id != "" && string(id) != e.o.Node {
			if _, err := e.calls.call(ctx, string(at), verbMoved, body); err != nil {
				e.log.Debug("announcement not passed on", "node", c.Node, "error", err)
			}
		}
		return reply{}
	case verbMoved:
		e.moved(c)
		return reply{}
	default:
		return refuse(fmt.Errorf("unknown call %d", v))
	}
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("raft: " + err.Error()) // plain structs only
	}
	return b
}

// change runs one change of members on the leader, after any other.
func (e *Engine) change(f func() error) reply {
	if e.readyTerm.Load() == 0 {
		return reply{status: statusNotLeader}
	}
	e.admitting.Lock()
	defer e.admitting.Unlock()
	err := f()
	var refused *refusedError
	switch {
	case err == nil:
		e.wake()
		return reply{}
	case errors.As(err, &refused):
		return refuse(errors.New(refused.reason))
	case errors.Is(err, errNotLeader), errors.Is(err, hraft.ErrNotLeader), errors.Is(err, hraft.ErrLeadershipLost), errors.Is(err, hraft.ErrLeadershipTransferInProgress), errors.Is(err, hraft.ErrEnqueueTimeout):
		return reply{status: statusNotLeader}
	}
	return refuse(err)
}

// admit adds a node without data as a follower; upkeep makes it a voter when its
// time has come. A node that was a member before lost its data: as a voter it
// may have promised what it no longer knows, so it is taken out first, which the
// others agree on without it.
func (e *Engine) admit(ctx context.Context, c candidate) error {
	r := e.raft.Load()
	id := hraft.ServerID(c.Node)
	if c.Node == e.o.Node {
		return &refusedError{reason: "node " + c.Node + " is the leader"}
	}
	if old, ok := e.server(id); ok {
		at, _ := e.ServerAddr(id)
		if st, err := e.status(ctx, string(at)); err == nil && st.Node == c.Node && st.Instance != c.Instance {
			return &refusedError{reason: fmt.Sprintf("node %s lives at %s: two nodes need two names", c.Node, at)}
		}
		e.log.Info("node joins again without its data", "node", c.Node, "was", string(old.Address))
		if err := e.reconfigure(func() hraft.IndexFuture { return r.RemoveServer(id, 0, maxCall) }); err != nil {
			return err
		}
	}
	if err := e.reconfigure(func() hraft.IndexFuture { return r.AddNonvoter(id, hraft.ServerAddress(c.Address), 0, maxCall) }); err != nil {
		return err
	}
	e.log.Info("node joined the coordinator", "node", c.Node, "address", c.Address)
	return nil
}

func (e *Engine) remove(node string) error {
	id := hraft.ServerID(node)
	if _, ok := e.server(id); !ok {
		return &refusedError{reason: "no such node"}
	}
	if voters := e.voters(); len(voters) == 1 && voters[0].ID == id {
		return &refusedError{reason: "it is the only voter"}
	}
	if err := e.reconfigure(func() hraft.IndexFuture { return e.raft.Load().RemoveServer(id, 0, maxCall) }); err != nil {
		return err
	}
	e.log.Info("node removed from the coordinator", "node", node)
	return nil
}

// moved notes a member's new address.
func (e *Engine) moved(c candidate) {
	id := hraft.ServerID(c.Node)
	s, ok := e.server(id)
	if !ok {
		return
	}
	e.mu.Lock()
	if string(s.Address) == c.Address {
		delete(e.moves, id)
	} else {
		e.moves[id] = move{from: s.Address, to: hraft.ServerAddress(c.Address)}
	}
	e.mu.Unlock()
	e.wake()
}

func (e *Engine) status(ctx context.Context, address string) (memberStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	a, err := e.calls.call(ctx, address, verbStatus, nil)
	var st memberStatus
	if err == nil {
		err = json.Unmarshal(a.body, &st)
	}
	return st, err
}

// wake makes upkeep look now.
func (e *Engine) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// upkeep writes new addresses down and makes voters, while this member leads.
func (e *Engine) upkeep() {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.kick:
		case <-e.ctx.Done():
			return
		}
		if e.readyTerm.Load() == 0 {
			continue
		}
		e.admitting.Lock()
		err := e.settleAddresses()
		if err == nil {
			err = e.promote()
		}
		e.admitting.Unlock()
		if err != nil && e.ctx.Err() == nil {
			e.log.Debug("upkeep of members", "error", err)
		}
	}
}

func (e *Engine) settleAddresses() error {
	for _, s := range e.servers() {
		at, err := e.ServerAddr(s.ID)
		if err != nil {
			return err
		}
		if string(s.ID) == e.o.Node {
			at = hraft.ServerAddress(e.o.Advertise)
		}
		if at == s.Address {
			continue
		}
		add := e.raft.Load().AddNonvoter
		if s.Suffrage == hraft.Voter {
			add = e.raft.Load().AddVoter
		}
		if err := e.reconfigure(func() hraft.IndexFuture { return add(s.ID, at, 0, maxCall) }); err != nil {
			return err
		}
		e.log.Info("node moved", "node", string(s.ID), "from", string(s.Address), "to", string(at))
	}
	return nil
}

// promote makes the followers that have caught up voters, in the order of the
// configuration, until there are Voters of them. It stops at an odd number: an
// even one survives no more failures than one less, and needs more answers.
func (e *Engine) promote() error {
	servers := e.servers()
	voters := len(e.voters())
	if voters >= e.o.Voters || voters == len(servers) {
		return nil
	}
	var ready []hraft.Server
	for _, s := range servers {
		if s.Suffrage == hraft.Voter {
			continue
		}
		at, err := e.ServerAddr(s.ID)
		if err != nil {
			return err
		}
		st, err := e.status(e.ctx, string(at))
		if err == nil && st.Node == string(s.ID) && st.LastIndex+caughtUp >= e.raft.Load().CommitIndex() && st.LastIndex > 0 {
			ready = append(ready, s)
		}
	}
	target := min(e.o.Voters, voters+len(ready))
	if target%2 == 0 {
		target--
	}
	for _, s := range ready[:max(0, target-voters)] {
		if err := e.reconfigure(func() hraft.IndexFuture { return e.raft.Load().AddVoter(s.ID, s.Address, 0, maxCall) }); err != nil {
			return err
		}
		e.log.Info("node is a voter", "node", string(s.ID))
	}
	return nil
}

// join asks to be let in until it is.
func (e *Engine) join() {
	body := encode(candidate{Node: e.o.Node, Address: e.o.Advertise, Instance: e.instance})
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	for tries := 0; ; tries++ {
		for _, to := range e.o.Join {
			ctx, cancel := context.WithTimeout(e.ctx, maxCall)
			a, err := e.calls.call(ctx, to, verbJoin, body)
			cancel()
			switch {
			case err == nil && a.status == statusOK:
				e.admitted.Store(true)
				e.log.Info("joined the coordinator", "through", to)
				return
			case err == nil && a.status == statusRefused:
				e.log.Warn("not let into the coordinator", "by", to, "reason", string(a.body))
			case tries%10 == 5:
				e.log.Warn("cannot join the coordinator yet", "through", to, "error", err)
			}
		}
		if !sleep(e.ctx, pause.NextBackOff()) {
			return
		}
	}
}

// announce tells the others where this member is, until one of them heard it
// and the configuration says so.
func (e *Engine) announce() {
	body := encode(candidate{Node: e.o.Node, Address: e.o.Advertise, Instance: e.instance})
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	for {
		to := slices.Clone(e.o.Join)
		alone := true
		for _, s := range e.servers() {
			if string(s.ID) != e.o.Node {
				at, _ := e.ServerAddr(s.ID)
				to, alone = append(to, string(at)), false
			}
		}
		heard := alone
		for _, at := range to {
			if at == e.o.Advertise {
				continue
			}
			ctx, cancel := context.WithTimeout(e.ctx, askTimeout)
			if a, err := e.calls.call(ctx, at, verbAnnounce, body); err == nil && a.status == statusOK {
				heard = true
			}
			cancel()
		}
		if s, ok := e.server(hraft.ServerID(e.o.Node)); heard && ok && string(s.Address) == e.o.Advertise {
			return
		}
		if !sleep(e.ctx, pause.NextBackOff()) {
			return
		}
	}
}
