package scenarios

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// suites hold the behaviours that subtests are named for.
var suites = []string{"checkpoint/storetest", "connectors/sinktest", "connectors/sourcetest", "lease/leasetest"}

// A row that names a test which was renamed would be shown by nothing.
func TestEveryListedTestExists(t *testing.T) {
	var behaviours strings.Builder
	for _, dir := range suites {
		behaviours.WriteString(source(t, dir))
	}
	seen := map[string]map[string]bool{}
	for _, g := range List {
		for _, s := range g.Rows {
			if len(s.Tests) == 0 {
				t.Errorf("no test: %s", s.What)
			}
			for _, test := range s.Tests {
				if seen[test.Package] == nil {
					seen[test.Package] = tests(t, test.Package)
				}
				name, sub, _ := strings.Cut(test.Name, "/")
				if !seen[test.Package][name] {
					t.Errorf("%s: %s has no %s", s.What, test.Package, name)
				}
				sub = sub[strings.LastIndex(sub, "/")+1:]
				if quoted := `"` + strings.ReplaceAll(sub, "_", " ") + `"`; sub != "" &&
					!strings.Contains(behaviours.String(), quoted) && !strings.Contains(source(t, test.Package), quoted) {
					t.Errorf("%s: nothing is called %s", s.What, quoted)
				}
			}
		}
	}
}

func TestPageIsCurrent(t *testing.T) {
	text, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), Page()) {
		t.Error("docs/scenarios.md is not what the list says: go run ./test/scenarios/run -write")
	}
}

// tests are the top-level tests of a package.
func tests(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, path := range goFiles(t, pkg) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				out[f.Name.Name] = true
			}
		}
	}
	return out
}

func source(t *testing.T, pkg string) string {
	t.Helper()
	var b strings.Builder
	for _, path := range goFiles(t, pkg) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func goFiles(t *testing.T, pkg string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no files: %v", pkg, err)
	}
	return files
}
