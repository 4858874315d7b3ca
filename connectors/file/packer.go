package file

import (
	"io"
	"os"
	"sync"
)

// packBuffers is how many blocks may wait to be compressed.
const packBuffers = 4

// packer compresses on a goroutine of its own, so that encoding goes on
// meanwhile. Members are made one after another. write and end belong to one
// goroutine; close may come from any.
type packer struct {
	z       compressor
	jobs    chan packJob
	free    chan []byte
	made    int
	quit    chan struct{}
	stopped chan struct{}
	once    sync.Once
}

type packJob struct {
	to   *member
	p    []byte
	last bool
}

// member is one member in the making, written to w by the packer alone.
type member struct {
	w    io.Writer
	done chan struct{} // closed when it is complete, or will never be
	// begun belongs to the packer's goroutine.
	begun bool

	mu  sync.Mutex
	err error
}

func newPacker(c codec) (*packer, error) {
	z, err := newCompressor(c)
	if err != nil {
		return nil, err
	}
	p := &packer{
		z: z, jobs: make(chan packJob, packBuffers), free: make(chan []byte, packBuffers+1),
		quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.run()
	return p, nil
}

func newMember(w io.Writer) *member { return &member{w: w, done: make(chan struct{})} }

func (m *member) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// write hands buf over and returns another one to fill. An error is that of any
// earlier block of the member.
func (p *packer) write(to *member, buf []byte) ([]byte, error) {
	if err := to.failed(); err != nil {
		return buf[:0], err
	}
	if err := p.send(packJob{to: to, p: buf}); err != nil {
		return buf[:0], err
	}
	return p.buffer()
}

// buffer returns an empty buffer to fill.
func (p *packer) buffer() ([]byte, error) {
	select {
	case b := <-p.free:
		return b, nil
	default:
	}
	if p.made < packBuffers {
		p.made++
		return make([]byte, 0, writeBytes+directBytes), nil
	}
	select {
	case b := <-p.free:
		return b, nil
	case <-p.quit:
		return nil, os.ErrClosed
	}
}

// end completes the member behind what was handed over; wait tells when.
func (p *packer) end(to *member) error { return p.send(packJob{to: to, last: true}) }

// wait returns when the member is complete.
func (p *packer) wait(m *member) error {
	select {
	case <-m.done:
		return m.failed()
	case <-p.quit:
		return os.ErrClosed
	}
}

func (p *packer) send(j packJob) error {
	select {
	case <-p.quit: // first: a send that is possible too would win half the time
		return os.ErrClosed
	default:
	}
	select {
	case p.jobs <- j:
		return nil
	case <-p.quit:
		return os.ErrClosed
	}
}

func (p *packer) run() {
	defer close(p.stopped)
	for {
		select {
		case j := <-p.jobs:
			p.work(j)
		case <-p.quit:
			return
		}
	}
}

func (p *packer) work(j packJob) {
	m := j.to
	err := m.failed()
	if err == nil && !m.begun {
		m.begun = true
		p.z.Reset(m.w)
	}
	if err == nil && len(j.p) > 0 {
		_, err = p.z.Write(j.p)
	}
	if err == nil && j.last {
		err = p.z.Close()
	}
	if err != nil {
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
	}
	if j.last {
		close(m.done)
		return
	}
	if cap(j.p) > 4*writeBytes {
		j.p = make([]byte, 0, writeBytes+directBytes) // one large record is no reason to keep its memory
	}
	p.free <- j.p[:0] // room for all there are: packBuffers and the writer's first one
}

// close ends the goroutine and returns when it writes no more.
func (p *packer) close() {
	p.once.Do(func() { close(p.quit) })
	<-p.stopped
}
