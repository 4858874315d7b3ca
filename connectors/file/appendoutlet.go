package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// stdout is the path that stands for standard output.
const stdout = "-"

func isStdout(path string) bool { return path == stdout || path == "/dev/stdout" }

// isStream reports whether the path leads to something that is written to and not
// kept: standard output, a pipe, a terminal.
func isStream(path string) bool {
	if isStdout(path) {
		return true
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice|fs.ModeSocket) != 0
}

// outlets is what the writers of one sink share: they take turns, and write one header.
type outlets struct {
	turn chan struct{}
	enc  *encoder
	pack compressor
}

// outlet writes to standard output or a pipe. Nothing is known of what becomes of it.
type outlet struct {
	claim  connectors.Claim
	path   string
	shared *outlets
	f      *os.File
	buf    []byte

	once sync.Once
	quit chan struct{}
}

// openOutlet opens a pipe, which waits until somebody reads it.
func (s *sink) openOutlet(ctx context.Context, claim connectors.Claim, spec *route.Spec) (connectors.Writer, error) {
	if spec.RequiredDelivery.Compare(route.AtMostOnce) > 0 && spec.RequiredDelivery != "" {
		return nil, connectors.Permanent(fmt.Errorf("file sink: %s is a pipe or a device, and what becomes of bytes written to one is not known: required_delivery is %s", s.cfg.Path, spec.RequiredDelivery), "write to a file")
	}
	sh, err := s.outlets(claim, spec)
	if err != nil {
		return nil, err
	}
	w := &outlet{claim: claim, path: s.cfg.Path, shared: sh, quit: make(chan struct{})}
	if isStdout(s.cfg.Path) {
		w.f = os.Stdout
		return w, nil
	}
	for {
		w.f, err = os.OpenFile(s.cfg.Path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return w, nil
		}
		if !errors.Is(err, unix.ENXIO) {
			return nil, classify(fmt.Errorf("file sink: route %s partition %s: open: %w", claim.Route, claim.Partition.ID, err))
		}
		if err := pause(ctx, lockPoll); err != nil {
			return nil, fmt.Errorf("file sink: %s: nobody reads the pipe: %w", s.cfg.Path, err)
		}
	}
}

// outlets makes what the writers share, once.
func (s *sink) outlets(claim connectors.Claim, spec *route.Spec) (*outlets, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared != nil {
		return s.shared, nil
	}
	sh := &outlets{turn: make(chan struct{}, 1)}
	var err error
	if sh.enc, err = newEncoder(s.cfg, claim); err != nil {
		return nil, err
	}
	if s.codec != codecNone {
		if sh.pack, err = newCompressor(s.codec); err != nil {
			return nil, err
		}
	}
	s.shared = sh
	return sh, nil
}

// Write implements connectors.PlainWriter.
func (w *outlet) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if i >= j {
		return ctx.Err()
	}
	select {
	case <-w.quit:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case w.shared.turn <- struct{}{}:
	}
	defer func() { <-w.shared.turn }()
	if err := w.claim.Gate(); err != nil {
		return fmt.Errorf("file sink: %s: %w", w.path, err)
	}
	var refused *connectors.RowsError
	block := w.shared.enc.block(b, i, j)
	if block == nil {
		w.buf, refused = w.shared.enc.appendAll(w.buf[:0], b, i, j)
		block = w.buf
	}
	if err := w.put(block); err != nil {
		return fmt.Errorf("file sink: route %s partition %s: write to %s: %w", w.claim.Route, w.claim.Partition.ID, w.path, err)
	}
	if refused != nil {
		return refused
	}
	return nil
}

// put writes p; compressed, as a member of its own, so that each Write is whole.
func (w *outlet) put(p []byte) error {
	if w.shared.pack == nil || len(p) == 0 {
		_, err := w.f.Write(p)
		return err
	}
	w.shared.pack.Reset(w.f)
	if _, err := w.shared.pack.Write(p); err != nil {
		return err
	}
	return w.shared.pack.Close()
}

// Close implements connectors.Writer. Standard output stays open for others.
func (w *outlet) Close() error {
	var err error
	w.once.Do(func() {
		close(w.quit)
		if w.f != os.Stdout {
			err = w.f.Close()
		}
	})
	return err
}
