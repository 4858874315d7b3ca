package mongodb_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// proxy stands between the driver and a server. It looks at the commands that
// change a record; others pass.
type proxy struct {
	addr, server string
	listener     net.Listener
	wg           sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	write func(*link, []byte) // nil: forward
	seen  []bson.Raw
}

// link is one connection of the driver, and the one behind it.
type link struct {
	client, server net.Conn
	replies        chan []byte // nil: to the client
}

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), server: server, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// onWrite replaces what happens to every command that changes a record.
func (p *proxy) onWrite(f func(l *link, message []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write, p.seen = f, nil
}

// commands are those seen since onWrite.
func (p *proxy) commands() []bson.Raw {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

func (p *proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.keep(client)
	p.keep(server)
	l := &link{client: client, server: server}
	var mu sync.Mutex
	p.wg.Go(func() {
		for {
			reply, err := readMessage(server)
			if err != nil {
				_ = client.Close()
				return
			}
			mu.Lock()
			to := l.replies
			mu.Unlock()
			if to != nil {
				to <- reply
				continue
			}
			if _, err := client.Write(reply); err != nil {
				return
			}
		}
	})
	for {
		message, err := readMessage(client)
		if err != nil {
			return
		}
		command := commandOf(message)
		p.mu.Lock()
		f := p.write
		p.seen = append(p.seen, command)
		p.mu.Unlock()
		if f != nil && (command.Lookup("findAndModify").Type != 0 || command.Lookup("insert").Type != 0) {
			mu.Lock()
			l.replies = make(chan []byte, 1)
			mu.Unlock()
			f(l, message)
			return
		}
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}

// forward sends a message on and returns the server's reply, whatever has become
// of the client.
func (l *link) forward(message []byte) bson.Raw {
	if _, err := l.server.Write(message); err != nil {
		return nil
	}
	return commandOf(<-l.replies)
}

// readMessage reads one message of the wire protocol.
func readMessage(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16 | int(head[3])<<24
	message := make([]byte, n)
	copy(message, head)
	_, err := io.ReadFull(r, message[4:])
	return message, err
}

// commandOf is the body of an OP_MSG, empty for other messages.
func commandOf(message []byte) bson.Raw {
	const opMsg, header = 2013, 21
	if len(message) < header || !bytes.Equal(message[12:16], []byte{opMsg & 0xff, opMsg >> 8, 0, 0}) {
		return bson.Raw{5, 0, 0, 0, 0}
	}
	body := message[header:]
	n := int(body[0]) | int(body[1])<<8 | int(body[2])<<16 | int(body[3])<<24
	return bson.Raw(body[:n])
}
