package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/mqbridge/mqb/connectors"
)

// members is the content of a compressed file: what its members hold, one behind
// another. The file may grow by whole members, which are read on, and by bytes of
// one that somebody is writing just now: its content is made again from where it
// begins, as far as it was not handed out before. That is tried when the file has
// grown by an eighth or its writer has paused, so that a file that grows in small
// steps is not read all over again for each of them.
type members struct {
	f     *os.File
	codec codec
	z     decompressor
	in    sectionReader

	content int64                         // offset in the content of what the decompressor makes next
	out     int64                         // what is before this was handed out
	begun   struct{ file, content int64 } // where the last end was that could be one
	torn    bool
	seen    int64 // size of the file when more found too little growth
}

// sectionReader reads a file from an offset on. The decompressor may read from a
// goroutine of its own.
type sectionReader struct {
	f  *os.File
	at atomic.Int64
}

func (r *sectionReader) Read(p []byte) (int, error) {
	n, err := r.f.ReadAt(p, r.at.Load())
	r.at.Add(int64(n))
	if n > 0 {
		err = nil
	}
	return n, err
}

func newMembers(f *os.File, c codec) *members {
	m := &members{f: f, codec: c}
	m.in.f = f
	return m
}

func (m *members) Read(p []byte) (int, error) {
	if m.z == nil {
		z, err := newDecompressor(m.codec, &m.in)
		if err != nil {
			return 0, m.failed(err)
		}
		m.z = z
	}
	for {
		n, err := m.z.Read(p)
		again := min(int64(n), max(m.out-m.content, 0))
		m.content += int64(n)
		if again > 0 {
			n = copy(p, p[again:n])
		}
		m.out += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			m.begun.file, m.begun.content, m.torn = m.in.at.Load(), m.content, false
			return n, io.EOF
		case err != nil:
			return n, m.failed(err)
		case n > 0:
			return n, nil
		}
	}
}

func (m *members) failed(err error) error {
	at := m.in.at.Load()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		m.torn, m.seen = true, 0
		return &connectors.Error{
			Class: connectors.ClassData,
			Err:   fmt.Errorf("%s: the %s data %w: it is cut off at byte %d of the file, byte %d of its content", m.f.Name(), m.codec, errTorn, at, m.content),
			Hint:  "the records before it were read; if the file is still being written, follow it: without exit_on_empty, in a copy with --drain=false",
		}
	}
	return &connectors.Error{
		Class: connectors.ClassData,
		Err:   fmt.Errorf("%s: no valid %s data near byte %d of the file, byte %d of its content: %w", m.f.Name(), m.codec, at, m.content, err),
		Hint:  "the records before it were read; is the file damaged, or compressed in another way?",
	}
}

func (m *members) more() (bool, error) {
	st, err := m.f.Stat()
	if err != nil {
		return false, err
	}
	size, at := st.Size(), m.in.at.Load()
	switch {
	case size < at:
		return false, gap(fmt.Errorf("%s was truncated to %d bytes, %d of which had been read", m.f.Name(), size, at))
	case size == at:
		return false, nil
	case m.torn && (size-at) < (at-m.begun.file)/8 && size != m.seen:
		m.seen = size
		return false, nil
	}
	// What was made of the unfinished member is made once more and left out.
	m.content = m.begun.content
	m.in.at.Store(m.begun.file)
	m.torn = false
	if m.z == nil {
		return true, nil
	}
	if err := m.z.Reset(&m.in); err != nil {
		return false, m.failed(err)
	}
	return true, nil
}

func (m *members) left() int64 {
	st, err := m.f.Stat()
	if err != nil {
		return -1
	}
	return max(st.Size()-m.in.at.Load(), 0)
}

func (*members) stop() {}

func (m *members) close() {
	if m.z != nil {
		_ = m.z.Close() // nothing is written
	}
}
