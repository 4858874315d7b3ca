// Package checkpoint keeps the durable position of each partition and the fence
// around it. A Store implements three calls; everything else (Claim, Commit)
// exists once, here, above all stores. docs/protocol.md has the interleavings
// that each rule answers.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/mqbridge/mqb/message"
)

var (
	// ErrNotFound: no record under this key.
	ErrNotFound = errors.New("checkpoint: no record")
	// ErrConflict: Swap found another version than expected (0 expected: found a record).
	ErrConflict = errors.New("checkpoint: version conflict")
	// ErrLocked: the record is locked by another session for longer than the
	// store waits (SQL only). Claim then ends the recorded writer session.
	ErrLocked = errors.New("checkpoint: record locked")
	// ErrRegressed: the record is older than one that was known to exist, torn,
	// or gone. Nothing goes on by itself from there.
	ErrRegressed = errors.New("checkpoint: record went back")
	// ErrForeign: the record belongs to another cluster, route or source.
	ErrForeign = errors.New("checkpoint: record belongs to another")
	// ErrMoved: the record says that it lives in another store now.
	ErrMoved = errors.New("checkpoint: record was moved to another store")
	// ErrStaleGeneration: the record was already claimed for a newer generation
	// of the route than the claimer knows; it must look at the route again.
	ErrStaleGeneration = errors.New("checkpoint: record belongs to a newer generation of the route")
	// ErrTooLarge: the encoded record exceeds MaxRecordBytes.
	ErrTooLarge = errors.New("checkpoint: record too large")
)

// FencedError says that a higher epoch, or another run, holds the record. It
// matches ErrFenced.
type FencedError struct {
	Key    string
	Epoch  uint64 // ours
	Stored uint64 // the record's
}

// ErrFenced matches every FencedError.
var ErrFenced = errors.New("checkpoint: fenced")

func (e *FencedError) Error() string {
	return fmt.Sprintf("checkpoint %s: epoch %d is fenced by epoch %d", e.Key, e.Epoch, e.Stored)
}

// Is makes errors.Is(err, ErrFenced) true.
func (e *FencedError) Is(target error) bool { return target == ErrFenced }

// LockedError is an ErrLocked of a store that can still read the record as it was
// before the pending commit: it names the session that a claim may have to end.
type LockedError struct {
	Key       string
	Committed Record
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("checkpoint %s: record locked, by session %q of epoch %d as it seems", e.Key, e.Committed.Session, e.Committed.Epoch)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// MaxRecordBytes bounds an encoded record.
const MaxRecordBytes = 256 << 10

// Key names a checkpoint record.
type Key struct {
	Cluster      string // name, not uid
	RouteUID     string
	Partitioning string // "1" until the way a route is cut into partitions changes
	Partition    string
	Leg          string
}

// String is the key as stores see it: path-escaped segments joined by '/'.
func (k Key) String() string {
	esc := url.PathEscape
	return esc(k.Cluster) + "/" + esc(k.RouteUID) + "/" + esc(k.Partitioning) + "/" + esc(k.Partition) + "/" + esc(k.Leg)
}

// Prefix is the prefix of all keys of the route.
func (k Key) Prefix() string {
	return url.PathEscape(k.Cluster) + "/" + url.PathEscape(k.RouteUID) + "/"
}

// Intent is a part that was promised before it was created (docs/protocol.md, parts): a new
// owner finishes it exactly as it stands.
type Intent struct {
	From message.Position `json:"from"`
	End  message.Position `json:"end"`
	// First and Last are ordinals; the part covers [First, Last], gaps included.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Name is the complete name of the object, relative to the sink's root.
	Name       string `json:"name"`
	Generation uint64 `json:"generation"`
	Records    int64  `json:"records"`
	Bytes      int64  `json:"bytes"`
	// Digest of the content ("crc32c:…"), when the sink computed one: a
	// successor that re-reads the range and gets another digest stops.
	Digest string `json:"digest,omitempty"`
}

// Record is the checkpoint record. Version is raised by every Swap, from 1.
type Record struct {
	V          int              `json:"v"` // 1
	ClusterUID string           `json:"cluster_uid"`
	RouteUID   string           `json:"route_uid"`
	Series     string           `json:"series"`
	Generation uint64           `json:"generation"`
	Epoch      uint64           `json:"epoch"`
	Run        string           `json:"run"`
	Version    uint64           `json:"version"`
	Position   message.Position `json:"position"`
	Intents    []Intent         `json:"intents,omitempty"`
	Source     string           `json:"source,omitempty"`  // source identity
	Session    string           `json:"session,omitempty"` // writer session of the run
	SinkState  []byte           `json:"sink_state,omitempty"`
	// Verdicts are records behind Position that were judged and may not be judged
	// again (docs/protocol.md, verdicts): dead letters about to be written.
	Verdicts  *Verdicts `json:"verdicts,omitempty"`
	MovedTo   string    `json:"moved_to,omitempty"`
	Tombstone bool      `json:"tombstone,omitempty"`
}

// Entry is one record of a List.
type Entry struct {
	Key    string
	Record Record
	// Err is ErrRegressed when this record could not be decoded; the others are fine.
	Err error
}

// Store is what a checkpoint store implements. Keys are those of Key.String.
// Safe for concurrent use. Errors of the connection are returned wrapped and
// match none of the sentinels above; the outcome of such a Swap is unknown.
type Store interface {
	// Load is linearizable: it sees every Swap that returned before it began,
	// and waits for one whose outcome is pending. ErrNotFound, ErrRegressed (torn).
	Load(ctx context.Context, key string) (Record, error)
	// Swap writes rec if the stored version equals expected (0: if there is no
	// record), in one step; rec.Version must be expected + 1. ErrConflict,
	// ErrLocked, ErrRegressed (a record that must exist is gone).
	Swap(ctx context.Context, key string, expected uint64, rec Record) error
	// List returns the records whose key begins with prefix, in key order.
	List(ctx context.Context, prefix string) ([]Entry, error)
	// Identity names the store for the claimed mark and for people, without
	// secrets: "coordinator", "postgres://host:5432/db/mqb_checkpoints".
	Identity() string
	Close() error
}

// SessionEnder is implemented by stores whose records can be locked by a frozen
// writer: EndSession ends the session a record names, so that its locks go. A
// session that no longer exists is no error.
type SessionEnder interface {
	EndSession(ctx context.Context, session string) error
}
