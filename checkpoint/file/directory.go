package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mqbridge/mqb/checkpoint"
)

// listing is what the directory of one record holds.
type listing struct {
	versions []uint64 // ascending
	temps    []temp
}

// temp is a temporary file of a writer that is under way, or dead.
type temp struct {
	name    string
	version uint64
}

// scan lists the directory of a record; one that is not there is empty. It holds
// few names, so they come with one call to the file system, which sees no half of
// another's change.
func scan(dir string) (listing, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listing{}, err
	}
	var l listing
	for _, e := range entries {
		if v, ok := parseVersion(e.Name()); ok {
			l.versions = append(l.versions, v)
		} else if v, ok := parseTemp(e.Name()); ok {
			l.temps = append(l.temps, temp{e.Name(), v})
		}
	}
	slices.Sort(l.versions)
	return l, nil
}

// newest is the version that counts, 0 if there is none.
func (l listing) newest() uint64 {
	if len(l.versions) == 0 {
		return 0
	}
	return l.versions[len(l.versions)-1]
}

func (l listing) compare(expected uint64) error {
	newest := l.newest()
	switch {
	case newest == 0 && expected > 0:
		return fmt.Errorf("%w: the record is gone", checkpoint.ErrRegressed)
	case newest != expected && checkpoint.Fenced:
		return checkpoint.ErrConflict
	}
	return nil
}

// prune removes what nobody needs: versions behind the last three, and temporary
// files of the newest version and older ones, which cannot become one any more.
// What cannot be removed is left to the next writer.
func (l listing) prune(dir string) {
	for _, v := range l.versions {
		if v+kept <= l.newest() {
			_ = os.Remove(filepath.Join(dir, versionName(v)))
		}
	}
	for _, t := range l.temps {
		if t.version <= l.newest() {
			_ = os.Remove(filepath.Join(dir, t.name))
		}
	}
}

const versionDigits, versionSuffix = 20, ".json"

func versionName(v uint64) string { return fmt.Sprintf("%0*d%s", versionDigits, v, versionSuffix) }

func parseVersion(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, versionSuffix)
	if !ok || len(digits) != versionDigits {
		return 0, false
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	return v, err == nil
}

func tempPattern(v uint64) string { return fmt.Sprintf(".%d-*.tmp", v) }

func parseTemp(name string) (uint64, bool) {
	name, ok := strings.CutPrefix(name, ".")
	digits, rest, cut := strings.Cut(name, "-")
	if !ok || !cut || !strings.HasSuffix(rest, ".tmp") {
		return 0, false
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	return v, err == nil
}

// mkdir makes a directory and those above it that are missing, durably.
func mkdir(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("there is a file of this name")}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := mkdir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// mkdirs makes the directory of a record. Its parents are flushed even if it is
// there: whoever made it may have died before that.
func (s *Store) mkdirs(dir string) error {
	rel, err := filepath.Rel(s.root, dir)
	if err != nil {
		return err
	}
	at := s.root
	for _, name := range strings.Split(rel, string(filepath.Separator)) {
		parent := at
		at = filepath.Join(at, name)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := syncDir(parent); err != nil {
			return err
		}
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
