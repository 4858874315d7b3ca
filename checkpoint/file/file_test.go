package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/file"
)

func record(version uint64) checkpoint.Record {
	return checkpoint.Record{ClusterUID: "c", Epoch: 1, Run: "r", Version: version}
}

func swap(t *testing.T, s *file.Store, key string, expected uint64) {
	t.Helper()
	if err := s.Swap(t.Context(), key, expected, record(expected+1)); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryOfURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	positions := filepath.Join(dir, "x.json") // of mq-bridge
	if err := os.WriteFile(positions, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{
		"file://" + dir + "/a%20b/c/": dir + "/a b/c",
		"file://" + positions:         positions + ".d",
	} {
		s, err := file.Open(t.Context(), url)
		if err != nil || s.Identity() != "file://"+want {
			t.Errorf("%s: %v, %v", url, s, err)
		}
	}
	if body, err := os.ReadFile(positions); err != nil || string(body) != "{}" {
		t.Errorf("the file of mq-bridge now holds %q, %v", body, err)
	}
	taken := filepath.Join(dir, "taken")
	if err := os.WriteFile(taken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"file://x.json", "file:x", "file:///", "s3://b/x", "file://" + taken, "/x"} {
		if _, err := file.Open(t.Context(), bad); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
}

// A link whose reply was lost is made again by an NFS client and meets itself.
func TestRepeatedLinkIsNoConflict(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mine, theirs, target := filepath.Join(dir, "mine"), filepath.Join(dir, "theirs"), filepath.Join(dir, "1.json")
	for _, name := range []string{mine, theirs} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := file.Link(mine, target); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Link(theirs, target); !errors.Is(err, checkpoint.ErrConflict) {
		t.Fatal(err)
	}
}

func TestThreeVersionsAreKept(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for v := range uint64(12) {
		swap(t, s, "k", v)
	}
	entries, err := os.ReadDir(s.RecordDir("k"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimLeft(e.Name(), "0"))
	}
	if want := []string{"10.json", "11.json", "12.json"}; !slices.Equal(names, want) {
		t.Fatalf("%q, want %q", names, want)
	}
}

// Writers that died leave temporary files. Those of versions to come belong to a
// writer that lives.
func TestTemporaryFilesOfTheDeadAreRemoved(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	swap(t, s, "k", 0)
	dir := s.RecordDir("k")
	for _, name := range []string{".1-77.tmp", ".2-78.tmp", ".3-79.tmp", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	swap(t, s, "k", 1)
	left, err := filepath.Glob(filepath.Join(dir, "*t*[pt]"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*.tmp"))
	if len(left)+len(hidden) < 2 || len(hidden) != 1 || filepath.Base(hidden[0]) != ".3-79.tmp" {
		t.Fatalf("left: %q, %q", hidden, left)
	}
}

func TestTornNewestVersionNeverFallsBackToTheOneBefore(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	swap(t, s, "k", 0)
	swap(t, s, "k", 1)
	newest := versions(t, s.RecordDir("k"))[1]
	if err := os.Truncate(newest, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	// A version that was copied over another one is none.
	body, err := os.ReadFile(versions(t, s.RecordDir("k"))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(newest, body, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
}

func TestLongAndLikeKeysAreApart(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	long := strings.Repeat("n/", 500)
	keys := []string{"A", "a", "a.", ".a", "..", "a+", "a%2f", "a/", "ä", "lost+found", long, long + "x", long[:100]}
	slices.Sort(keys)
	for _, k := range keys {
		rec := record(1)
		rec.Source = k
		if err := s.Swap(t.Context(), k, 0, rec); err != nil {
			t.Fatalf("%q: %v", k, err)
		}
	}
	got, err := s.List(t.Context(), "")
	if err != nil || len(got) != len(keys) {
		t.Fatalf("%d records, %v", len(got), err)
	}
	for i, e := range got {
		if e.Key != keys[i] || e.Record.Source != keys[i] || e.Err != nil {
			t.Errorf("%q holds %q (%v), want %q", e.Key, e.Record.Source, e.Err, keys[i])
		}
	}
}
