package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/file"
	"github.com/mqbridge/mqb/checkpoint/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		// Each write flushes a file and a directory.
		Histories: 10_000, Steps: 12, Workers: 8,
		New: func(t *testing.T) *storetest.Subject {
			root := t.TempDir()
			return &storetest.Subject{
				Open: func(t *testing.T) checkpoint.Store { return open(t, root) },
				Tamper: func(t *testing.T, key string, change func([]byte) []byte) {
					tamper(t, open(t, root).RecordDir(key), change)
				},
			}
		},
	})
}

func open(t *testing.T, root string) *file.Store {
	t.Helper()
	s, err := file.Open(t.Context(), "file://"+root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func versions(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// tamper leaves a directory as a restored backup would: with one version.
func tamper(t *testing.T, dir string, change func([]byte) []byte) {
	t.Helper()
	var old []byte
	names := versions(t, dir)
	if len(names) > 0 {
		var err error
		if old, err = os.ReadFile(names[len(names)-1]); err != nil {
			t.Fatal(err)
		}
	}
	body := change(slices.Clone(old))
	if slices.Equal(body, old) {
		return
	}
	for _, n := range names {
		if err := os.Remove(n); err != nil {
			t.Fatal(err)
		}
	}
	if body == nil {
		return
	}
	rec, err := checkpoint.Decode(body)
	if err != nil { // torn: the name beside it is whole
		rec, _ = checkpoint.Decode(old)
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.json", rec.Version)), body, 0o644); err != nil {
		t.Fatal(err)
	}
}
