package file

import (
	"errors"
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
