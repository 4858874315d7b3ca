package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/lease"
)

// records counts how often each line is in the parts below dir.
func records(t *testing.T, dir string) map[string]int {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, p := range parts {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := bytes.Cut([]byte(filepath.Base(p)), []byte("-0000000000-"))
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			seen[string(name)+lines.Text()]++
		}
	}
	return seen
}

// TestACoordinatorRestoredFromAnOldBackupLosesNothingAndDoublesNothing: its epoch
// counters and floors are behind what the checkpoint store has seen since; the
// store refuses the first runs, and that lifts the counters.
func TestACoordinatorRestoredFromAnOldBackupLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("    roll:"), fmt.Appendf(nil, "    checkpoint_store: %q\n    roll:", "file://"+filepath.Join(dir, "positions")), 1)
	text = bytes.Replace(text, []byte("messages_per_second: 500"), []byte("messages_per_second: 2500"), 1)
	if err := os.WriteFile(routes, text, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"--name", "n1", "--listen", "127.0.0.1:0", "--data-dir"}
	p := start(t, dir, nil, append(args, filepath.Join(dir, "before"), "--routes", routes)...)
	all := func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "") }
	eventually(t, "running", all, running)
	var backup bytes.Buffer
	if err := p.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "backup")
	if err := os.WriteFile(file, backup.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// Two more epochs, and more parts, that the backup knows nothing of.
	for want := uint64(2); want <= 3; want++ {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.wait()
		p = start(t, dir, nil, append(args, filepath.Join(dir, "before"))...)
		eventually(t, "running again", all, func(v api.Leases) bool { return running(v) && v.Leases[0].Epoch == want })
	}
	_ = p.cmd.Process.Kill()
	p.wait()

	var out, errOut bytes.Buffer
	after := filepath.Join(dir, "after")
	if code := execute([]string{"restore", "--name", "n1", "--data-dir", after, file}, &out, &errOut); code != 0 {
		t.Fatalf("restore: code %d: %s", code, errOut.String())
	}
	if code := execute([]string{"restore", "--name", "n1", "--data-dir", after, file}, &out, &errOut); code != 5 {
		t.Errorf("restore over a member's state: code %d", code)
	}
	p = start(t, dir, nil, append(args, after)...)
	v := eventually(t, "at the end of the input", all, func(v api.Leases) bool {
		n := 0
		for _, l := range v.Leases {
			if l.State == lease.StateDone && l.Position == "5000" {
				n++
			}
		}
		return n == 3
	})
	for _, l := range v.Leases {
		if l.Epoch <= 3 {
			t.Errorf("%s goes on under epoch %d, which was used before", l.Partition, l.Epoch)
		}
	}
	seen := records(t, filepath.Join(dir, "out"))
	if len(seen) != 15000 {
		t.Errorf("%d different records of 15000", len(seen))
	}
	for line, n := range seen {
		if n != 1 {
			t.Fatalf("%s is there %d times", line, n)
		}
	}
	// The fence that lifted the counters is in the history.
	h, err := p.History(t.Context(), "csv", "f0.csv")
	if err != nil || len(h.Runs) < 3 || h.Runs[1].End != "fence: the record holds epoch 3" || h.Runs[2].End != lease.EndLost {
		t.Errorf("history %+v %v", h, err)
	}
}
