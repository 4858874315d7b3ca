// Package differential compares what mqbctl reads and writes with what programs
// that share no code with it read and write: Python's csv, json and gzip, zstd and
// lz4.
package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// records is how many each file has.
func records() int {
	if testing.Short() {
		return 5_000
	}
	return 200_000
}

// fixtures are made once for all tests, by Python.
var fixtures struct {
	sync.Once
	dir string
}

// fixture returns a file of the table that Python writes in each dialect, or of its
// JSON lines.
func fixture(t *testing.T, name string) string {
	t.Helper()
	f := &fixtures
	f.Do(func() {
		dir, err := os.MkdirTemp("", "mqb-differential-")
		if err != nil {
			t.Fatal(err)
		}
		harness.AtEnd(func() { _ = os.RemoveAll(dir) })
		python(t, "write", dir, strconv.Itoa(records()))
		python(t, "json", dir, strconv.Itoa(records()))
		f.dir = dir
	})
	if f.dir == "" {
		t.Fatal("there are no fixtures: see the first test")
	}
	return filepath.Join(f.dir, name)
}

// python runs the other side and returns its output.
func python(t *testing.T, args ...string) []byte {
	t.Helper()
	return tool(t, "python3", append([]string{"testdata/tables.py"}, args...)...)
}

// tool runs a program, which Debian has in a package of its name.
func tool(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		harness.Install(t, name)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, errOut.Bytes())
	}
	return out.Bytes()
}

// mqb runs a route to its end and checks that it wrote all records.
func mqb(t *testing.T, input, output string, keys ...string) {
	t.Helper()
	dir := t.TempDir()
	spec := filepath.Join(dir, "route.yaml")
	text := fmt.Sprintf("input: {%s}\noutput: {%s}\n%s\n", input, output, strings.Join(keys, "\n"))
	if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(fleettest.Build(t, ""), "mqbctl"), "run", spec, "--data-dir", filepath.Join(dir, "state"), "-o", "json")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s\n%v\n%s%s", text, err, errOut.Bytes(), out)
	}
	var sum struct{ Records int }
	if err := json.Unmarshal(out, &sum); err != nil || sum.Records != records() {
		t.Fatalf("%s\nwrote %d records instead of %d (%v): %s", text, sum.Records, records(), err, out)
	}
}

// file is the endpoint; keys are YAML of a flow mapping.
func file(path, keys string) string { return fmt.Sprintf("file: {path: %q, %s}", path, keys) }

// outputs are the ways in which mqb writes a file: the function returns what to set
// as output and, after the run, where the files are, in order. roll cuts parts.
var outputs = []struct {
	name string
	make func(t *testing.T, keys, ext string) (output string, files func() []string)
	roll string
}{
	{"appended", func(t *testing.T, keys, ext string) (string, func() []string) {
		path := filepath.Join(t.TempDir(), "out"+ext)
		return file(path, keys), func() []string { return []string{path} }
	}, ""},
	{"parts", func(t *testing.T, keys, ext string) (string, func() []string) {
		dir := filepath.Join(t.TempDir(), "out")
		return file(dir, keys+", name_by: source_position"), func() []string { return parts(t, dir, ext) }
	}, "roll: {records: 70000}"},
}

// parts are the files of a directory of parts, in the order of their records.
func parts(t *testing.T, dir, ext string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "part-*"+ext))
	if err != nil || len(list) == 0 {
		t.Fatalf("no parts in %s: %v", dir, err)
	}
	slices.Sort(list)
	return list
}

// joined writes files behind one another.
func joined(t *testing.T, paths []string) string {
	t.Helper()
	var all []byte
	for _, p := range paths {
		all = append(all, content(t, p)...)
	}
	return written(t, all)
}

func written(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sameValues fails unless two files of JSON lines have the same records.
func sameValues(t *testing.T, want, got string) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(string(python(t, "same", want, got))))
	if err != nil || n != records() {
		t.Fatalf("compared %d records instead of %d: %v", n, records(), err)
	}
}

// sameBytes fails unless two files are the same byte for byte.
func sameBytes(t *testing.T, want, got string) {
	t.Helper()
	a, b := content(t, want), content(t, got)
	if bytes.Equal(a, b) {
		return
	}
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	t.Fatalf("%d bytes instead of %d; the first difference is at %d:\n%q\n%q", len(b), len(a), at,
		a[max(0, at-60):min(len(a), at+60)], b[max(0, at-60):min(len(b), at+60)])
}
