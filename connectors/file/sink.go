package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/route"
)

// sink writes parts into one directory, or appends to one file.
type sink struct {
	cfg   *Config
	spec  *route.Spec
	dir   string // of the parts
	codec codec

	mu     sync.Mutex
	shared *outlets // of the writers to a pipe
}

func newSink(config any, spec *route.Spec, _ connectors.Env) (connectors.Sink, error) {
	cfg := config.(*Config)
	c, err := codecOf(cfg.Compression, cfg.Path)
	if err != nil {
		return nil, connectors.Permanent(fmt.Errorf("file sink: compression: %w", err), "")
	}
	return &sink{cfg: cfg, spec: spec, dir: filepath.Clean(cfg.Path), codec: c}, nil
}

// ext is the extension of parts.
func (s *sink) ext() string {
	ext := "jsonl"
	switch s.cfg.format() {
	case formatRaw:
		ext = "bin"
	case formatCSV:
		ext = "csv"
	}
	return ext + s.codec.ext()
}

// Prepare implements connectors.Sink. There is nothing to connect to, and the
// directory is not touched before the claim.
func (s *sink) Prepare(context.Context, connectors.Partition) (connectors.Prepared, error) {
	return prepared{s}, nil
}

// Check implements connectors.Sink: the directory, or where it would be created,
// can be written to, and the file, if there is one.
func (s *sink) Check(context.Context) error {
	if s.cfg.NameBy == "source_position" {
		return checkDirectory(s.dir, notDirectory)
	}
	if isStream(s.cfg.Path) {
		return nil
	}
	if !strings.Contains(s.cfg.Path, partitionToken) {
		switch st, err := os.Stat(s.cfg.Path); {
		case err == nil && st.IsDir():
			return isDirectory(s.cfg.Path)
		case err == nil:
			if err := unix.Access(s.cfg.Path, unix.W_OK|unix.R_OK); err != nil {
				return classify(fmt.Errorf("file sink: %s: %w", s.cfg.Path, err))
			}
		}
	}
	return checkDirectory(filepath.Dir(s.dir), func(path string) error {
		return connectors.Permanent(fmt.Errorf("file sink: %s is a file, and no directory for %s", path, s.cfg.Path), "")
	})
}

func checkDirectory(dir string, notOne func(string) error) error {
	for ; ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return classify(fmt.Errorf("file sink: %w", err))
		}
		if !st.IsDir() {
			return notOne(dir)
		}
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return classify(fmt.Errorf("file sink: directory %s: %w", dir, err))
		}
		return nil
	}
}

func (s *sink) Close() error { return nil }

func notDirectory(path string) error {
	return connectors.Permanent(fmt.Errorf("file sink: %s is a file", path), "with name_by: source_position path is a directory")
}

func isDirectory(path string) error {
	return connectors.Permanent(fmt.Errorf("file sink: %s is a directory", path), "name_by: source_position writes parts into it; without it path is a file")
}

type prepared struct{ s *sink }

func (prepared) Session() string { return "" }
func (prepared) Close() error    { return nil }

// Open implements connectors.Prepared: the writer that name_by, the path and the
// claim ask for.
func (p prepared) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	s := p.s
	spec := s.spec
	if claim.Spec != nil {
		spec = claim.Spec
	}
	switch {
	case isStream(s.cfg.Path):
		return s.openOutlet(ctx, claim, spec)
	case claim.Leg == connectors.LegDeadLetters:
		return s.openLetters(claim, spec)
	case s.cfg.NameBy == "source_position":
		return s.openParts(claim, spec)
	}
	return s.openAppend(ctx, claim, spec)
}

// openParts makes the directory, its manifest, and sure that no part is there that
// the checkpoint record does not know of, at the cost of one listing of the
// directory.
func (s *sink) openParts(claim connectors.Claim, spec *route.Spec) (connectors.Writer, error) {
	if claim.Partition.PartSource == "" {
		return nil, connectors.Permanent(fmt.Errorf("file sink: partition %q of the source gives no names to parts", claim.Partition.ID), "")
	}
	w := &parts{sink: s, claim: claim, spec: spec, dir: s.dir, key: partKey(claim.Partition), codec: s.codec, sealed: map[string]*spool{}}
	var err error
	if w.enc, err = newEncoder(s.cfg, claim); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		if st, serr := os.Stat(s.dir); errors.Is(err, unix.ENOTDIR) || serr == nil && !st.IsDir() {
			return nil, notDirectory(s.dir)
		}
		return nil, w.failed("create directory", err)
	}
	if w.covered, err = w.ownDirectory(); err != nil {
		return nil, err
	}
	if err := w.checkParts(); err != nil {
		return nil, err
	}
	return w, nil
}

// checkParts is the second witness of the position: a part that ends beyond it
// and that no intent announces means that the record went back (invariant 10).
// Spools that earlier epochs of this partition left behind are removed.
func (w *parts) checkParts() error {
	var position int64
	if p := w.claim.Record.Position; !p.IsZero() {
		n, ok := p.Number()
		if !ok {
			return connectors.Permanent(fmt.Errorf("file sink: partition %s: position %q is no number", w.claim.Partition.ID, p.Sort), "this source cannot name parts by position")
		}
		position = n
	}
	announced := map[string]bool{}
	for _, in := range w.claim.Record.Intents {
		announced[in.Name] = true
	}
	// The furthest of them is told: from behind it on, nothing is there yet.
	beyond, last := "", int64(-1)
	err := w.names(func(name string) error {
		if epoch, ok := spoolEpoch(name, w.key); ok {
			// (A spool that is gone also stops a zombie; the test that has to see one
			// do damage leaves it there.)
			if epoch < w.claim.Epoch && !hook.Disabled("spools") {
				if err := os.Remove(filepath.Join(w.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return w.failed("remove a leftover of epoch", err)
				}
			}
			return nil
		}
		key, r, ok := parsePart(name)
		if !ok || key != w.key || r.Last < position || announced[name] || w.isCovered(r) {
			return nil
		}
		if r.Last > last {
			beyond, last = name, r.Last
		}
		return nil
	})
	if err != nil || beyond == "" {
		return err
	}
	return &connectors.Error{
		Class: connectors.ClassRegressed,
		Err: fmt.Errorf("%w: file sink: partition %s: part %s ends at record %d, but the position is record %d",
			checkpoint.ErrRegressed, w.claim.Partition.ID, beyond, last, position),
		Hint: fmt.Sprintf("set the position of this partition to record %d if the parts are right, or move the parts from record %d on away", last+1, position),
	}
}

func (w *parts) isCovered(r connectors.Range) bool {
	for _, c := range w.covered {
		if c.First <= r.First && r.Last <= c.Last {
			return true
		}
	}
	return false
}

// failed wraps an error of the file system, once.
func (w *parts) failed(op string, err error) error {
	return classify(fmt.Errorf("file sink: route %s partition %s: %s in %s: %w", w.claim.Route, w.claim.Partition.ID, op, w.dir, err))
}

func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
