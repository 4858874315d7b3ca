package raft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease/kv"
)

// Backup writes the group's state as it was when the call began or later, with a
// checksum. It may be taken from any member, while the group works.
func (e *Engine) Backup(ctx context.Context, w io.Writer) error {
	if err := e.catchUp(ctx); err != nil {
		return fmt.Errorf("raft: backup: %w", err)
	}
	if _, err := e.store.Snapshot().WriteTo(w); err != nil {
		return fmt.Errorf("raft: backup: %w", err)
	}
	return nil
}

// ErrNotEmpty: there is state already where a backup was to be restored.
var ErrNotEmpty = errors.New("raft: the directory holds a member's state")

// Restore makes dir, which must be empty or absent, the state of a group of one,
// the given node, from what Backup wrote. All members of the group that the
// backup was taken from must be gone for good: they would go on beside it.
//
// Leases do not survive: who held them is gone, and their ids must not mean
// anybody else. The epoch counters are those of the backup; where a checkpoint
// store has seen higher ones since, its refusal lifts them (docs/protocol.md,
// being fenced).
func Restore(dir, node, address string, r io.Reader) error {
	if err := restore(dir, node, address, r); err != nil {
		return fmt.Errorf("raft: restore into %s: %w", dir, err)
	}
	return nil
}

func restore(dir, node, address string, r io.Reader) error {
	if node == "" || address == "" {
		return errors.New("no node name or no address")
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil && len(entries) > 0:
		return ErrNotEmpty
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	store := kv.New(kv.Options{})
	defer store.Close()
	if err := store.Restore(r); err != nil {
		return err
	}
	for id := range store.Leases() {
		store.Revoke(id)
	}
	// It is made beside the directory and moved there whole, so that a restore
	// that was cut short leaves nothing a member could start from.
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".restore-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := writeSnapshot(tmp, node, address, store); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	return parent.Sync()
}

// writeSnapshot writes the store as a snapshot of raft at its very first entry, in
// which node is the only member. A member that finds it and no log starts there.
func writeSnapshot(dir, node, address string, store *kv.Store) error {
	snaps, err := hraft.NewFileSnapshotStore(dir, 1, io.Discard)
	if err != nil {
		return err
	}
	const first, term = 1, 1
	self := hraft.Server{Suffrage: hraft.Voter, ID: hraft.ServerID(node), Address: hraft.ServerAddress(address)}
	// The file store keeps no connections; the transport only encodes the
	// configuration for readers of the oldest protocol.
	_, trans := hraft.NewInmemTransport(self.Address)
	sink, err := snaps.Create(hraft.SnapshotVersionMax, first, term, hraft.Configuration{Servers: []hraft.Server{self}}, first, trans)
	if err != nil {
		return err
	}
	if _, err = sink.Write(binary.BigEndian.AppendUint64(nil, first)); err == nil {
		_, err = store.Snapshot().WriteTo(sink)
	}
	if err != nil {
		_ = sink.Cancel()
		return err
	}
	return sink.Close()
}
