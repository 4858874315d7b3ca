package raft

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/kv"
)

func TestABackupMakesAGroupOfOneWithoutTheLeasesOfThoseWhoAreGone(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, Options{})
	_, rest := leader(t, nodes)
	ctx := t.Context()
	put(t, rest[0], "/a", "before")
	held, err := rest[0].Grant(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rest[0].Txn(ctx, nil, []lease.Op{lease.PutLeased("/held", []byte("n1"), held)}); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if err := rest[1].Backup(ctx, &backup); err != nil { // of a follower, right after the write
		t.Fatal(err)
	}
	put(t, rest[0], "/a", "after")

	dir := filepath.Join(t.TempDir(), "n9")
	if err := Restore(dir, "n9", "127.0.0.1:1", bytes.NewReader(backup.Bytes())); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "n9", dir, Options{}) // at another address than it was restored for
	until(t, "a leader", func() bool { id, _ := n.Leader(); return id == "n9" })
	if got := get(t, n, "/a"); got != "before" {
		t.Errorf("restored %q", got)
	}
	if kv, _, err := n.Get(ctx, "/held"); err != nil || kv != nil {
		t.Errorf("a lease outlived its group: %v %v", kv, err)
	}
	if id, err := n.Grant(ctx, time.Minute); err != nil || id <= held {
		t.Errorf("lease %d after %d: %v", id, held, err)
	}
	put(t, n, "/a", "again")
	n.restart(false)
	if got := get(t, n, "/a"); got != "again" {
		t.Errorf("after a restart %q", got)
	}
	// It grows again like any other group.
	other := newNode(t, "n10", filepath.Join(t.TempDir(), "n10"), Options{Join: []string{n.o.Advertise}})
	if got := get(t, other, "/a"); got != "again" {
		t.Errorf("who joined reads %q", got)
	}
}

func TestRestoreRefusesATornBackupAndADirectoryInUse(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, Options{})[0]
	put(t, n, "/a", "x")
	var backup bytes.Buffer
	if err := n.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "raft")
	torn := bytes.Clone(backup.Bytes())
	torn[len(torn)/2] ^= 1
	for name, b := range map[string][]byte{"torn": torn, "short": backup.Bytes()[:backup.Len()-1], "empty": nil} {
		if err := Restore(dir, "n1", "127.0.0.1:1", bytes.NewReader(b)); !errors.Is(err, kv.ErrBadSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Restore(n.o.DataDir, "n1", "127.0.0.1:1", &backup); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("over a member's state: %v", err)
	}
}
