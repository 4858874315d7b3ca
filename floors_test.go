package mqb

import (
	"go/build"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// floors lists the packages from the ground up (docs/design.md, layout). A
// package imports only what stands on a lower floor, or what belongs to the same
// entry. hook, jsontext and logging stand below everything: they know nothing of the rest.
var floors = [][]string{
	{"hook", "jsontext", "logging"},
	{"message"},
	{"route"},
	{"dial"},
	{"lease"},
	{"checkpoint"},
	{"connectors", "middleware"},
	{"actors"},
	{"cluster"},
	{"."},
	{"cmd"},
}

const module = "github.com/mqbridge/mqb"

func floorOf(pkg string) int {
	top, _, _ := strings.Cut(pkg, "/")
	for i, names := range floors {
		for _, n := range names {
			if n == top {
				return i
			}
		}
	}
	return -1
}

func TestPackagesImportOnlyLowerFloors(t *testing.T) {
	t.Parallel()
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			return nil
		}
		// Tests and tools are not part of the product.
		if path == "test" || path == "tmp" || path == "docs" || path == "deploy" || path == "bin" || strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata" {
			return filepath.SkipDir
		}
		p, err := build.ImportDir(path, 0)
		if _, none := err.(*build.NoGoError); none {
			return nil
		}
		if err != nil {
			return err
		}
		seen++
		pkg := filepath.ToSlash(path)
		mine := floorOf(pkg)
		if mine < 0 {
			t.Errorf("package %s stands on no floor: give it a place in docs/design.md and in this test", pkg)
			return nil
		}
		for _, imp := range p.Imports {
			rel, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			rel = strings.TrimPrefix(rel, "/")
			if rel == "" {
				rel = "."
			}
			if other := floorOf(rel); other > mine || other < 0 {
				t.Errorf("%s imports %s, which stands above it", pkg, rel)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Fatalf("only %d packages seen", seen)
	}
}
