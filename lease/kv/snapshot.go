package kv

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/mqbridge/mqb/lease"
)

// ErrBadSnapshot: bytes that Snapshot.WriteTo did not write, or not all of them.
var ErrBadSnapshot = errors.New("kv: bad snapshot")

// Snapshot is the store at one revision. It shares the immutable tree, so it
// costs nothing to take and may be written while the store goes on.
type Snapshot struct {
	tree      *iradix.Tree[*lease.KV]
	rev       int64
	nextLease lease.LeaseID
	leases    map[lease.LeaseID]time.Duration
}

// Snapshot takes one.
func (s *Store) Snapshot() *Snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := &Snapshot{tree: s.tree, rev: s.rev, nextLease: s.nextLease, leases: make(map[lease.LeaseID]time.Duration, len(s.leases))}
	for id, g := range s.leases {
		n.leases[id] = g.ttl
	}
	return n
}

const (
	snapshotMagic = "mqbkv\x00\x00\x01"
	// maxField bounds one key or value of a snapshot: a transaction holds less.
	maxField = MaxTxnBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WriteTo writes the snapshot: magic, revision, leases, keys and a CRC-32C of
// all that. Leases are written as times to live: what was left of them is not
// part of the state.
func (n *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sum := crc32.New(castagnoli)
	buf := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	var total int64
	put := func(b []byte) error {
		k, err := buf.Write(b)
		total += int64(k)
		return err
	}
	b := append([]byte(nil), snapshotMagic...)
	b = binary.AppendVarint(b, n.rev)
	b = binary.AppendVarint(b, int64(n.nextLease))
	b = binary.AppendUvarint(b, uint64(len(n.leases)))
	ids := make([]lease.LeaseID, 0, len(n.leases))
	for id := range n.leases {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	for _, id := range ids {
		b = binary.AppendVarint(b, int64(id))
		b = binary.AppendVarint(b, int64(n.leases[id]))
	}
	b = binary.AppendUvarint(b, uint64(n.tree.Len()))
	if err := put(b); err != nil {
		return total, err
	}
	var err error
	n.tree.Root().Walk(func(_ []byte, kv *lease.KV) bool {
		b = appendBytes(b[:0], kv.Key)
		b = appendBytes(b, kv.Value)
		b = binary.AppendVarint(b, kv.Version)
		b = binary.AppendVarint(b, kv.CreateRevision)
		b = binary.AppendVarint(b, kv.ModRevision)
		b = binary.AppendVarint(b, int64(kv.Lease))
		err = put(b)
		return err != nil
	})
	if err == nil {
		err = buf.Flush()
	}
	if err != nil {
		return total, err
	}
	k, err := w.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return total + int64(k), err
}

// Restore replaces the store's content by a snapshot, or leaves it as it is and
// returns an error. Watches that had seen everything up to the snapshot go on;
// the others get ErrCompacted, since what lies between is not known.
func (s *Store) Restore(r io.Reader) error {
	in := &summing{r: bufio.NewReaderSize(r, 64<<10)}
	fresh, err := readSnapshot(in)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree, s.rev, s.nextLease, s.leases = fresh.tree, fresh.rev, fresh.nextLease, fresh.leases
	s.history.reset(s.rev)
	s.notify()
	return nil
}

func readSnapshot(in *summing) (*Store, error) {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != snapshotMagic {
		return nil, fmt.Errorf("magic %q: %w", magic, err)
	}
	s := &Store{
		rev:       in.varint(),
		nextLease: lease.LeaseID(in.varint()),
		leases:    map[lease.LeaseID]*grant{},
	}
	for n := in.uvarint(); n > 0 && in.err == nil; n-- {
		id := lease.LeaseID(in.varint())
		s.leases[id] = &grant{ttl: time.Duration(in.varint()), keys: map[string]struct{}{}}
	}
	txn := iradix.New[*lease.KV]().Txn()
	for n := in.uvarint(); n > 0 && in.err == nil; n-- {
		kv := &lease.KV{Key: string(in.bytes()), Value: in.bytes()}
		kv.Version, kv.CreateRevision, kv.ModRevision = in.varint(), in.varint(), in.varint()
		kv.Lease = lease.LeaseID(in.varint())
		if g := s.leases[kv.Lease]; g != nil {
			g.keys[kv.Key] = struct{}{}
		}
		txn.Insert([]byte(kv.Key), kv)
	}
	if in.err != nil {
		return nil, in.err
	}
	want := in.sum
	var tail [4]byte
	if _, err := io.ReadFull(in, tail[:]); err != nil {
		return nil, err
	}
	if got := binary.BigEndian.Uint32(tail[:]); got != want {
		return nil, fmt.Errorf("checksum %08x, written %08x", want, got)
	}
	s.tree = txn.Commit()
	return s, nil
}

// summing reads fields and sums what it read; after the first error all are zero.
type summing struct {
	r   *bufio.Reader
	sum uint32
	err error
}

func (r *summing) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.sum = crc32.Update(r.sum, castagnoli, b[:n])
	return n, err
}

func (r *summing) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		r.sum = crc32.Update(r.sum, castagnoli, []byte{b})
	}
	return b, err
}

func (r *summing) varint() int64 {
	if r.err != nil {
		return 0
	}
	var x int64
	x, r.err = binary.ReadVarint(r)
	return x
}

func (r *summing) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	var x uint64
	x, r.err = binary.ReadUvarint(r)
	return x
}

func (r *summing) bytes() []byte {
	n := r.uvarint()
	if r.err == nil && n > maxField {
		r.err = fmt.Errorf("field of %d bytes", n)
	}
	if r.err != nil {
		return nil
	}
	b := make([]byte, n)
	_, r.err = io.ReadFull(r, b)
	return b
}
