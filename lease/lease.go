// Package lease is the contract of the coordinator: the strongly consistent
// store of nodes, routes, assignments, owners and epochs. It is a small
// key-value store with revisions, leases and watches, and has one engine per
// subpackage: lease/raft (embedded), lease/etcd (any etcd cluster) and
// lease/memory (tests and simulation). All of them pass lease/leasetest.
package lease

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrCompacted ends a watch whose revision the engine no longer holds, or may no
	// longer hold: the watcher lists again and watches from the revision of that list.
	ErrCompacted = errors.New("lease: revision compacted")
	// ErrLeaseNotFound: the lease expired or was revoked; what it held is gone.
	ErrLeaseNotFound = errors.New("lease: lease not found")
	// ErrUnavailable: no quorum, no leader or no connection within the deadline.
	// The outcome of a Txn that returns it is unknown.
	ErrUnavailable = errors.New("lease: coordinator unavailable")
	// ErrGateClosed: this node cannot prove that its lease is alive, so it must
	// not write any more.
	ErrGateClosed = errors.New("lease: cannot be proven alive")
	// ErrClosed: the coordinator was closed by this process.
	ErrClosed = errors.New("lease: coordinator closed")
)

// LeaseID names a lease; 0 is no lease.
type LeaseID int64

// KV is one key at one revision. Value is shared and must not be changed.
type KV struct {
	Key   string
	Value []byte
	// Version counts the puts since the key was created, from 1.
	Version        int64
	CreateRevision int64
	ModRevision    int64
	Lease          LeaseID
}

// Field is what a Compare looks at.
type Field uint8

const (
	// FieldVersion compares KV.Version; 0 means the key is absent.
	FieldVersion Field = iota
	// FieldModRevision compares KV.ModRevision; 0 means the key is absent.
	FieldModRevision
	// FieldCreateRevision compares KV.CreateRevision; 0 means the key is absent.
	FieldCreateRevision
	// FieldValue compares KV.Value; an absent key never matches.
	FieldValue
)

// Compare holds when the field of Key equals Number (or Value, for FieldValue).
type Compare struct {
	Key    string
	Field  Field
	Number int64
	Value  []byte
}

// Absent holds when key does not exist.
func Absent(key string) Compare { return Compare{Key: key, Field: FieldVersion} }

// VersionIs holds when key was put exactly n times since its creation.
func VersionIs(key string, n int64) Compare {
	return Compare{Key: key, Field: FieldVersion, Number: n}
}

// ModRevisionIs holds when the last change of key was at revision n; 0 = absent.
func ModRevisionIs(key string, n int64) Compare {
	return Compare{Key: key, Field: FieldModRevision, Number: n}
}

// CreateRevisionIs holds when key was created at revision n; 0 = absent.
func CreateRevisionIs(key string, n int64) Compare {
	return Compare{Key: key, Field: FieldCreateRevision, Number: n}
}

// ValueIs holds when key exists with exactly this value.
func ValueIs(key string, v []byte) Compare { return Compare{Key: key, Field: FieldValue, Value: v} }

// OpKind says what an Op does.
type OpKind uint8

const (
	OpPut OpKind = iota
	OpDelete
	// OpDeletePrefix deletes every key that begins with Key.
	OpDeletePrefix
)

// Op is one write of a Txn.
type Op struct {
	Kind  OpKind
	Key   string
	Value []byte
	// Lease binds a put to a lease; 0 leaves the key unbound (and unbinds it).
	Lease LeaseID
}

// Put writes key.
func Put(key string, value []byte) Op { return Op{Kind: OpPut, Key: key, Value: value} }

// PutLeased writes key bound to a lease.
func PutLeased(key string, value []byte, l LeaseID) Op {
	return Op{Kind: OpPut, Key: key, Value: value, Lease: l}
}

// Delete removes key; an absent key is no error.
func Delete(key string) Op { return Op{Kind: OpDelete, Key: key} }

// DeletePrefix removes every key that begins with prefix.
func DeletePrefix(prefix string) Op { return Op{Kind: OpDeletePrefix, Key: prefix} }

// Result is what a Txn did. All writes of one Txn share Revision.
type Result struct {
	Succeeded bool
	// Revision is the store's revision after the transaction, also when it did
	// not succeed.
	Revision int64
}

// EventType says what happened to a key.
type EventType uint8

const (
	EventPut EventType = iota
	// EventDelete carries the key and its ModRevision only. Expired leases
	// delete their keys with the same event.
	EventDelete
)

// Event is one change of one key.
type Event struct {
	Type EventType
	KV   KV
}

// WatchResponse carries every change that one revision made under the watched
// prefix, in order. Err is set on the last response of a watch that failed;
// ErrCompacted is the one a watcher handles by listing again.
type WatchResponse struct {
	Revision int64
	Events   []Event
	Err      error
}

// Coordinator is the store. Safe for concurrent use. Every call respects its
// context and returns ErrUnavailable (wrapped) when the store cannot answer
// within it; reads and Txns are linearizable.
type Coordinator interface {
	// Get returns the key, or nil when it is absent. rev is the store's revision.
	Get(ctx context.Context, key string) (kv *KV, rev int64, err error)
	// List returns every key with the prefix in byte order, and the revision
	// from which a Watch misses nothing: Watch(prefix, rev+1).
	List(ctx context.Context, prefix string) (kvs []KV, rev int64, err error)
	// Txn applies all ops in one step if every compare holds, else nothing. A
	// put with an unknown lease fails the whole Txn with ErrLeaseNotFound.
	Txn(ctx context.Context, compares []Compare, ops []Op) (Result, error)
	// Watch streams the changes at or after revision from, in revision order,
	// without gaps. The channel is closed when ctx ends, after an Err response,
	// or when the coordinator closes. A slow receiver never blocks the store: it
	// gets ErrCompacted instead.
	Watch(ctx context.Context, prefix string, from int64) <-chan WatchResponse
	// Grant makes a lease; the TTL starts no earlier than the call.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// KeepAlive restarts the TTL and returns it. It answers only if the store
	// was authoritative after the request came in; ErrLeaseNotFound when the
	// lease is gone.
	KeepAlive(ctx context.Context, id LeaseID) (time.Duration, error)
	// Revoke ends a lease and deletes its keys; an unknown lease is no error.
	Revoke(ctx context.Context, id LeaseID) error
	// Close releases this process's end. It revokes nothing.
	Close() error
}
