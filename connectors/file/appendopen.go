package file

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file/csvjson"
	"github.com/mqbridge/mqb/hook"
	"github.com/mqbridge/mqb/route"
)

// partitionToken in the path of an appending sink stands for the partition.
const partitionToken = "${partition}"

// target is the file that a partition is written to.
func (s *sink) target(p connectors.Partition) string {
	if !strings.Contains(s.cfg.Path, partitionToken) {
		return filepath.Clean(s.cfg.Path)
	}
	return filepath.Clean(strings.ReplaceAll(s.cfg.Path, partitionToken, safeName(p.ID)))
}

// safeName makes one name in a directory of a partition's id, another one for each.
func safeName(id string) string {
	name := url.PathEscape(id)
	if strings.HasPrefix(name, ".") {
		name = "%2E" + name[1:]
	}
	if len(name) > 150 {
		name = name[:133] + "-" + hashOf(id)
	}
	return name
}

func hashOf(s string) string {
	h := fnv.New64a()
	h.Write([]byte(s))
	return fmt.Sprintf("%016x", h.Sum64())
}

// sidecar is the manifest of a file that is appended to: it says whose the file is.
func sidecar(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".mqb.json")
}

// ownership is the content of a sidecar: one lineage and one partition a file.
type ownership struct {
	manifest
	Partition string `json:"partition"`
}

// openAppend opens the file of a partition, locks it, and cuts off what was not
// committed. It waits for the lock as long as ctx allows: a former owner that still
// writes holds it.
func (s *sink) openAppend(ctx context.Context, claim connectors.Claim, spec *route.Spec) (connectors.Writer, error) {
	if spec.SharedStorage {
		return nil, errSharedAppend
	}
	w := &appender{sink: s, claim: claim, path: s.target(claim.Partition), codec: s.codec, sync: s.cfg.Fsync != "off"}
	var state *appendState
	if raw := claim.Record.SinkState; len(raw) > 0 {
		state = new(appendState)
		if err := json.Unmarshal(raw, state); err != nil || state.V != 1 || state.Length < 0 {
			return nil, connectors.Permanent(fmt.Errorf("file sink: partition %s: the record holds no state of a file: %q", claim.Partition.ID, raw),
				"the output was another one; apply the route with --position, which begins a new series")
		}
	}
	var err error
	if w.enc, err = newEncoder(s.cfg, claim); err != nil {
		return nil, err
	}
	own := ownership{
		manifest:  manifest{V: 1, Route: claim.Route, RouteUID: claim.RouteUID, Series: claim.Series, Cluster: claim.Record.ClusterUID},
		Partition: claim.Partition.ID,
	}
	err = w.lockFile(ctx, state != nil && state.Path == hashOf(w.path), own)
	if err == nil {
		if state != nil && state.Path != hashOf(w.path) && !state.of(w) {
			state = nil // of the output that the route had before
		}
		err = w.take(state, own, spec.ExistingParts == "skip")
	}
	if err == nil && w.codec != codecNone {
		w.packer, err = newPacker(w.codec)
	}
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

var errSharedAppend = connectors.Permanent(errors.New("file sink: one file that is appended to belongs to one node, and shared_storage says that the files are on all of them"),
	"use name_by: source_position, whose parts may be on shared storage")

// lockFile opens the file that the path leads to and locks it.
func (w *appender) lockFile(ctx context.Context, exists bool, own ownership) error {
	for {
		if err := w.openFile(exists); err != nil {
			return err
		}
		if err := w.lock(ctx, own); err != nil {
			return err
		}
		// While we waited it may have been replaced.
		st, err := os.Stat(w.path)
		ours, err2 := w.f.Stat()
		if err == nil && err2 == nil && os.SameFile(st, ours) {
			if err := unix.Fstat(int(w.f.Fd()), &w.stat); err != nil {
				return w.failed("stat", err)
			}
			return nil
		}
		_ = w.f.Close()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (w *appender) openFile(exists bool) error {
	st, err := os.Stat(w.path)
	switch {
	case err == nil && st.IsDir():
		return isDirectory(w.path)
	case err == nil && !st.Mode().IsRegular():
		return connectors.Permanent(fmt.Errorf("file sink: %s is no regular file", w.path), "")
	case errors.Is(err, fs.ErrNotExist) && exists:
		return w.regressed(fmt.Errorf("%s is gone", w.path))
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(w.path), 0o755); err != nil {
			return w.failed("create the directory of", err)
		}
		w.fresh = true
	}
	flags := os.O_RDWR
	if !exists {
		flags |= os.O_CREATE
	}
	if w.f, err = os.OpenFile(w.path, flags, 0o644); err != nil {
		return w.failed("open", err)
	}
	return nil
}

// lock waits for the lock. Another partition of this route that holds it will not
// give it up: that is an error, and not a reason to wait.
func (w *appender) lock(ctx context.Context, own ownership) error {
	began, said := time.Now(), false
	for {
		ok, err := tryLock(w.f)
		if err != nil {
			return w.failed("lock", err)
		}
		if ok {
			return nil
		}
		there, err := w.readOwner()
		if err != nil {
			return err
		}
		if there != nil && there.same(&own.manifest) && there.Partition != own.Partition {
			return w.otherPartition(there)
		}
		if !said && time.Since(began) > time.Second && w.claim.Log != nil {
			said = true
			w.claim.Log.Warn("waiting for the lock on the output file: another writer has it open", "file", w.path)
		}
		if err := pause(ctx, lockPoll); err != nil {
			return fmt.Errorf("file sink: %s: waiting for its lock, which another writer holds: %w", w.path, err)
		}
	}
}

// lockPoll is how often a lock that somebody holds is tried again.
const lockPoll = 20 * time.Millisecond

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OnePartition reports whether the output is one file, which one partition alone can
// append to.
func (c *Config) OnePartition() bool {
	return c.NameBy != "source_position" && !isStream(c.Path) && !strings.Contains(c.Path, partitionToken)
}

func (w *appender) otherPartition(there *ownership) error {
	return connectors.Permanent(
		fmt.Errorf("file sink: route %s: partition %s cannot append to %s, which partition %s appends to", w.claim.Route, w.claim.Partition.ID, w.path, there.Partition),
		"put "+partitionToken+" into the path, so that each partition has a file of its own, or use name_by: source_position")
}

// of reports whether it is the state of the file that w has open.
func (s *appendState) of(w *appender) bool {
	return s.Device == uint64(w.stat.Dev) && s.Inode == w.stat.Ino
}

// take makes the locked file ours, and cuts it to what was committed. The order
// matters: nothing is cut before it is certain that the file is the one of the record.
func (w *appender) take(state *appendState, own ownership, skip bool) error {
	st, err := w.f.Stat()
	if err != nil {
		return w.failed("stat", err)
	}
	size := st.Size()
	if state != nil {
		switch {
		case !state.of(w):
			return w.regressed(fmt.Errorf("%s is another file than the one that was written (inode %d:%d, now %d:%d)", w.path, state.Device, state.Inode, w.stat.Dev, w.stat.Ino))
		case size < state.Length:
			// Never made longer: what would fill it up are NULs.
			return w.regressed(fmt.Errorf("%s has %d bytes, and %d were written and committed", w.path, size, state.Length))
		case state.Codec != w.codec:
			return connectors.Permanent(fmt.Errorf("file sink: %s was written with compression: %s, and the route has %s now", w.path, state.Codec, w.codec), "write to another file")
		}
	}
	if err := w.own(own, state != nil, size, skip); err != nil {
		return err
	}
	if state == nil {
		w.length = size
		return w.foundAs(size)
	}
	if size > state.Length {
		if w.claim.Log != nil {
			w.claim.Log.Info("cut off what was written to the output file and not committed", "file", w.path, "bytes", size-state.Length)
		}
		if err := w.f.Truncate(state.Length); err != nil {
			return w.failed("cut", err)
		}
		w.dirty = true
		hook.At("append.cut")
	}
	w.length, w.pushed, w.open = state.Length, state.Length, state.Open
	return w.columns(state.Columns)
}

// foundAs looks at a file that no run of this series has written to: it may end
// inside a record, which is ended then. A compressed one has to end with a whole
// member, and csv outside of quotes, which would take in what follows.
func (w *appender) foundAs(size int64) error {
	w.pushed = size
	if size == 0 {
		return nil
	}
	r, from := io.Reader(io.NewSectionReader(w.f, 0, size)), size-1
	if w.enc.csv != nil {
		from = 0
	}
	if w.codec != codecNone {
		d, err := newDecompressor(w.codec, bufio.NewReaderSize(r, blockBytes))
		if err != nil {
			return w.failed("read", err)
		}
		defer func() { _ = d.Close() }()
		r = d
	} else {
		r = io.NewSectionReader(w.f, from, size-from)
	}
	var q quoting
	if c := w.enc.csv; c != nil {
		q = quoting{quote: c.quote, seps: string(rune(c.sep))}
	}
	for buf := make([]byte, blockBytes); ; {
		n, err := r.Read(buf)
		if n > 0 {
			w.open = buf[n-1] != w.enc.delimiter
			if w.enc.csv != nil {
				for _, b := range buf[:n] {
					q.pass(b)
				}
			}
		}
		switch {
		case err == nil:
			continue
		case err != io.EOF && w.codec == codecNone:
			return w.failed("read", err)
		case err != io.EOF:
			return connectors.Permanent(fmt.Errorf("file sink: %s was not written by this route and does not end as a %s file should: %w", w.path, w.codec, err),
				"what is appended could not be read; repair it, or write to another file")
		}
		if err := w.columns(""); err != nil {
			return err
		}
		if q.inside {
			return connectors.Permanent(fmt.Errorf("file sink: %s was not written by this route and ends inside a quoted field", w.path),
				"what is appended would become part of that field; repair it, or write to another file")
		}
		return nil
	}
}

// columns takes the columns of csv from the header that the file has.
func (w *appender) columns(fingerprint string) error {
	c := w.enc.csv
	if c == nil || w.length == 0 {
		return nil
	}
	if c.header {
		names, err := w.readHeader()
		if err != nil {
			return connectors.Permanent(fmt.Errorf("file sink: the header of %s, which says what the columns are, cannot be read: %w", w.path, err),
				"are csv.separator and csv.quote those of the file? Otherwise write to another file")
		}
		if names == nil {
			return nil // compressed, without a byte in it
		}
		if len(c.given) > 0 && !slices.Equal(names, c.given) {
			return connectors.Permanent(fmt.Errorf("file sink: %s has the columns %q, and csv.columns is %q", w.path, names, c.given),
				"take csv.columns away, or write to another file")
		}
		c.goOn(names)
	}
	if now := c.fingerprint(); fingerprint != "" && now != fingerprint {
		return connectors.Permanent(fmt.Errorf("file sink: %s was written with other columns, another separator or another quote than the route has now", w.path),
			"write to another file")
	}
	return nil
}

// maxHeader bounds the first record of a csv file.
const maxHeader = 1 << 20

func (w *appender) readHeader() ([]string, error) {
	var r io.Reader = io.NewSectionReader(w.f, 0, w.length)
	if w.codec != codecNone {
		d, err := newDecompressor(w.codec, bufio.NewReader(r))
		if err != nil {
			return nil, err
		}
		defer func() { _ = d.Close() }()
		r = d
	}
	head, err := io.ReadAll(io.LimitReader(r, maxHeader))
	if err != nil {
		return nil, err
	}
	if len(head) == 0 {
		return nil, nil
	}
	ended := len(head) < maxHeader
	head = bytes.TrimLeft(bytes.TrimPrefix(head, bom), "\r\n")
	s, err := csvjson.New(w.enc.csv.sep, w.enc.csv.quote)
	if err != nil {
		return nil, err
	}
	names, res := s.Fields(head, ended)
	switch {
	case len(head) == 0:
		return nil, errors.New("it is empty")
	case res.Status == csvjson.More:
		return nil, errors.New("it has no end")
	case res.Status != csvjson.Record:
		return nil, quoteError(res.Status)
	}
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			return nil, fmt.Errorf("it names %q twice", n)
		}
	}
	return names, nil
}

// own makes sure that the file belongs to this partition of this lineage.
func (w *appender) own(own ownership, resumed bool, size int64, skip bool) error {
	there, err := w.readOwner()
	if err != nil {
		return err
	}
	switch {
	case there != nil && there.same(&own.manifest):
		if there.Partition != own.Partition {
			return w.otherPartition(there)
		}
		return nil
	case there == nil, !resumed && (size == 0 || skip):
		return w.writeOwner(own)
	}
	hint := "write to another file, delete this one, or go on behind what is there: with copy --append, in a route existing_parts: skip"
	if resumed {
		hint = "write to another file"
	}
	return &connectors.Error{Class: connectors.ClassForeign, Err: foreignError(fmt.Sprintf("file sink: route %s: %s %s", w.claim.Route, w.path, ofLineage(there, own))), Hint: hint}
}

// ofLineage says in words whose the file is.
func ofLineage(there *ownership, own ownership) string {
	switch {
	case there.RouteUID == own.RouteUID:
		return "was written by this route before its position was reset"
	case there.Route == own.Route:
		return fmt.Sprintf("was written by an earlier copy, or an earlier route of the same name, which was deleted or belongs to another cluster (uid %s)", there.RouteUID)
	}
	return fmt.Sprintf("belongs to route %s (uid %s)", there.Route, there.RouteUID)
}

func (w *appender) readOwner() (*ownership, error) {
	b, err := os.ReadFile(sidecar(w.path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, w.failed("read the manifest of", err)
	}
	var o ownership
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, connectors.Permanent(fmt.Errorf("file sink: %s: %w", sidecar(w.path), err), "restore it, or write to another file")
	}
	return &o, nil
}

// writeOwner replaces the sidecar, under the lock on the file.
func (w *appender) writeOwner(o ownership) error {
	tmp, err := writeTemp(filepath.Dir(w.path), o)
	if err != nil {
		return w.failed("write the manifest of", err)
	}
	if err := os.Rename(tmp, sidecar(w.path)); err != nil {
		_ = os.Remove(tmp)
		return w.failed("write the manifest of", err)
	}
	w.fresh = true // its name becomes durable with the first state
	return nil
}

// regressed: the file lacks what the record says is in it (invariant 10).
func (w *appender) regressed(err error) error {
	return &connectors.Error{
		Class: connectors.ClassRegressed,
		Err:   fmt.Errorf("%w: file sink: route %s partition %s: %w", checkpoint.ErrRegressed, w.claim.Route, w.claim.Partition.ID, err),
		Hint:  "put the file back as it was, or write to another one and begin again with the position where its records are to begin",
	}
}
