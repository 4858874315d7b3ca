package main

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/raft"
)

// The run before was killed and its lease, here of an hour, is still there: nobody
// but this process can be that node, so there is nothing to wait for.
func TestARunAfterAKilledOneDoesNotWaitForTheDeadLease(t *testing.T) {
	t.Parallel()
	file, dir := csvRoute(t, 10, "")
	state := filepath.Join(dir, "state")
	c, err := raft.Open(raft.Options{
		Cluster: localNode, Node: localNode, DataDir: filepath.Join(state, "raft"), Advertise: localNode, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := json.Marshal(lease.Node{Instance: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Txn(t.Context(), nil, []lease.Op{lease.PutLeased(lease.NewKeys(localNode).Node(localNode), dead, id)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan result, 1)
	go func() { _, r := runFile(t, file, dir); done <- r }()
	select {
	case r := <-done:
		if r.code != 0 || rows(t, dir) != 10 {
			t.Errorf("%+v", r)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the run waits for the lease of the dead one")
	}
}
