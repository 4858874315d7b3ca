package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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

// restoring runs the three files of fileRoute, takes a backup early, goes on through
// two more epochs, dies, and starts what the backup makes. edit changes the route.
func restoring(t *testing.T, dir string, edit func(text []byte) []byte) *process {
	t.Helper()
	routes := fileRoute(t, dir)
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(edit(text), []byte("messages_per_second: 500"), []byte("messages_per_second: 1500"), 1)
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
	for want := uint64(2); want <= 3; want++ {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.wait()
		p = start(t, dir, nil, append(args, filepath.Join(dir, "before"))...)
		eventually(t, "running again", all, func(v api.Leases) bool {
			n := 0
			for _, l := range v.Leases {
				if l.Epoch >= want && l.Position != "" { // above it where the machine was slow
					n++
				}
			}
			return n == 3
		})
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
	return start(t, dir, nil, append(args, after)...)
}

// finished waits until everything was read, and finds each record once in the parts.
func finished(t *testing.T, p *process, dir string) api.Leases {
	t.Helper()
	v := eventually(t, "at the end of the input", func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "") }, func(v api.Leases) bool {
		n := 0
		for _, l := range v.Leases {
			if l.State == lease.StateDone && l.Position == "5000" {
				n++
			}
		}
		return n == 3
	})
	seen := records(t, filepath.Join(dir, "out"))
	if len(seen) != 15000 {
		t.Errorf("%d different records of 15000", len(seen))
	}
	for line, n := range seen {
		if n != 1 {
			t.Fatalf("%s is there %d times", line, n)
		}
	}
	return v
}

// TestACoordinatorRestoredFromAnOldBackupLosesNothingAndDoublesNothing: its epoch
// counters and floors are behind what the checkpoint store has seen since; the
// store refuses the first runs, and that lifts the counters.
func TestACoordinatorRestoredFromAnOldBackupLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := restoring(t, dir, func(text []byte) []byte {
		store := fmt.Appendf(nil, "    checkpoint_store: %q\n    roll:", "file://"+filepath.Join(dir, "positions"))
		return bytes.Replace(text, []byte("    roll:"), store, 1)
	})
	for _, l := range finished(t, p, dir).Leases {
		if l.Epoch <= 3 {
			t.Errorf("%s goes on under epoch %d, which was used before", l.Partition, l.Epoch)
		}
	}
	// The fence that lifted the counters is in the history.
	h, err := p.History(t.Context(), "csv", "f0.csv")
	if err != nil || len(h.Runs) < 3 || !strings.HasPrefix(h.Runs[1].End, "fence: the record holds epoch ") || h.Runs[2].End != lease.EndLost {
		t.Errorf("history %+v %v", h, err)
	}
}

// TestPositionsThatWentBackBehindPartsStopUntilAPersonSetsThem: the backup holds the
// positions themselves. The parts beyond them are the second witness, and say
// where to go on.
func TestPositionsThatWentBackBehindPartsStopUntilAPersonSetsThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := restoring(t, dir, func(text []byte) []byte { return text })
	ask := func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "") }
	v := eventually(t, "stopped", ask, func(v api.Leases) bool {
		n := 0
		for _, l := range v.Leases {
			if l.State == lease.StateQuarantined {
				n++
			}
		}
		return n == 3
	})
	advice := regexp.MustCompile(`to record (\d+) if`)
	for _, l := range v.Leases {
		m := advice.FindStringSubmatch(l.Reason)
		if m == nil {
			t.Fatalf("%s does not say where to go on: %s", l.Partition, l.Reason)
		}
		_, err := p.SetCheckpoint(t.Context(), "csv", api.SetRequest{Partition: l.Partition, Value: "1"})
		if e := api.AsError(err); e == nil || e.Code != api.CodeRefused {
			t.Errorf("%s set back into its parts: %v", l.Partition, err)
		}
		if _, err := p.SetCheckpoint(t.Context(), "csv", api.SetRequest{Partition: l.Partition, Value: m[1]}); err != nil {
			t.Fatal(err)
		}
	}
	finished(t, p, dir)
}
