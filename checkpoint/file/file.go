// Package file keeps checkpoint records in a directory, one directory a record
// and one immutable file a version. It takes no lock: a stopped process would keep
// one until it dies. Instead a version is a name that link(2) gives to one writer
// only, which holds on a directory that several machines mount as well.
package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/hook"
)

// kept is how many versions of a record stay, for people. Only the newest counts.
const kept = 3

// Store implements checkpoint.Store.
//
// A write of version n is: a temporary file, flushed; link(2) to the name n, which
// fails if it is there; the directory flushed; and a look at the directory, since
// old names are removed and a writer that slept for long could link one anew. A
// name above its own tells it that it is fenced (invariant 1). What it linked lies
// below the newest version, where nobody reads it, so it does no harm if the
// writer dies before the look.
type Store struct {
	root string
}

var _ checkpoint.Store = (*Store)(nil)

// Open makes the directory that a file:// URL names if it is not there, and tries
// whether the file system links and flushes as the store needs it.
func Open(_ context.Context, rawURL string) (*Store, error) {
	root, err := directory(rawURL)
	if err != nil {
		return nil, err
	}
	if err := mkdir(root); err != nil {
		return nil, fmt.Errorf("checkpoint store file://%s: %w", root, err)
	}
	if err := probe(root); err != nil {
		return nil, fmt.Errorf("checkpoint store file://%s: the file system cannot hold it: %w", root, err)
	}
	return &Store{root: root}, nil
}

// probe fails on file systems without exclusive hard links or directory sync.
func probe(root string) (err error) {
	f, err := os.CreateTemp(root, ".probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := f.Close(); err != nil {
		return err
	}
	other := f.Name() + "-link"
	if err := os.Link(f.Name(), other); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(other)) }()
	if err := os.Link(f.Name(), other); !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("a second link to one name: %v, want %w", err, fs.ErrExist)
	}
	return syncDir(root)
}

// loadTries bounds the race of a read against writers that remove the version it
// is about to open: each one means that three newer ones were written.
const loadTries = 64

// Load implements checkpoint.Store.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	if err := ctx.Err(); err != nil {
		return checkpoint.Record{}, err
	}
	dir := s.path(key)
	// A name that is seen need not be on the disk yet: its writer may have died
	// between link and sync. Nobody may build on it, or take it for its own
	// success, before it is.
	if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return checkpoint.Record{}, fmt.Errorf("load %s: %w", key, err)
	}
	rec, err := read(dir)
	if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
		err = fmt.Errorf("load %s: %w", key, err)
	}
	return rec, err
}

// read reads the newest version and no other: one that is torn is ErrRegressed.
func read(dir string) (checkpoint.Record, error) {
	for range loadTries {
		now, err := scan(dir)
		if err != nil {
			return checkpoint.Record{}, err
		}
		if now.newest() == 0 {
			return checkpoint.Record{}, checkpoint.ErrNotFound
		}
		body, err := os.ReadFile(filepath.Join(dir, versionName(now.newest())))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile: there are newer ones
		}
		if err != nil {
			return checkpoint.Record{}, err
		}
		rec, err := checkpoint.Decode(body)
		if err == nil && checkpoint.Fenced && rec.Version != now.newest() {
			err = fmt.Errorf("%w: the record in %s says version %d", checkpoint.ErrRegressed, versionName(now.newest()), rec.Version)
		}
		return rec, err
	}
	return checkpoint.Record{}, fmt.Errorf("not read in %d tries: somebody keeps writing", loadTries)
}

// Swap implements checkpoint.Store.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 || rec.Version > math.MaxInt64 {
		return fmt.Errorf("swap %s: version %d cannot follow version %d", key, rec.Version, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = s.swap(s.path(key), expected, body)
	}
	if err != nil && !errors.Is(err, checkpoint.ErrConflict) {
		err = fmt.Errorf("swap %s: %w", key, err)
	}
	return err
}

func (s *Store) swap(dir string, expected uint64, body []byte) error {
	if expected == 0 {
		if err := s.mkdirs(dir); err != nil {
			return err
		}
	}
	now, err := scan(dir)
	if err != nil {
		return err
	}
	// Only to fail early; what counts comes with and after the link.
	if err := now.compare(expected); err != nil {
		return err
	}
	hook.At("checkpoint.file.compared")
	next := expected + 1
	if !checkpoint.Fenced {
		next = now.newest() + 1
	}
	temp, err := write(dir, next, body)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // a leftover is removed by a later writer
	hook.At("checkpoint.file.written")
	if err := link(temp, filepath.Join(dir, versionName(next))); err != nil {
		// A temporary file is missing when a writer of its version, or of a later
		// one, removed it: not a failure but a conflict.
		if now, scanErr := scan(dir); errors.Is(err, fs.ErrNotExist) && scanErr == nil {
			return cmp.Or(now.compare(expected), err)
		}
		return err
	}
	hook.At("checkpoint.file.linked")
	if err := syncDir(dir); err != nil {
		return err
	}
	hook.At("checkpoint.file.synced")
	now, err = scan(dir)
	if err != nil {
		return err
	}
	defer now.prune(dir)
	switch {
	case !checkpoint.Fenced:
	case now.newest() > next:
		return checkpoint.ErrConflict
	case expected > 0 && !slices.Contains(now.versions, expected):
		// Nobody removes the version below the newest.
		return fmt.Errorf("%w: version %d vanished", checkpoint.ErrRegressed, expected)
	}
	return nil
}

// write makes a flushed temporary file for a version.
func write(dir string, version uint64, body []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, tempPattern(version))
	if err != nil {
		return "", err
	}
	_, err = f.Write(body)
	if err == nil {
		// CreateTemp's mode would keep other users' mqbctl from reading.
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// link gives temp the name target, ErrConflict if that is another file's.
func link(temp, target string) error {
	err := os.Link(temp, target)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	// An NFS client repeats a call whose reply was lost, and meets its own link.
	mine, errMine := os.Stat(temp)
	theirs, errTheirs := os.Stat(target)
	if errMine == nil && errTheirs == nil && os.SameFile(mine, theirs) {
		return nil
	}
	return checkpoint.ErrConflict
}

// List implements checkpoint.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	var out []checkpoint.Entry
	err := walkKeys(s.root, func(key, dir string) error {
		if err := ctx.Err(); err != nil || !strings.HasPrefix(key, prefix) {
			return err
		}
		rec, err := read(dir)
		switch {
		case errors.Is(err, checkpoint.ErrNotFound):
			return nil
		case err != nil && !errors.Is(err, checkpoint.ErrRegressed) && !errors.Is(err, checkpoint.ErrForeign):
			return err
		}
		out = append(out, checkpoint.Entry{Key: key, Record: rec, Err: err})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	slices.SortFunc(out, func(a, b checkpoint.Entry) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// Identity implements checkpoint.Store.
func (s *Store) Identity() string { return "file://" + s.root }

// Close does nothing: nothing is kept open between calls.
func (s *Store) Close() error { return nil }
