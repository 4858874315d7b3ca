package harness

import (
	"net"
	"slices"
	"sync"
	"testing"
)

// Proxy is a network between clients and a server on TCP that a test can harm:
// either direction can stand still, one request can be held back, the replies to
// one can be lost, and connections can be cut. Safe for concurrent use.
type Proxy struct {
	// Addr is where clients connect.
	Addr string

	target string
	l      net.Listener
	wg     sync.WaitGroup
	done   chan struct{}

	mu      sync.Mutex
	conns   map[net.Conn]bool
	still   [2]chan struct{} // per direction; nil: bytes pass; closed when they may again
	catch   func(chunk []byte) bool
	caught  chan struct{}
	release chan struct{} // nil: what is caught passes, and its replies are lost
}

// Direction of bytes through a Proxy.
type Direction int

// Directions, seen from the client.
const (
	Requests Direction = iota
	Replies
)

// NewProxy starts a proxy before target (host:port); it ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, l: l, done: make(chan struct{}), conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		close(p.done)
		_ = l.Close()
		p.Sever()
		p.wg.Wait()
	})
	return p
}

// Still lets the bytes of a direction stand, those of new connections too:
// nobody is told, as when packets vanish on their way.
func (p *Proxy) Still(directions ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range directions {
		if p.still[d] == nil {
			p.still[d] = make(chan struct{})
		}
	}
}

// Heal lets everything pass again. What stood arrives, late.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, c := range p.still {
		if c != nil {
			close(c)
			p.still[d] = nil
		}
	}
}

// Hold holds back the next request that match recognizes; caught is closed when
// it is here. It goes on its way when release is called, whether its client is
// still there or not. Others pass.
func (p *Proxy) Hold(match func(chunk []byte) bool) (caught <-chan struct{}, release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gate := make(chan struct{})
	p.catch, p.caught, p.release = match, make(chan struct{}), gate
	return p.caught, sync.OnceFunc(func() { close(gate) })
}

// LoseReply lets the next request that match recognizes pass, and cuts its
// connection when the server has answered, without the answer.
func (p *Proxy) LoseReply(match func(chunk []byte) bool) (caught <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.catch, p.caught, p.release = match, make(chan struct{}), nil
	return p.caught
}

// Sever cuts every connection. What stood in them is lost.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		mute := make(chan struct{}) // closed: answers of this connection are lost
		p.wg.Go(func() { p.pump(Requests, client, server, mute) })
		p.wg.Go(func() { p.pump(Replies, server, client, mute) })
	}
}

// pump carries one direction of one connection, chunk by chunk, and closes the
// receiving end behind the last.
func (p *Proxy) pump(d Direction, from, to net.Conn, mute chan struct{}) {
	defer func() {
		_ = to.Close()
		p.mu.Lock()
		delete(p.conns, to)
		p.mu.Unlock()
	}()
	buf := make([]byte, 256<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.pass(d, slices.Clip(buf[:n]), mute) {
			_ = from.Close()
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until a chunk may go on; false is never.
func (p *Proxy) pass(d Direction, chunk []byte, mute chan struct{}) bool {
	p.mu.Lock()
	still := p.still[d]
	var hold chan struct{}
	if d == Requests && p.catch != nil && p.catch(chunk) {
		p.catch, hold = nil, p.release
		if hold == nil {
			close(mute)
		}
		close(p.caught)
	}
	p.mu.Unlock()
	if d == Replies {
		select {
		case <-mute:
			return false
		default:
		}
	}
	for _, gate := range []chan struct{}{hold, still} {
		if gate == nil {
			continue
		}
		select {
		case <-gate:
		case <-p.done:
			return false
		}
	}
	return true
}
