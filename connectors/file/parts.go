package file

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

const (
	// writeBytes is the size of a write; larger blocks are written as they come.
	writeBytes = 256 << 10
	// directBytes is from where on a block is written without being copied first.
	directBytes = 64 << 10
	// flushBytes is how much may be dirty before the kernel is asked to begin
	// writing, so that the fsync at the end of a part finds little left to do.
	flushBytes = 8 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parts is the PartWriter of one run. Stage, Seal, OpenPart and Abort belong to
// one goroutine, Publish, Exists and Covered to another; Close may come from any.
type parts struct {
	sink    *sink
	claim   connectors.Claim
	spec    *route.Spec
	dir     string
	key     string // "<source>-<number>"
	covered []connectors.Range
	codec   codec

	enc *encoder
	// packer compresses; nil without compression. Made for the first part.
	packer *packer

	// Of the staging goroutine: bytes of the open part that were not written
	// yet, and the number of spools so far.
	buf    []byte
	spools int

	mu     sync.Mutex
	open   *spool
	sealed map[string]*spool // by name of the part
	closed bool
}

// spool is a part in the making: a hidden file in the same directory. Its file is
// written by the goroutine that stages or, compressed, by the packer's.
type spool struct {
	f       *os.File
	records int64
	bytes   int64  // before compression
	crc     uint32 // before compression, which may come out differently
	member  *member
	stored  int64 // bytes in the file
	pushed  int64 // bytes whose write-back was asked for
}

// Stage implements connectors.PartWriter. After an error the open part is gone;
// a *connectors.RowsError (a payload that the format cannot hold) leaves it as it
// was before the call.
func (w *parts) Stage(ctx context.Context, b *message.Batch, i, j int) error {
	if err := ctx.Err(); err != nil || i >= j {
		return err
	}
	sp, err := w.current()
	if err != nil {
		return err
	}
	if block := w.enc.block(b, i, j); block != nil {
		err = w.write(sp, block)
	} else {
		at, headed := len(w.buf), w.enc.headed()
		var refused *connectors.RowsError
		if w.buf, refused = w.enc.appendAll(w.buf, b, i, j); refused != nil {
			w.buf = w.buf[:at]
			if !headed {
				w.enc.startFile()
			}
			return refused
		}
		if len(w.buf) >= writeBytes {
			err = w.flush(sp)
		}
	}
	if err != nil {
		_ = w.Abort()
		return w.failed("write part", err)
	}
	sp.records += int64(j - i)
	hook.At("part.staged")
	return nil
}

// current returns the open part, opening one if needed.
func (w *parts) current() (*spool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, os.ErrClosed
	}
	if w.open != nil {
		return w.open, nil
	}
	w.spools++
	name := filepath.Join(w.dir, spoolName(w.key, w.claim.Epoch, w.claim.Run, w.spools))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, w.failed("create spool", err)
	}
	sp := &spool{f: f}
	if w.codec != codecNone {
		if w.packer == nil {
			if w.packer, err = newPacker(w.codec); err != nil {
				discard(sp)
				return nil, w.failed("compress", err)
			}
		}
		sp.member = newMember(sp)
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, writeBytes+directBytes)
	}
	w.buf = w.buf[:0]
	w.enc.startFile()
	w.open = sp
	return w.open, nil
}

// write appends p to the part, through the buffer when it is small.
func (w *parts) write(sp *spool, p []byte) error {
	if sp.member != nil {
		// The packer is still at it when p belongs to somebody else again.
		for len(p) > 0 {
			n := min(len(p), max(writeBytes-len(w.buf), 0))
			w.buf = append(w.buf, p[:n]...)
			if p = p[n:]; len(w.buf) >= writeBytes {
				if err := w.flush(sp); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if len(p) < directBytes {
		w.buf = append(w.buf, p...)
		if len(w.buf) < writeBytes {
			return nil
		}
		return w.flush(sp)
	}
	if err := w.flush(sp); err != nil {
		return err
	}
	return sp.take(p)
}

func (w *parts) flush(sp *spool) error {
	if len(w.buf) == 0 {
		return nil
	}
	if sp.member == nil {
		err := sp.take(w.buf)
		w.buf = w.buf[:0]
		return err
	}
	sp.count(w.buf)
	buf, err := w.packer.write(sp.member, w.buf)
	w.buf = buf
	return err
}

func (sp *spool) count(p []byte) {
	sp.crc = crc32.Update(sp.crc, castagnoli, p)
	sp.bytes += int64(len(p))
}

func (sp *spool) take(p []byte) error {
	sp.count(p)
	_, err := sp.Write(p)
	return err
}

// Write writes to the file.
func (sp *spool) Write(p []byte) (int, error) {
	n, err := sp.f.Write(p)
	sp.stored += int64(n)
	if err == nil && sp.stored-sp.pushed >= flushBytes {
		// Whole pages only: the next write fills up the last one.
		end := sp.stored &^ (64<<10 - 1)
		startWriteback(sp.f, sp.pushed, end-sp.pushed)
		sp.pushed = end
	}
	return n, err
}

// OpenPart implements connectors.PartWriter.
func (w *parts) OpenPart() (records, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		return 0, 0
	}
	return w.open.records, w.open.bytes + int64(len(w.buf))
}

// Seal implements connectors.PartWriter. A part without records is an empty
// file: its range is covered all the same.
func (w *parts) Seal(_ context.Context, from, end message.Position, name string) (checkpoint.Intent, error) {
	first, last, err := w.bounds(from, end)
	if err != nil {
		return checkpoint.Intent{}, err
	}
	if name == "" {
		name = partName(partStem+w.key+"-", first, last, w.sink.ext())
	} else if filepath.Base(name) != name {
		return checkpoint.Intent{}, connectors.Permanent(fmt.Errorf("file sink: %q is no name of a part", name), "")
	}
	sp, err := w.current()
	if err != nil {
		return checkpoint.Intent{}, err
	}
	if err := w.flush(sp); err != nil {
		_ = w.Abort()
		return checkpoint.Intent{}, w.failed("write part", err)
	}
	if sp.member == nil {
		startWriteback(sp.f, sp.pushed, sp.stored-sp.pushed)
	} else if err := w.packer.end(sp.member); err != nil {
		_ = w.Abort()
		return checkpoint.Intent{}, w.failed("compress part", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return checkpoint.Intent{}, os.ErrClosed
	}
	w.open = nil
	if old := w.sealed[name]; old != nil {
		discard(old)
	}
	w.sealed[name] = sp
	hook.At("part.sealed")
	return checkpoint.Intent{
		From: from, End: end, First: first, Last: last, Name: name,
		Records: sp.records, Bytes: sp.bytes, Digest: fmt.Sprintf("crc32c:%08x", sp.crc),
	}, nil
}

// bounds is the inclusive range of records between two positions.
func (w *parts) bounds(from, end message.Position) (first, last int64, err error) {
	ok := true
	if !from.IsZero() {
		first, ok = from.Number()
	}
	last, ok2 := end.Number()
	if last--; !ok || !ok2 || last < first {
		return 0, 0, connectors.Permanent(fmt.Errorf("file sink: partition %s: positions %q to %q are no range of records", w.claim.Partition.ID, from.Sort, end.Sort), "")
	}
	return first, last, nil
}

// Publish implements connectors.PartWriter. The content is durable before its
// name is, and the name before Publish returns.
func (w *parts) Publish(ctx context.Context, in checkpoint.Intent) error {
	hook.At("part.before-publish")
	w.mu.Lock()
	sp := w.sealed[in.Name]
	w.mu.Unlock()
	if sp == nil {
		// Another owner may have finished it.
		there, err := w.Exists(ctx, in)
		if err == nil && !there {
			err = w.failed("publish", fmt.Errorf("part %s was not sealed by this run", in.Name))
		}
		return err
	}
	if sp.member != nil {
		if err := w.packer.wait(sp.member); err != nil {
			w.drop(in.Name, sp)
			return w.failed("compress part "+in.Name, err)
		}
	}
	if err := sp.f.Sync(); err != nil {
		w.drop(in.Name, sp)
		return w.failed("fsync part "+in.Name, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// The last look before the step that cannot be taken back (invariant 1: at a
	// T2 sink a late one changes nothing, but need not be made).
	if err := w.claim.Gate(); err != nil {
		return fmt.Errorf("file sink: part %s: %w", in.Name, err)
	}
	hook.At("part.before-link")
	final := filepath.Join(w.dir, in.Name)
	err := createAs(sp.f.Name(), final)
	switch {
	case errors.Is(err, fs.ErrExist):
		// A part with this name holds this range already, ours or an earlier
		// run's under the same intent.
		if st, serr := os.Lstat(final); serr == nil && sp.member == nil && st.Size() != in.Bytes && w.claim.Log != nil {
			w.claim.Log.Warn("a part of this name was there and is kept, but its size differs", "part", in.Name, "there", st.Size(), "ours", in.Bytes)
		}
	case err != nil:
		w.drop(in.Name, sp)
		return w.failed("publish part "+in.Name, err)
	}
	hook.At("part.linked")
	w.drop(in.Name, sp)
	return w.syncDir()
}

// Exists implements connectors.PartWriter. A part that is there may have been
// linked by an owner that died before its name was durable: make it so.
func (w *parts) Exists(_ context.Context, in checkpoint.Intent) (bool, error) {
	if filepath.Base(in.Name) != in.Name {
		return false, connectors.Permanent(fmt.Errorf("file sink: %q is no name of a part", in.Name), "")
	}
	_, err := os.Lstat(filepath.Join(w.dir, in.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, w.failed("look for part "+in.Name, err)
	}
	return true, w.syncDir()
}

// Covered implements connectors.PartWriter.
func (w *parts) Covered() []connectors.Range { return w.covered }

// Abort implements connectors.PartWriter.
func (w *parts) Abort() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open != nil {
		discard(w.open)
		w.open = nil
	}
	return nil
}

// Close implements connectors.Writer. A call that is under way fails.
func (w *parts) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.packer != nil {
		w.packer.close() // nobody writes to the spools from here on
	}
	if w.open != nil {
		discard(w.open)
		w.open = nil
	}
	for name, sp := range w.sealed {
		discard(sp)
		delete(w.sealed, name)
	}
	return nil
}

// drop forgets a sealed part and removes its spool.
func (w *parts) drop(name string, sp *spool) {
	w.mu.Lock()
	if w.sealed[name] == sp {
		delete(w.sealed, name)
	}
	w.mu.Unlock()
	discard(sp)
}

// discard removes a spool. What cannot be removed is left to the next owner,
// which clears the spools of earlier epochs.
func discard(sp *spool) {
	_ = os.Remove(sp.f.Name())
	_ = sp.f.Close()
}

func (w *parts) syncDir() error {
	if err := syncDir(w.dir); err != nil {
		return w.failed("fsync directory", err)
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
