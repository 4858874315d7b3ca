package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// letters appends dead letters to a file that several partitions, and several
// processes, write to: each Write is whole records under the file's lock, and
// durable when it returns. What was written is never taken back, so that a letter
// can be there twice, under the same id.
type letters struct {
	claim  connectors.Claim
	path   string
	enc    *encoder
	buf    []byte
	closed atomic.Bool
}

// TakesLetters says why this file cannot hold the dead letters of a route with the
// given output; nil if it can. The decoder asks it, and openLetters once more.
func (c *Config) TakesLetters(output any) *route.ConfigError {
	refuse := func(field, what, hint string) *route.ConfigError {
		return &route.ConfigError{Field: "file." + field, Msg: "cannot hold dead letters: " + what, Hint: hint}
	}
	codec, _ := codecOf(c.Compression, c.Path) // one that is none is refused elsewhere
	switch out, ok := output.(*Config); {
	case c.NameBy == "source_position":
		return refuse("name_by", "parts are named after all records of a range", "leave name_by out")
	case codec != codecNone:
		return refuse("compression", "several writers cannot share a compressed file", "leave compression out, and .gz, .zst and .lz4")
	case c.format() == formatCSV:
		return refuse("format", "csv has no place for what went wrong", "use format: normal, which keeps metadata")
	case ok && out.NameBy != "source_position" && !isStdout(c.Path) && absolute(c.Path) == absolute(out.Path):
		return refuse("path", "the route appends its records to it", "give the dlq a file of its own")
	}
	return nil
}

func (s *sink) openLetters(claim connectors.Claim, spec *route.Spec) (connectors.Writer, error) {
	if err := s.cfg.TakesLetters(spec.Output.Config); err != nil {
		return nil, connectors.Permanent(fmt.Errorf("file sink: %s: %w", s.cfg.Path, err), "")
	}
	enc, err := newEncoder(s.cfg, claim)
	if err != nil {
		return nil, err
	}
	return &letters{claim: claim, path: s.target(claim.Partition), enc: enc}, nil
}

// Write implements connectors.PlainWriter. Letters are rare: the file is opened for
// each write, so that it may be taken away in between.
func (w *letters) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if w.closed.Load() {
		return os.ErrClosed
	}
	if err := ctx.Err(); err != nil || i >= j {
		return err
	}
	if err := w.claim.Gate(); err != nil {
		return fmt.Errorf("file sink: %s: %w", w.path, err)
	}
	if _, err := os.Lstat(sidecar(w.path)); err == nil {
		// Its lock is held for as long as the route runs, which may be this one.
		return connectors.Permanent(fmt.Errorf("file sink: %s cannot hold dead letters: a route appends its records to it", w.path), "give the dlq a file of its own")
	}
	var refused *connectors.RowsError
	// Room for the delimiter of a record that somebody did not finish.
	w.buf = append(w.buf[:0], w.enc.delimiter)
	if w.buf, refused = w.enc.appendAll(w.buf, b, i, j); len(w.buf) > 1 {
		if err := w.append(ctx, w.buf); err != nil {
			return classify(fmt.Errorf("file sink: route %s partition %s: append to %s: %w", w.claim.Route, w.claim.Partition.ID, w.path, err))
		}
	}
	if cap(w.buf) > 4*writeBytes {
		w.buf = nil
	}
	if refused != nil {
		return refused
	}
	return nil
}

// append writes p behind the end of the file; its first byte, a delimiter, only if
// the file does not end with one.
func (w *letters) append(ctx context.Context, p []byte) (err error) {
	f, created, err := openLetterFile(w.path)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	for {
		ok, err := tryLock(f)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		if err := pause(ctx, lockPoll); err != nil {
			return fmt.Errorf("waiting for its lock: %w", err)
		}
		if w.closed.Load() {
			return os.ErrClosed
		}
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	whole := st.Size() == 0
	if !whole {
		var last [1]byte
		if _, err := f.ReadAt(last[:], st.Size()-1); err != nil {
			return err
		}
		whole = last[0] == p[0]
	}
	if whole {
		p = p[1:]
	}
	if _, err := f.Write(p); err != nil {
		// A full disk: the half of a record helps nobody.
		return errors.Join(err, f.Truncate(st.Size()))
	}
	hook.At("append.written")
	if err := datasync(f); err != nil {
		return err
	}
	if created {
		return syncDir(filepath.Dir(w.path))
	}
	return nil
}

func openLetterFile(path string) (f *os.File, created bool, err error) {
	const flags = os.O_RDWR | os.O_APPEND
	f, err = os.OpenFile(path, flags, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, false, err
		}
		f, err = os.OpenFile(path, flags|os.O_CREATE, 0o644)
		created = true
	}
	return f, created, err
}

// Close implements connectors.Writer.
func (w *letters) Close() error {
	w.closed.Store(true)
	return nil
}
