package file

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
)

// headBytes is how much of a file's beginning belongs to its identity: enough
// to tell a file that was written anew from one that grew.
const headBytes = 4 << 10

// identity says which file it is: "v1:<device>:<inode>:<head length>:<head hash>".
// The device is "-" on shared storage, where each node has its own number for it.
type identity struct {
	dev, inode string
	headLen    int64
	headHash   string
}

func (id identity) String() string {
	return fmt.Sprintf("v1:%s:%s:%d:%s", id.dev, id.inode, id.headLen, id.headHash)
}

func parseIdentity(s string) (id identity, err error) {
	f := strings.Split(s, ":")
	if len(f) != 5 || f[0] != "v1" {
		return id, fmt.Errorf("%w: source identity %q is not that of a file", checkpoint.ErrForeign, s)
	}
	id.dev, id.inode, id.headHash = f[1], f[2], f[4]
	if _, err := fmt.Sscanf(f[3], "%d", &id.headLen); err != nil || id.headLen < 0 || id.headLen > headBytes {
		return id, fmt.Errorf("%w: source identity %q is not that of a file", checkpoint.ErrForeign, s)
	}
	return id, nil
}

// identify reads the identity of an open file, its head cut to at most n bytes.
func identify(f *os.File, shared bool, n int64) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	id := identity{dev: fmt.Sprint(st.Dev), inode: fmt.Sprint(st.Ino)}
	if shared {
		id.dev = "-"
	}
	head := make([]byte, n)
	k, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return identity{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	h := fnv.New64a()
	h.Write(head[:k])
	id.headLen, id.headHash = int64(k), fmt.Sprintf("%016x", h.Sum64())
	return id, nil
}

// verify checks that f is the file that was recorded: the same inode, beginning
// with the same bytes. ErrGap if not.
func verify(f *os.File, recorded identity, shared bool) error {
	now, err := identify(f, shared, recorded.headLen)
	if err != nil {
		return err
	}
	switch {
	case now.inode != recorded.inode, now.dev != recorded.dev && now.dev != "-" && recorded.dev != "-":
		return gap(fmt.Errorf("%s is another file than the one that was read so far (inode %s:%s, now %s:%s)",
			f.Name(), recorded.dev, recorded.inode, now.dev, now.inode))
	case now.headLen < recorded.headLen:
		return gap(fmt.Errorf("%s was truncated: it has %d bytes, fewer than its first %d that were seen before", f.Name(), now.headLen, recorded.headLen))
	case now.headHash != recorded.headHash:
		return gap(fmt.Errorf("%s was written anew: its first %d bytes have changed", f.Name(), recorded.headLen))
	}
	return nil
}

// atNewEnd notes that the end was reached, and learns more of the file's head where
// it was not all there when the run began: a file that was empty then is like any
// other that is emptied and filled again.
func (r *reader) atNewEnd() error {
	if r.ended {
		return nil
	}
	r.ended = true
	if r.id.inode == "" || r.id.headLen == headBytes {
		return nil
	}
	if err := verify(r.f, r.id, r.src.shared); err != nil {
		return err
	}
	id, err := identify(r.f, r.src.shared, headBytes)
	if err != nil {
		return r.failed("identify", err)
	}
	r.id = id
	return nil
}

// replaced looks whether the path leads to another file by now. The one we hold
// was read to its end; the other one cannot be read under the same position.
func (r *reader) replaced() error {
	there, err := os.Stat(r.f.Name())
	if err != nil {
		return nil // deleted: what we hold is all there was
	}
	ours, err := r.f.Stat()
	if err != nil {
		return r.failed("stat", err)
	}
	if !os.SameFile(ours, there) {
		return gap(fmt.Errorf("%s was replaced by another file, of which nothing has been read; the old one was read to its end (record %d, byte %d)", r.f.Name(), r.at.Record, r.at.Offset))
	}
	return nil
}

func gap(err error) error {
	return &connectors.Error{
		Class: connectors.ClassGap,
		Err:   fmt.Errorf("%w: %w", connectors.ErrGap, err),
		Hint: "put the original file back, or give the new one another name, or reset the position of this partition " +
			"to accept that records are missing",
	}
}
