package file

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mqbridge/mqb/connectors"
)

// A disk that fills up while a part is written costs that part; after space was
// freed the same records are written again and are there once.
func TestDiskFullLosesNothing(t *testing.T) {
	dir := smallDisk(t)
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 600<<10), 0o644))
	row := strings.Repeat("r", 1000)
	rows := slices.Repeat([]string{row}, 300)
	fill := func(w *parts) error {
		for range 2 {
			if err := w.Stage(t.Context(), batchOf(rows...), 0, len(rows)); err != nil {
				return err
			}
		}
		_, err := w.Seal(t.Context(), position(0), position(600), "")
		return err
	}
	err := fill(writer(t, dir, "raw", ordersClaim(1)))
	if connectors.Classify(err) != connectors.ClassRetryable || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space") {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 || len(objects(t, dir)) > 0 {
		t.Fatalf("left: %q, parts %d", left, len(objects(t, dir)))
	}
	must(t, os.Remove(ballast))
	w := writer(t, dir, "raw", ordersClaim(2))
	must(t, w.Stage(t.Context(), batchOf(rows...), 0, len(rows)))
	must(t, w.Stage(t.Context(), batchOf(rows...), 0, len(rows)))
	in := seal(t, w, 0, 600)
	must(t, w.Publish(t.Context(), in))
	if got := objects(t, dir)[in.Name]; strings.Count(got, row+"\n") != 600 || in.Bytes != int64(len(got)) {
		t.Fatalf("%d bytes, %d records", len(got), strings.Count(got, row+"\n"))
	}
}

// An append that the disk has no room for is taken back, and may be tried again with
// the same writer; the file never ends inside a record.
func TestDiskFullAppendIsTakenBack(t *testing.T) {
	dir := smallDisk(t)
	ballast := filepath.Join(dir, "ballast")
	must(t, os.WriteFile(ballast, make([]byte, 600<<10), 0o644))
	cfg := Config{Path: filepath.Join(dir, "out"), Format: "raw"}
	w := appending(t, cfg, ordersClaim(1))
	row := strings.Repeat("r", 1000)
	rows := slices.Repeat([]string{row}, 300)
	put(t, w, rows...)
	s := state(t, w)
	err := w.Write(t.Context(), batchOf(rows...), 0, len(rows))
	if connectors.Classify(err) != connectors.ClassRetryable || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space") {
		t.Fatalf("got %v", err)
	}
	if again := state(t, w); string(again) != string(s) || fileSize(t, cfg.Path) != 300*1001 {
		t.Fatalf("the state went from %s to %s, the file has %d bytes", s, again, fileSize(t, cfg.Path))
	}
	must(t, os.Remove(ballast))
	put(t, w, rows...)
	if got := contentOf(t, cfg.Path); got != strings.Repeat(row+"\n", 600) {
		t.Fatalf("%d bytes", len(got))
	}
	// Compressed bytes cannot be told apart: the run ends, and the next one cuts them off.
	must(t, os.WriteFile(ballast, make([]byte, 300<<10), 0o644))
	cfg = Config{Path: filepath.Join(dir, "out.gz"), Format: "raw"}
	w = appending(t, cfg, ordersClaim(1))
	put(t, w, "first")
	s = state(t, w)
	noise := make([]byte, 600<<10)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte('a' + r.IntN(26))
	}
	err = w.Write(t.Context(), batchOf(string(noise)), 0, 1)
	if err == nil {
		_, err = w.State(t.Context())
	}
	if connectors.Classify(err) != connectors.ClassRetryable {
		t.Fatalf("got %v", err)
	}
	if err := w.Write(t.Context(), batchOf("second"), 0, 1); err == nil {
		t.Fatal("written behind what is not whole")
	}
	must(t, w.Close())
	must(t, os.Remove(ballast))
	w = appending(t, cfg, withState(ordersClaim(1), s))
	put(t, w, "second")
	state(t, w)
	if got := foreign(t, cfg.Path); got != "first\nsecond\n" {
		t.Fatalf("%.100q", got)
	}
}

// smallDisk is a file system of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "small")
	must(t, os.Mkdir(dir, 0o755))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("this test mounts a small file system and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
