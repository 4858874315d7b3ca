package file

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
)

// appendState is what the checkpoint record holds about the file
// (docs/protocol.md, append). What stands in the file behind Length was not
// committed, and the next run takes it back.
type appendState struct {
	V int `json:"v"`
	// Path is a hash of the path: the state of another path is that of an output
	// which the route had before.
	Path   string `json:"path"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Length int64  `json:"length"`
	Codec  codec  `json:"compression,omitempty"`
	// Open: the last record has no delimiter, since the file was found so.
	Open bool `json:"open,omitempty"`
	// Columns is the fingerprint of the columns of csv.
	Columns string `json:"columns,omitempty"`
}

// appender writes to the end of one file, which it holds locked. All but Close
// belongs to one goroutine.
type appender struct {
	sink  *sink
	claim connectors.Claim
	path  string
	codec codec
	sync  bool // fsync is not off

	f     *os.File
	stat  unix.Stat_t // device and inode
	enc   *encoder
	open  bool  // the file ends inside a record
	dirty bool  // written since the last sync
	fresh bool  // the file's name may not be durable
	broke error // the file is not as we know it: nothing is written any more

	buf []byte
	// length is the file's, as far as we wrote it. While a member is being made, it
	// belongs to the packer.
	length int64
	pushed int64 // bytes whose write-back was asked for
	packer *packer
	member *member // nil between two of them

	mu     sync.Mutex
	closed bool
}

var (
	_ connectors.StatefulWriter = (*appender)(nil)
	_ connectors.Paced          = (*appender)(nil)
)

// CommitEvery implements connectors.Paced.
func (w *appender) CommitEvery() time.Duration { return w.sink.cfg.commitEvery() }

// Write implements connectors.PlainWriter. What it wrote is there for readers when
// it returns, if it is not compressed, and durable after State. After an error the
// file is as it was before the call, a *connectors.RowsError included, or the writer
// is of no use any more.
func (w *appender) Write(ctx context.Context, b *message.Batch, i, j int) error {
	if err := w.usable(ctx); err != nil {
		return err
	}
	if i >= j {
		return nil
	}
	// The last look before bytes that a reader can see (invariant 1: at a T2 sink a
	// late write is cut off by the next owner, but need not be made).
	if err := w.claim.Gate(); err != nil {
		return fmt.Errorf("file sink: %s: %w", w.path, err)
	}
	var from int64
	if w.packer == nil {
		if err := w.unchanged(); err != nil {
			return err
		}
		from = w.length
	}
	open, headed := w.open, w.enc.headed()
	refused, err := w.encode(b, i, j)
	if err != nil {
		if err != w.broke {
			err = w.failed("write", err)
			w.undo(from, open, headed, err)
		}
		return err
	}
	hook.At("append.written")
	if refused != nil {
		return refused
	}
	return nil
}

func (w *appender) encode(b *message.Batch, i, j int) (refused *connectors.RowsError, err error) {
	at, headed := len(w.buf), w.enc.headed()
	if w.open {
		// The record that the file ended with is somebody else's; ours is not joined to it.
		w.buf = append(w.buf, w.enc.delimiter)
	}
	if block := w.enc.block(b, i, j); block != nil {
		w.open = false
		return nil, w.putBlock(block)
	}
	if w.buf, refused = w.enc.appendAll(w.buf, b, i, j); refused != nil {
		w.buf = w.buf[:at]
		if !headed {
			w.enc.startFile()
		}
		return refused, nil
	}
	w.open = false
	if len(w.buf) >= writeBytes || w.packer == nil {
		return nil, w.flush()
	}
	return nil, nil
}

func (w *appender) putBlock(block []byte) error {
	if w.packer == nil {
		if err := w.flush(); err != nil {
			return err
		}
		return w.put(block)
	}
	// The packer is still at it when the block belongs to somebody else again.
	for len(block) > 0 {
		n := min(len(block), max(writeBytes-len(w.buf), 0))
		w.buf = append(w.buf, block[:n]...)
		if block = block[n:]; len(w.buf) >= writeBytes {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes the buffer, or hands it to the packer.
func (w *appender) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if w.packer == nil {
		err := w.put(w.buf)
		w.buf = w.buf[:0]
		return err
	}
	if w.member == nil {
		if err := w.unchanged(); err != nil {
			return err
		}
		w.member = newMember(tail{w})
	}
	w.dirty = true
	buf, err := w.packer.write(w.member, w.buf)
	w.buf = buf
	return err
}

// put writes p at the end of the file.
func (w *appender) put(p []byte) error {
	w.dirty = true
	_, err := tail{w}.Write(p)
	return err
}

// tail is the end of the file as an io.Writer.
type tail struct{ w *appender }

func (t tail) Write(p []byte) (int, error) {
	w := t.w
	n, err := w.f.WriteAt(p, w.length)
	w.length += int64(n)
	if err == nil && w.length-w.pushed >= flushBytes {
		// Whole pages only: the next write fills up the last one.
		end := w.length &^ (64<<10 - 1)
		startWriteback(w.f, w.pushed, end-w.pushed)
		w.pushed = end
	}
	return n, err
}

// undo takes back what a failed Write has written, so that it can be tried again.
// Compressed bytes cannot be told apart any more.
func (w *appender) undo(length int64, open, headed bool, cause error) {
	w.buf = w.buf[:0]
	if w.packer != nil || w.f.Truncate(length) != nil {
		_ = w.breaks(cause)
		return
	}
	w.length, w.open = length, open
	if !headed {
		w.enc.startFile()
	}
}

// State implements connectors.StatefulWriter: it ends the member, waits for the
// disk (fsync) and says where the file ends. The record then moves over what is
// durable and over nothing else (invariant 2).
func (w *appender) State(ctx context.Context) ([]byte, error) {
	if err := w.usable(ctx); err != nil {
		return nil, err
	}
	if err := w.flush(); err != nil {
		return nil, w.breaks(w.failed("write", err))
	}
	if w.member != nil {
		err := w.packer.end(w.member)
		if err == nil {
			err = w.packer.wait(w.member)
		}
		if w.member = nil; err != nil {
			return nil, w.breaks(w.failed("compress", err))
		}
	}
	if err := w.unchanged(); err != nil {
		return nil, err
	}
	if err := w.inPlace(); err != nil {
		return nil, err
	}
	if w.sync && w.dirty {
		// After a failed sync nobody knows what the disk has: the next run cuts it off.
		if err := datasync(w.f); err != nil {
			return nil, w.breaks(w.failed("fsync", err))
		}
	}
	if w.sync && w.fresh {
		if err := syncDir(filepath.Dir(w.path)); err != nil {
			return nil, w.failed("fsync directory", err)
		}
	}
	w.dirty, w.fresh = false, false
	hook.At("append.synced")
	st := appendState{V: 1, Path: hashOf(w.path), Codec: w.codec, Device: uint64(w.stat.Dev), Inode: w.stat.Ino, Length: w.length, Open: w.open}
	if w.enc.csv != nil {
		st.Columns = w.enc.csv.fingerprint()
	}
	return json.Marshal(st)
}

// Close implements connectors.Writer. The file stays as it is: what was not
// committed is cut off by the next run.
func (w *appender) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if w.packer != nil {
		w.packer.close()
	}
	if w.f == nil {
		return nil
	}
	return w.f.Close() // and with it the lock
}

func (w *appender) usable(ctx context.Context) error {
	if w.broke != nil {
		return w.broke
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	return ctx.Err()
}

// breaks makes the writer useless, because of err. What would be tried again has to
// be tried by another run, which opens the file anew: the way to it is broken.
func (w *appender) breaks(err error) error {
	if w.broke = err; connectors.Classify(err) == connectors.ClassRetryable {
		w.broke = connectors.Connection(err)
	}
	return err
}

// unchanged looks whether the file is as long as we made it. Writing at the end we
// know of would leave a hole of NULs in a file that was cut, and would overwrite
// what another program has appended.
func (w *appender) unchanged() error {
	st, err := w.f.Stat()
	if err != nil {
		return w.failed("stat", err)
	}
	if size := st.Size(); size != w.length {
		return w.breaks(connectors.Permanent(
			fmt.Errorf("file sink: route %s partition %s: another program changes %s: it has %d bytes, and %d were written", w.claim.Route, w.claim.Partition.ID, w.path, size, w.length),
			"a file that a route appends to belongs to it; give the other program a file of its own"))
	}
	return nil
}

// inPlace looks whether the path still leads to the file: what goes to one that was
// moved away is not where it is looked for.
func (w *appender) inPlace() error {
	var st unix.Stat_t
	err := unix.Stat(w.path, &st)
	if err == nil && st.Dev == w.stat.Dev && st.Ino == w.stat.Ino {
		return nil
	}
	return w.breaks(connectors.Permanent(
		fmt.Errorf("file sink: route %s partition %s: %s was moved away or deleted while the route appended to it", w.claim.Route, w.claim.Partition.ID, w.path),
		"put it back; for files that are taken away use name_by: source_position"))
}

func (w *appender) failed(op string, err error) error {
	return classify(fmt.Errorf("file sink: route %s partition %s: %s %s: %w", w.claim.Route, w.claim.Partition.ID, op, w.path, err))
}
