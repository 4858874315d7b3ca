package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
)

// isPipe reports whether a path names something that is read once and in order:
// standard input, or a named pipe that is there by now.
func isPipe(path string) bool {
	if isStdin(path) {
		return true
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

func isStdin(path string) bool { return path == "-" || filepath.Clean(path) == "/dev/stdin" }

// openPipe opens what isPipe named. It does not wait for a writer. A named pipe ends
// with its last writer, unless it is followed: then it is open for writing too, so
// that it goes on with the writers that come later, instead of taking in what they
// write and nobody reads. Standard input is duplicated, so that closing it leaves
// that of the process alone.
func openPipe(path string, follow bool) (*os.File, error) {
	if !isStdin(path) {
		mode := os.O_RDONLY
		if follow {
			mode = os.O_RDWR
		}
		f, err := os.OpenFile(path, mode|unix.O_NONBLOCK, 0)
		switch {
		case follow && errors.Is(err, fs.ErrPermission):
			return nil, connectors.Permanent(fmt.Errorf("file source: %w", err),
				"a named pipe that is followed is opened for writing as well, so that it does not end with its first writer: give the user that mqb runs as access to it, or set exit_on_empty")
		case err != nil:
			return nil, classify(fmt.Errorf("file source: %w", err))
		}
		return f, nil
	}
	fd, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("file source: standard input: %w", err), "is it closed?")
	}
	return os.NewFile(uintptr(fd), "standard input"), nil
}

// pipe is the content of a pipe, or what a decompressor makes of it. It waits in
// poll(2) and not in a read, so that it can be stopped without changing the flags
// of a standard input that it shares with others.
type pipe struct {
	f     *os.File
	codec codec
	z     decompressor
	taken int64

	wake, woken *os.File // closing wake ends a wait
}

func newPipe(f *os.File, c codec) (*pipe, error) {
	p := &pipe{f: f, codec: c}
	var err error
	p.woken, p.wake, err = os.Pipe()
	return p, err
}

func (p *pipe) Read(b []byte) (int, error) {
	if p.codec == codecNone {
		return p.raw(b)
	}
	if p.z == nil {
		z, err := newDecompressor(p.codec, rawPipe{p})
		if err != nil {
			return 0, p.failed(err)
		}
		p.z = z
	}
	n, err := p.z.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = p.failed(err)
	}
	return n, err
}

// rawPipe is a pipe without decompression.
type rawPipe struct{ *pipe }

func (p rawPipe) Read(b []byte) (int, error) { return p.raw(b) }

func (p *pipe) raw(b []byte) (int, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}, {Fd: int32(p.woken.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return 0, fmt.Errorf("poll: %w", err)
		}
		if fds[1].Revents != 0 {
			return 0, os.ErrClosed
		}
		n, err := unix.Read(int(p.f.Fd()), b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		p.taken += int64(n)
		return n, nil
	}
}

func (p *pipe) failed(err error) error {
	what := fmt.Errorf("%s: no valid %s data near byte %d: %w", p.f.Name(), p.codec, p.taken, err)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		what = fmt.Errorf("%s: the %s data is cut off at byte %d", p.f.Name(), p.codec, p.taken)
	}
	return &connectors.Error{Class: connectors.ClassData, Err: what, Hint: "the records before it were read"}
}

func (*pipe) more() (bool, error) { return false, nil }
func (*pipe) left() int64         { return -1 }
func (p *pipe) stop()             { _ = p.wake.Close() }

func (p *pipe) close() {
	_ = p.woken.Close()
	if p.z != nil {
		_ = p.z.Close()
	}
}
