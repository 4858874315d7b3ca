package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// ends brings together the two things that must be true before a file is deleted:
// it was read to its end, and everything in it is durable (invariant 2). The
// reader says the first, the settler the second.
type ends struct {
	mu      sync.Mutex
	end     place // where the file ended when it was read last
	ended   bool
	settled message.Position
	deleted bool
}

// Settle implements connectors.Reader. A file has nothing to be told, but with
// delete: true that it may go.
func (r *reader) Settle(_ context.Context, p message.Position) error {
	if !r.src.cfg.Delete {
		return nil
	}
	r.ends.mu.Lock()
	defer r.ends.mu.Unlock()
	if p.Compare(r.ends.settled) > 0 {
		r.ends.settled = p
	}
	return r.deleteEnded()
}

// atEnd notes that the file ends at r.at, or that it goes on.
func (r *reader) atEnd(ended bool) {
	if !r.src.cfg.Delete {
		return
	}
	r.ends.mu.Lock()
	defer r.ends.mu.Unlock()
	if r.ends.ended = ended; !ended {
		return
	}
	r.ends.end = r.at
	if err := r.deleteEnded(); err != nil && r.claim.Log != nil {
		r.claim.Log.Warn("a file that was read to its end is still there", "error", err)
	}
}

// deleteEnded deletes the file if it was read and settled to its end, and is
// still the one that was read: nothing was appended to it, and its path leads to
// no other file. r.ends.mu is held.
func (r *reader) deleteEnded() error {
	if n, ok := r.ends.settled.Number(); !ok || !r.ends.ended || n < r.ends.end.Record || r.ends.deleted {
		return nil
	}
	if r.claim.Gate != nil {
		if err := r.claim.Gate(); err != nil {
			return err
		}
	}
	name := r.f.Name()
	ours, err := r.f.Stat()
	if err != nil {
		return r.failed("stat", err)
	}
	there, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return r.failed("stat", err)
	}
	if there.Mode().IsRegular() && os.SameFile(ours, there) && r.content.left(r.ends.end.Offset) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return classify(fmt.Errorf("file source: delete %s: %w", name, err))
		}
		r.ends.deleted = true
		return nil
	}
	if !there.Mode().IsRegular() {
		r.ends.deleted = true
		return &connectors.Error{Class: connectors.ClassPermanent, Err: fmt.Errorf("file source: %s is a link, which is not deleted", name)}
	}
	return nil // it has grown, or is another one: not ours to delete
}
