package file

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

// content is the bytes that records are made of: those of a file, what a
// decompressor makes of them, or what comes out of a pipe. Its methods may be
// called by several goroutines at a time.
type content interface {
	// readAt fills p from offset as far as there is content. end says that
	// nothing follows what was read, for now: the next call looks again.
	readAt(ctx context.Context, p []byte, offset int64) (n int, end bool, err error)
	// size is where the content ends as far as is known; exact, that it does end there.
	size() (n int64, exact bool, err error)
	// lines counts the line feeds before offset.
	lines(offset int64) (int64, error)
	// left is how much of the file lies behind offset, in the file's own bytes.
	left(offset int64) int64
	// release lets go of what is before offset: it will not be asked for again.
	release(offset int64)
	// broken is why nothing can be read behind size, nil if it just ends there.
	// final says that nothing more will be written.
	broken(final bool) error
	close()
}

// plain is the content of an uncompressed file. What was released may still be
// read, since it costs nothing to keep.
type plain struct {
	f *os.File
	// Only an error needs the number of a line. Each byte is counted once,
	// however many errors there are.
	counted struct{ offset, lines int64 }
}

func (c *plain) readAt(ctx context.Context, p []byte, offset int64) (int, bool, error) {
	if err := ctx.Err(); err != nil {
		return 0, false, err
	}
	n, err := c.f.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, n < len(p), err
}

func (c *plain) size() (int64, bool, error) {
	st, err := c.f.Stat()
	if err != nil {
		return 0, false, err
	}
	return st.Size(), true, nil
}

func (c *plain) lines(offset int64) (int64, error) {
	if offset < c.counted.offset {
		c.counted.offset, c.counted.lines = 0, 0
	}
	buf := make([]byte, max(0, min(blockBytes, offset-c.counted.offset)))
	for c.counted.offset < offset {
		n, err := c.f.ReadAt(buf[:min(int64(len(buf)), offset-c.counted.offset)], c.counted.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if n == 0 {
			break
		}
		c.counted.lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
		c.counted.offset += int64(n)
	}
	return c.counted.lines, nil
}

func (c *plain) left(offset int64) int64 {
	size, _, err := c.size()
	if err != nil {
		return -1
	}
	return size - offset
}

func (*plain) release(int64)     {}
func (*plain) broken(bool) error { return nil }
func (*plain) close()            {}
