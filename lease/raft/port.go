package raft

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// One port serves people and members. A member's connection begins with a
// preface no HTTP or TLS client sends: a zero byte, "mqb", a version, what the
// connection is for, and the cluster's name after its length.
const (
	prefaceSize  = 7
	prefaceRaft  = "\x00mqb\x01r\n" // hashicorp/raft's own protocol
	prefaceCalls = "\x00mqb\x01c\n" // calls of this package
)

const (
	// sniffTimeout is how long a new connection may take to show what it is.
	sniffTimeout = 10 * time.Second
	// maxSniffing bounds connections that have not shown it yet, maxPeers those
	// of members.
	maxSniffing = 1024
	maxPeers    = 256
)

func preface(kind, cluster string) []byte {
	b := append([]byte(kind), byte(len(cluster)))
	return append(b, cluster...)
}

// Mux takes connections from l until l is closed, serves members on it and hands
// every other connection to the listener it returns. Closing that one, or the
// engine, closes l.
func (e *Engine) Mux(l net.Listener) net.Listener {
	m := &mux{Listener: l, e: e, other: make(chan net.Conn), done: make(chan struct{}), sniffing: make(chan struct{}, maxSniffing)}
	if !e.conns.add(l) || !e.spawn(m.run) {
		_ = m.Close()
	}
	return m
}

type mux struct {
	net.Listener
	e        *Engine
	other    chan net.Conn
	sniffing chan struct{}
	done     chan struct{}
	once     sync.Once
}

// Accept returns the next connection that is no member's.
func (m *mux) Accept() (net.Conn, error) {
	select {
	case c := <-m.other:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

func (m *mux) Close() error {
	m.once.Do(func() { close(m.done) })
	return m.Listener.Close()
}

func (m *mux) run() {
	defer func() { _ = m.Close() }()
	for {
		c, err := m.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || m.e.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, most likely: it passes.
			if !sleep(m.e.ctx, 50*time.Millisecond) {
				return
			}
			continue
		}
		select {
		case m.sniffing <- struct{}{}:
			m.e.wg.Go(func() {
				m.sniff(c)
				<-m.sniffing
			})
		default:
			_ = c.Close()
		}
	}
}

// sniff decides whose connection c is and hands it on.
func (m *mux) sniff(c net.Conn) {
	// Where l is one of TLS, the first read makes the handshake, which writes too.
	stop := context.AfterFunc(m.e.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(sniffTimeout))
	var b [prefaceSize]byte
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		m.e.log.Debug("a connection ended before it showed what it is", "from", c.RemoteAddr().String(), "error", err)
		_ = c.Close()
		return
	}
	if b[0] != prefaceRaft[0] {
		_ = c.SetDeadline(time.Time{})
		select {
		case m.other <- &replay{Conn: c, head: b[:1]}:
		case <-m.done:
			_ = c.Close()
		}
		return
	}
	if m.e.o.Verify != nil {
		if err := m.e.o.Verify(c); err != nil {
			m.e.log.Warn("a member's connection was refused", "from", c.RemoteAddr().String(), "error", err)
			_ = c.Close()
			return
		}
	}
	var size [1]byte
	name := make([]byte, 255)
	_, err := io.ReadFull(c, b[1:])
	if err == nil {
		_, err = io.ReadFull(c, size[:])
	}
	name = name[:size[0]]
	if err == nil {
		_, err = io.ReadFull(c, name)
	}
	if err == nil && string(name) != m.e.o.Cluster {
		m.e.log.Warn("a member of another cluster called and was refused", "from", c.RemoteAddr().String(), "cluster", string(name))
		err = errors.New("another cluster")
	}
	if err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	m.e.serveMember(string(b[:]), c)
}

// replay gives back what was read to look at it.
type replay struct {
	net.Conn
	head []byte
}

// NetConn returns the connection below, as that of tls.Conn does.
func (r *replay) NetConn() net.Conn { return r.Conn }

func (r *replay) Read(b []byte) (int, error) {
	if len(r.head) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.head)
	r.head = r.head[n:]
	return n, nil
}

// serveMember takes over a member's connection whose preface was read.
func (e *Engine) serveMember(kind string, c net.Conn) {
	if !e.conns.add(c) {
		_ = c.Close()
		return
	}
	tracked := &trackedConn{Conn: c, set: &e.conns}
	switch kind {
	case prefaceRaft:
		// A member without data takes no part in elections before the leader has
		// accepted it: had it been a voter and lost its disk, it could vote twice
		// in one term.
		if !e.admitted.Load() {
			_ = tracked.Close()
			return
		}
		select {
		case e.stream.accepted <- tracked:
		case <-e.ctx.Done():
			_ = tracked.Close()
		}
	case prefaceCalls:
		e.wg.Go(func() { e.serveCalls(tracked) })
	default:
		_ = tracked.Close()
	}
}

// connSet closes what is open when the engine closes.
type connSet struct {
	mu     sync.Mutex
	open   map[io.Closer]struct{}
	closed bool
}

func (s *connSet) add(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	if len(s.open) >= maxPeers {
		return false
	}
	if s.open == nil {
		s.open = map[io.Closer]struct{}{}
	}
	s.open[c] = struct{}{}
	return true
}

func (s *connSet) remove(c io.Closer) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

func (s *connSet) closeAll() {
	s.mu.Lock()
	s.closed = true
	open := s.open
	s.open = nil
	s.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
}

type trackedConn struct {
	net.Conn
	set *connSet
}

func (c *trackedConn) Close() error {
	c.set.remove(c.Conn)
	return c.Conn.Close()
}

// dial opens a connection to a member for one kind of traffic.
func (e *Engine) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	c, err := e.o.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if !e.conns.add(c) {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t := &trackedConn{Conn: c, set: &e.conns}
	if deadline, ok := ctx.Deadline(); ok {
		_ = t.SetWriteDeadline(deadline)
	}
	if _, err := t.Write(preface(kind, e.o.Cluster)); err != nil {
		_ = t.Close()
		return nil, err
	}
	_ = t.SetWriteDeadline(time.Time{})
	return t, nil
}

// stream is raft's StreamLayer on the shared port.
type stream struct {
	e        *Engine
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
}

func (s *stream) Accept() (net.Conn, error) {
	select {
	case c := <-s.accepted:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *stream) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Addr is what this member is known as to the others.
func (s *stream) Addr() net.Addr { return address(s.e.o.Advertise) }

// Dial connects to a member. A connection to itself stays within the process:
// the port need not be served yet when a sole voter elects itself.
func (s *stream) Dial(to hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if string(to) == s.e.o.Advertise {
		near, far := net.Pipe()
		select {
		case s.accepted <- far:
			return near, nil
		case <-s.done:
			return nil, net.ErrClosed
		}
	}
	ctx, cancel := context.WithTimeout(s.e.ctx, timeout)
	defer cancel()
	return s.e.dial(ctx, prefaceRaft, string(to))
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }
