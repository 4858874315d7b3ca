package raft

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/mqbridge/mqb/lease/kv"
)

// Calls between members go over one connection per pair and direction, many at a
// time. A frame is: length (4 bytes, of what follows), id (8 bytes), verb or
// status (1 byte), for requests the caller's remaining time in milliseconds
// (4 bytes), body.
const (
	frameHead = 4 + 8 + 1
	maxFrame  = kv.MaxTxnBytes + 64<<10
	// callsPerConn bounds the requests of one connection that are worked on; the
	// next one is not read before one of them is done.
	callsPerConn = 512
	// writeTimeout gives up a connection whose other end takes nothing.
	writeTimeout = 5 * time.Second
	// silence is how long a connection with calls waiting may say nothing before
	// the next call that runs out of time gives it up.
	silence = time.Second
)

type verb uint8

const (
	verbPropose   verb = iota + 1 // body: a kv.Command → outcome
	verbKeepAlive                 // body: lease id → TTL
	verbReadIndex                 // → index
	verbTerm                      // body: the asked member's name → its term
	verbStatus                    // → memberStatus
	verbJoin                      // body: candidate; to any member
	verbAdmit                     // body: candidate; to the leader
	verbAnnounce                  // body: candidate; to any member
	verbMoved                     // body: candidate; an announcement passed on
	verbRemove                    // body: name; to the leader
)

type status uint8

const (
	statusOK status = iota
	// statusNotLeader: nothing was done; ask the leader.
	statusNotLeader
	// statusUnknown: it may have been done.
	statusUnknown
	// statusLeaseNotFound: no such lease.
	statusLeaseNotFound
	// statusRefused: nothing was done and asking again does not help; body says why.
	statusRefused
)

var (
	errNotLeader = errors.New("raft: not the leader")
	errUnknown   = errors.New("raft: outcome unknown")
	// errUnreached: the request did not leave this process.
	errUnreached = errors.New("raft: member not reached")
)

// refusedError is an answer that asking again does not change.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "raft: refused: " + e.reason }

// reply is one answer.
type reply struct {
	status status
	body   []byte
}

// writeFrame writes one frame; callers hold the connection's write lock.
func writeFrame(c net.Conn, id uint64, kind byte, extra, body []byte) error {
	b := make([]byte, 0, frameHead+len(extra)+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(8+1+len(extra)+len(body)))
	b = binary.BigEndian.AppendUint64(b, id)
	b = append(b, kind)
	b = append(b, extra...)
	b = append(b, body...)
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := c.Write(b)
	return err
}

// readFrame reads one frame. It waits for the first byte as long as the
// connection lives, and for the rest only a while.
func readFrame(c net.Conn, r *bufio.Reader) (id uint64, kind byte, rest []byte, err error) {
	_ = c.SetReadDeadline(time.Time{})
	if _, err = r.Peek(1); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(sniffTimeout))
	var head [frameHead]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n < 8+1 || n > maxFrame {
		err = fmt.Errorf("raft: frame of %d bytes", n)
		return
	}
	rest = make([]byte, n-8-1)
	_, err = io.ReadFull(r, rest)
	return binary.BigEndian.Uint64(head[4:]), head[12], rest, err
}

// serveCalls answers the calls of one connection until it ends.
func (e *Engine) serveCalls(c net.Conn) {
	ctx, cancel := context.WithCancel(e.ctx)
	var writing sync.Mutex
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	defer func() { _ = c.Close() }()
	slots := make(chan struct{}, callsPerConn)
	r := bufio.NewReader(c)
	for {
		id, kind, rest, err := readFrame(c, r)
		if err != nil || len(rest) < 4 {
			return
		}
		left := time.Duration(binary.BigEndian.Uint32(rest)) * time.Millisecond
		slots <- struct{}{}
		working.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, min(left, maxCall))
			defer cancel()
			a := e.answer(ctx, verb(kind), rest[4:])
			writing.Lock()
			defer writing.Unlock()
			if err := writeFrame(c, id, byte(a.status), nil, a.body); err != nil {
				_ = c.Close()
			}
		})
	}
}

// peers holds one connection to each member that was called.
type peers struct {
	e  *Engine
	mu sync.Mutex
	m  map[string]*peer
}

// peer is the calling end of one connection; dialled at the first call and again
// after it broke.
type peer struct {
	e       *Engine
	address string

	dialing sync.Mutex // held while connecting

	mu   sync.Mutex
	conn *callConn
}

type callConn struct {
	net.Conn
	writing sync.Mutex

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan reply
	quiet   time.Time // since when calls wait and nothing came; zero when none waits
	broken  bool
}

// call sends one request and waits for its answer. errUnreached: it did not
// leave; errUnknown: it left and no answer came.
func (p *peers) call(ctx context.Context, address string, v verb, body []byte) (reply, error) {
	p.mu.Lock()
	at := p.m[address]
	if at == nil {
		if p.m == nil {
			p.m = map[string]*peer{}
		}
		at = &peer{e: p.e, address: address}
		p.m[address] = at
	}
	p.mu.Unlock()
	c, err := at.connect(ctx)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %s: %w", errUnreached, address, err)
	}
	return c.call(ctx, v, body)
}

func (p *peer) current() *callConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && !p.conn.isBroken() {
		return p.conn
	}
	return nil
}

func (p *peer) connect(ctx context.Context) (*callConn, error) {
	if c := p.current(); c != nil {
		return c, nil
	}
	p.dialing.Lock()
	defer p.dialing.Unlock()
	if c := p.current(); c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	conn, err := p.e.dial(ctx, prefaceCalls, p.address)
	if err != nil {
		return nil, err
	}
	c := &callConn{Conn: conn, waiting: map[uint64]chan reply{}}
	if !p.e.spawn(c.read) {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	return c, nil
}

func (c *callConn) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// read hands answers to their callers until the connection ends.
func (c *callConn) read() {
	r := bufio.NewReader(c.Conn)
	for {
		id, kind, rest, err := readFrame(c.Conn, r)
		if err != nil {
			c.giveUp()
			return
		}
		c.mu.Lock()
		w := c.waiting[id]
		delete(c.waiting, id)
		c.quiet = time.Time{}
		if len(c.waiting) > 0 {
			c.quiet = time.Now()
		}
		c.mu.Unlock()
		if w != nil {
			w <- reply{status: status(kind), body: rest}
		}
	}
}

// giveUp closes the connection; everybody who waits learns that no answer comes.
func (c *callConn) giveUp() {
	_ = c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
	for id, w := range c.waiting {
		delete(c.waiting, id)
		close(w)
	}
}

func (c *callConn) call(ctx context.Context, v verb, body []byte) (reply, error) {
	left := maxCall
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	w := make(chan reply, 1)
	c.mu.Lock()
	if c.broken {
		c.mu.Unlock()
		return reply{}, errUnreached
	}
	c.next++
	id := c.next
	c.waiting[id] = w
	if c.quiet.IsZero() {
		c.quiet = time.Now()
	}
	c.mu.Unlock()

	c.writing.Lock()
	err := writeFrame(c.Conn, id, byte(v), binary.BigEndian.AppendUint32(nil, uint32(max(0, left.Milliseconds()))), body)
	c.writing.Unlock()
	if err != nil {
		// Part of the frame may have left; a whole one may even have arrived.
		c.giveUp()
		return reply{}, fmt.Errorf("%w: %w", errUnknown, err)
	}
	select {
	case a, ok := <-w:
		if !ok {
			return reply{}, fmt.Errorf("%w: connection lost", errUnknown)
		}
		return a, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		dead := !c.quiet.IsZero() && time.Since(c.quiet) > silence
		c.mu.Unlock()
		if dead {
			c.giveUp() // the other end is frozen, or gone without a word
		}
		return reply{}, fmt.Errorf("%w: %w", errUnknown, context.Cause(ctx))
	}
}
