package file

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"sync"
)

// packBlocks is how many blocks are compressed as one: about half a MiB, enough
// for a compressor to find what repeats, and little enough to be held several times.
const packBlocks = 2

// packer compresses on goroutines of its own, so that encoding goes on meanwhile
// and a fast input is not held up by one core. A member is made of pieces, each a
// member of the format by itself: they are compressed side by side and written in
// order by one goroutine. write and end belong to one goroutine; close may come
// from any.
type packer struct {
	codec   codec
	workers int

	cur     *piece // being filled
	pieces  chan *piece
	blocks  chan []byte
	made    int // blocks
	started int // workers

	work, order chan *piece
	quit        chan struct{}
	running     sync.WaitGroup
	once        sync.Once
}

// piece is some blocks on their way to be compressed.
type piece struct {
	to   *member
	in   [][]byte
	last bool // of its member
	// skip: nothing to compress, it only ends its member.
	skip bool
	out  bytes.Buffer
	err  error
	done chan struct{} // of one slot: filled when out or err is there
}

// member is one member in the making, written to w by the packer's writer alone.
type member struct {
	w    io.Writer
	done chan struct{} // closed when it is complete, or will never be
	// begun: a piece of it is on its way. The writing side's.
	begun bool

	mu  sync.Mutex
	err error
}

func newPacker(c codec) (*packer, error) {
	if _, err := newCompressor(c); err != nil {
		return nil, err
	}
	n := min(runtime.GOMAXPROCS(0), 4)
	p := &packer{
		codec: c, workers: n, pieces: make(chan *piece, n+2), blocks: make(chan []byte, (n+1)*packBlocks+1),
		work: make(chan *piece, n), order: make(chan *piece, n), quit: make(chan struct{}),
	}
	p.running.Add(1)
	go p.deliver()
	return p, nil
}

func newMember(w io.Writer) *member { return &member{w: w, done: make(chan struct{})} }

func (m *member) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}

// write hands block over and returns another one to fill. An error is that of any
// earlier block of the member.
func (p *packer) write(to *member, block []byte) ([]byte, error) {
	if err := to.failed(); err != nil {
		return block[:0], err
	}
	c := p.current(to)
	c.in = append(c.in, block)
	if len(c.in) == packBlocks {
		if err := p.send(); err != nil {
			return block[:0], err
		}
	}
	return p.block()
}

// current is the piece being filled.
func (p *packer) current(to *member) *piece {
	if p.cur == nil {
		select {
		case p.cur = <-p.pieces:
		default:
			p.cur = &piece{done: make(chan struct{}, 1)}
		}
		p.cur.to = to
	}
	return p.cur
}

// block returns an empty block to fill.
func (p *packer) block() ([]byte, error) {
	select {
	case b := <-p.blocks:
		return b, nil
	default:
	}
	// Those of each worker, those being gathered and the one being filled: whoever
	// waits here waits for a worker.
	if p.made < (p.workers+1)*packBlocks {
		p.made++
		return make([]byte, 0, writeBytes+directBytes), nil
	}
	select {
	case b := <-p.blocks:
		return b, nil
	case <-p.quit:
		return nil, os.ErrClosed
	}
}

// end completes the member behind what was handed over; wait tells when.
func (p *packer) end(to *member) error {
	c := p.current(to)
	c.last, c.skip = true, len(c.in) == 0 && to.begun
	return p.send()
}

// wait returns when the member is complete.
func (p *packer) wait(m *member) error {
	select {
	case <-m.done:
		return m.failed()
	case <-p.quit:
		return os.ErrClosed
	}
}

// send gives the current piece its place in the order, then to a worker.
func (p *packer) send() error {
	c := p.cur
	p.cur = nil
	c.to.begun = true
	select {
	case <-p.quit: // first: a send that is possible too would win half the time
		return os.ErrClosed
	default:
	}
	if p.started < p.workers {
		p.started++
		p.running.Add(1)
		go p.compress()
	}
	select {
	case p.order <- c:
	case <-p.quit:
		return os.ErrClosed
	}
	select {
	case p.work <- c:
		return nil
	case <-p.quit:
		return os.ErrClosed
	}
}

// compress is a worker.
func (p *packer) compress() {
	defer p.running.Done()
	z, err := newCompressor(p.codec)
	for {
		select {
		case c := <-p.work:
			c.err = err
			if err == nil && !c.skip && c.to.failed() == nil {
				c.err = c.pack(z)
			}
			for _, b := range c.in {
				if cap(b) > 4*writeBytes {
					b = make([]byte, 0, writeBytes+directBytes) // one large record is no reason to keep its memory
				}
				p.blocks <- b[:0] // room for all there are
			}
			clear(c.in)
			c.in = c.in[:0]
			c.done <- struct{}{}
		case <-p.quit:
			return
		}
	}
}

func (c *piece) pack(z compressor) error {
	z.Reset(&c.out)
	for _, b := range c.in {
		if _, err := z.Write(b); err != nil {
			return err
		}
	}
	return z.Close()
}

// deliver writes pieces in the order in which they were handed over.
func (p *packer) deliver() {
	defer p.running.Done()
	for {
		var c *piece
		select {
		case c = <-p.order:
		case <-p.quit:
			return
		}
		select {
		case <-c.done:
		case <-p.quit:
			return
		}
		m := c.to
		if c.err == nil && c.out.Len() > 0 && m.failed() == nil {
			_, c.err = m.w.Write(c.out.Bytes())
		}
		if c.err != nil {
			m.fail(c.err)
		}
		if c.last {
			close(m.done)
		}
		c.to, c.last, c.skip, c.err = nil, false, false, nil
		if c.out.Reset(); c.out.Cap() > 4*writeBytes {
			c.out = bytes.Buffer{}
		}
		select {
		case p.pieces <- c:
		default:
		}
	}
}

// close ends the goroutines and returns when nothing more is written.
func (p *packer) close() {
	p.once.Do(func() { close(p.quit) })
	p.running.Wait()
}
