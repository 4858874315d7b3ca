package file

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// attrPath is the partition attribute with the path relative to the root, with
// slashes. The root comes from the configuration, so that nodes may mount
// shared storage wherever they like.
const attrPath = "path"

// attrEscaped is attrPath for a path that is not UTF-8, with escapes as in a URL:
// partitions are kept as JSON, which would make another name of it.
const attrEscaped = "path_escaped"

// source lists and opens the files of one input. It holds no file open itself.
type source struct {
	cfg    *Config
	spec   *route.Spec
	env    connectors.Env
	root   string // static part of the path
	glob   string // the rest, slashes; "" for a plain file
	shared bool
	pipe   bool        // read once and in order: standard input, a named pipe
	began  atomic.Bool // somebody has opened it
	// quiet is how long an unfinished last record must not change before
	// exit_on_empty takes it for finished.
	quiet time.Duration
	// worth is how much of a file has to be left for reading ahead to pay.
	worth int64
}

func newSource(config any, spec *route.Spec, env connectors.Env) (connectors.Source, error) {
	cfg := config.(*Config)
	s := &source{cfg: cfg, spec: spec, env: env, shared: spec.SharedStorage, quiet: 100 * time.Millisecond, worth: worthAhead}
	p := filepath.ToSlash(filepath.Clean(cfg.Path))
	if s.pipe = isPipe(cfg.Path); s.pipe {
		s.root = path.Dir(p)
		return s, nil
	}
	if strings.ContainsAny(p, "*?[{") {
		if !doublestar.ValidatePattern(p) {
			return nil, connectors.Permanent(fmt.Errorf("file source: %q is no valid pattern", cfg.Path), "")
		}
		s.root, s.glob = doublestar.SplitPattern(p)
	} else {
		s.root = path.Dir(p)
	}
	return s, nil
}

// Partitions implements connectors.Source. Hidden files are left out, as shells
// do it, and so are the manifests of part directories: a directory of parts can
// be read while it is written to.
func (s *source) Partitions(ctx context.Context) ([]connectors.Partition, error) {
	if s.pipe {
		name := path.Base(filepath.ToSlash(s.cfg.Path))
		if isStdin(s.cfg.Path) {
			name = "stdin"
		}
		return []connectors.Partition{s.partition(name)}, nil
	}
	if s.glob == "" {
		st, err := os.Stat(s.cfg.Path)
		if err != nil {
			return nil, fmt.Errorf("file source: %w", err)
		}
		if !st.Mode().IsRegular() {
			return nil, connectors.Permanent(fmt.Errorf("file source: %s is not a regular file", s.cfg.Path), "use a pattern such as "+path.Join(s.cfg.Path, "*")+" for the files in a directory")
		}
		return []connectors.Partition{s.partition(path.Base(filepath.ToSlash(s.cfg.Path)))}, nil
	}
	if _, err := os.Stat(s.root); err != nil {
		return nil, fmt.Errorf("file source: %w", err)
	}
	var out []connectors.Partition
	options := []doublestar.GlobOption{doublestar.WithFilesOnly(), doublestar.WithNoHidden()}
	if strings.Contains(s.glob, "**") {
		// A link to a directory above it would be followed again and again, and every
		// file below be read many times.
		options = append(options, doublestar.WithNoFollow())
	}
	err := doublestar.GlobWalk(os.DirFS(s.root), s.glob, func(p string, d fs.DirEntry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := d.Type()
		if t&fs.ModeSymlink != 0 {
			// One that leads nowhere is an error of its own when it is opened.
			if st, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(p))); err == nil {
				t = st.Mode().Type()
			} else {
				t = 0
			}
		}
		if !t.IsRegular() || strings.HasPrefix(path.Base(p), manifestStem) {
			return nil
		}
		out = append(out, s.partition(p))
		return nil
	}, options...)
	if err != nil {
		return nil, fmt.Errorf("file source: list %s: %w", s.cfg.Path, err)
	}
	return out, nil
}

func (s *source) partition(rel string) connectors.Partition {
	p := connectors.Partition{ID: rel, Attributes: map[string]string{attrPath: rel}}
	if !utf8.ValidString(rel) {
		p.ID = strings.ToValidUTF8(rel, "\ufffd") + "#" + hashOf(rel)
		p.Attributes = map[string]string{attrEscaped: url.PathEscape(rel)}
	}
	if !s.shared {
		p.ID, p.Node = s.env.Node+"/"+p.ID, s.env.Node
	}
	p.PartSource = partSource(p.ID)
	return p
}

// partSource names parts made from a file: its base name for people, a hash of
// the partition's id because base names repeat.
func partSource(id string) string {
	base := path.Base(id)
	// A part's name must fit into the 255 bytes of a file name.
	for len(base) > 100 || !utf8.ValidString(base) && len(base) > 0 {
		base = base[:len(base)-1]
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	return fmt.Sprintf("file-%s-%016x", base, h.Sum64())
}

// file is where a partition's data is.
func (s *source) file(p connectors.Partition) (string, error) {
	rel := p.Attributes[attrPath]
	if escaped, ok := p.Attributes[attrEscaped]; ok {
		rel, _ = url.PathUnescape(escaped) // "" is refused
	}
	if rel = filepath.FromSlash(rel); !filepath.IsLocal(rel) {
		return "", connectors.Permanent(fmt.Errorf("file source: partition %q has no usable path %q", p.ID, rel), "")
	}
	if p.Node != "" && p.Node != s.env.Node {
		return "", connectors.Permanent(fmt.Errorf("file source: partition %q is on node %q, this is %q", p.ID, p.Node, s.env.Node), "set shared_storage: true if all nodes mount the same files")
	}
	return filepath.Join(filepath.FromSlash(s.root), rel), nil
}

// Identify implements connectors.Source. The identity grows with the file until
// it covers its first 4 KiB.
func (s *source) Identify(_ context.Context, p connectors.Partition, recorded string) (string, error) {
	name, err := s.file(p)
	if err != nil {
		return "", err
	}
	if s.pipe {
		return "", nil
	}
	f, err := open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if recorded != "" {
			// Whether anything unread went with it is seen from the position: Open.
			return recorded, nil
		}
		return "", gap(fmt.Errorf("%s is gone before it was read", name))
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if recorded != "" {
		id, err := parseIdentity(recorded)
		if err != nil {
			return "", err
		}
		if err := verify(f, id, s.shared); err != nil {
			return "", err
		}
	}
	id, err := identify(f, s.shared, headBytes)
	return id.String(), err
}

// open opens a regular file for reading; it never blocks on a pipe.
func open(name string) (*os.File, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, classify(fmt.Errorf("file source: %w", err))
	}
	if !st.Mode().IsRegular() {
		return nil, connectors.Permanent(fmt.Errorf("file source: %s is not a regular file", name), "")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, classify(fmt.Errorf("file source: %w", err))
	}
	return f, nil
}

// Open implements connectors.Source.
func (s *source) Open(_ context.Context, claim connectors.Claim) (connectors.Reader, error) {
	name, err := s.file(claim.Partition)
	if err != nil {
		return nil, err
	}
	at, err := parsePlace(claim.Record.Position)
	if err != nil {
		return nil, connectors.Permanent(err, "")
	}
	if s.pipe {
		return s.openPipe(claim, at)
	}
	f, err := open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if at.End {
			return newGone(at), nil
		}
		return nil, gap(fmt.Errorf("%s is gone and was not read to its end: the position is record %d at byte %d", name, at.Record, at.Offset))
	}
	if err != nil {
		return nil, err
	}
	return s.read(f, claim, at)
}

// read makes the reader of f, which is the reader's from then on.
func (s *source) read(f *os.File, claim connectors.Claim, at place) (connectors.Reader, error) {
	r, err := s.newReader(f, claim, at)
	if err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// openPipe reads a pipe from where it is. It cannot go back, so that a run that
// begins where another one ended would miss what was lost with that one.
func (s *source) openPipe(claim connectors.Claim, at place) (connectors.Reader, error) {
	name := s.cfg.Path
	if isStdin(name) {
		name = "standard input"
	}
	switch {
	case at != place{}:
		return nil, connectors.Permanent(fmt.Errorf("file source: %s cannot be resumed at record %d: a pipe is read once, and what the run before had read but not committed is gone", name, at.Record),
			"reset the position of this partition to read what comes now as a new input, or read from a file")
	case s.began.Swap(true):
		return nil, connectors.Permanent(fmt.Errorf("file source: %s was read by a run that has ended: a pipe is read once", name), "start the command again, or read from a file")
	}
	spec := s.spec
	if claim.Spec != nil {
		spec = claim.Spec
	}
	f, err := openPipe(s.cfg.Path, !spec.ExitOnEmpty)
	if err != nil {
		return nil, err
	}
	return s.read(f, claim, at)
}

// Check implements connectors.Source: every file there is can be opened.
func (s *source) Check(ctx context.Context) error {
	parts, err := s.Partitions(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		name, err := s.file(p)
		if err != nil {
			return err
		}
		if s.pipe {
			return nil // looking at it would take what it holds
		}
		f, err := open(name)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

func (s *source) Close() error { return nil }

// classify gives an error of the file system its class. What is missing may
// come; what is forbidden stays so until somebody changes it.
func classify(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return connectors.Permanent(err, "give the user that mqb runs as access to it")
	case errors.Is(err, unix.ENAMETOOLONG):
		return connectors.Permanent(err, "the name of a file has at most 255 bytes, and beside one that is appended to stands another one whose name is 10 bytes longer")
	case diskFull(err):
		return &connectors.Error{Class: connectors.ClassRetryable, Err: err, Hint: "disk full: free space; the route goes on by itself"}
	}
	return err
}

// gone reads a file that was deleted after it was read to its end.
type gone struct{ at place }

func newGone(at place) connectors.Reader { return gone{at} }

func (gone) Read(ctx context.Context) (*message.Batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, connectors.ErrEndOfInput
}
func (gone) Settle(context.Context, message.Position) error { return nil }
func (gone) Lag() int64                                     { return 0 }
func (gone) Close() error                                   { return nil }
