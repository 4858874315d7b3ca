// Package fleettest is what tests of whole clusters share: binaries built once,
// fleets that end with their test, routes from CSV to parts, and what a log has
// to say about a node that lost its partitions.
package fleettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/harness"
)

// Build tags of the binaries under test.
const (
	// Hooks is the product with the places at which tests stop it.
	Hooks = "mqbhooks"
	// NoFence is the build that loses and doubles records.
	NoFence = "mqbhooks,mqbnofence"
)

// TTL is the lease TTL of a fleet's nodes.
const TTL = 3 * time.Second

var builds = struct {
	sync.Mutex
	dir  string
	done map[string]string
}{done: map[string]string{}}

// Build returns the directory of mqbd and mqbctl built with tags, once for all
// tests of a package. The package's TestMain calls harness.Main, which removes it.
func Build(t testing.TB, tags string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if dir, ok := builds.done[tags]; ok {
		return dir
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "mqb-fleet-")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir = dir
		harness.AtEnd(func() { _ = os.RemoveAll(dir) })
	}
	dir := filepath.Join(builds.dir, "bin-"+strings.ReplaceAll(tags, ",", "-"))
	cmd := exec.Command("go", "build", "-tags", tags, "-o", dir+"/", "github.com/mqbridge/mqb/cmd/mqbd", "github.com/mqbridge/mqb/cmd/mqbctl")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	builds.done[tags] = dir
	return dir
}

// New returns a fleet whose nodes end with the test; the ends of their logs are
// shown when it fails.
func New(t testing.TB, tags string) *fleet.Fleet {
	t.Helper()
	f := &fleet.Fleet{Bin: Build(t, tags), Dir: t.TempDir(), TTL: TTL}
	t.Cleanup(func() {
		f.StopAll()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(f.Dir, "*.log"))
			for _, l := range logs {
				data, _ := os.ReadFile(l)
				t.Logf("%s:\n%s", filepath.Base(l), data[max(0, len(data)-6000):])
			}
		}
	})
	return f
}

// Start starts nodes and waits until all of them are members.
func Start(t testing.TB, f *fleet.Fleet, names ...string) {
	t.Helper()
	for _, n := range names {
		Must(t, f.Start(n))
	}
	Members(t, f, len(names))
}

// Members waits until n nodes are active, and voters where the nodes vote.
func Members(t testing.TB, f *fleet.Fleet, n int) {
	t.Helper()
	if f.Coordinator == "" {
		Must(t, f.Voters(t.Context(), n))
		return
	}
	Must(t, f.Active(t.Context(), n))
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Write writes a file below dir and returns its path.
func Write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// CSV writes a file of rows with the ids from first on.
func CSV(t testing.TB, dir, name string, first, rows int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("id,note\n")
	for i := range rows {
		fmt.Fprintf(&b, "%d,\"row, %d\"\n", first+i, i)
	}
	return Write(t, dir, name, b.String())
}

// Parts is a route from CSV files to parts. Extra lines go below the route.
func Parts(name, in, out string, extra ...string) string {
	return fmt.Sprintf(`routes:
  %s:
    input:
      file: {path: "%s", format: csv}
    output:
      file: {path: "%s", format: raw, name_by: source_position}
    shared_storage: true
%s`, name, in, out, indented(extra))
}

// Paced bounds the rate of a route's only input.
func Paced(spec string, perSecond int) string {
	return strings.Replace(spec, "    input:\n", fmt.Sprintf("    input:\n      middlewares: [{limiter: {messages_per_second: %d}}]\n", perSecond), 1)
}

func indented(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("    " + l + "\n")
	}
	return b.String()
}

// Apply applies a spec and fails the test if it is refused.
func Apply(t testing.TB, f *fleet.Fleet, spec string) {
	t.Helper()
	path := Write(t, f.Dir, "apply.yaml", spec)
	Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		_, err := f.Ctl(t.Context(), "apply", "-f", path)
		return err
	}))
}

// Hooked returns the environment of a node that fires a hook, and the file that
// tells when it did.
func Hooked(t testing.TB, hook string) (env []string, fired string) {
	fired = filepath.Join(t.TempDir(), "fired")
	return []string{"MQB_HOOK=" + hook, "MQB_HOOK_FILE=" + fired}, fired
}

// AwaitFile waits until a file is there.
func AwaitFile(t testing.TB, path string, within time.Duration) {
	t.Helper()
	Must(t, fleet.Eventually(t.Context(), within, func() error { _, err := os.Stat(path); return err }))
}

// AwaitLog waits until a node's log holds text.
func AwaitLog(t testing.TB, f *fleet.Fleet, node, text string, within time.Duration) {
	t.Helper()
	Must(t, fleet.Eventually(t.Context(), within, func() error {
		if !strings.Contains(f.Log(node), text) {
			return fmt.Errorf("%s does not say %q", node, text)
		}
		return nil
	}))
}

// Done waits until n partitions are at their end.
func Done(t testing.TB, f *fleet.Fleet, n int, within time.Duration) {
	t.Helper()
	Must(t, f.Until(t.Context(), within, "all is done", func(l fleet.Leases) bool { return l.Count("done", "") == n }))
}

// AwaitParts waits until more than n parts are in a directory.
func AwaitParts(t testing.TB, dir string, n int) {
	t.Helper()
	Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		parts, err := filepath.Glob(filepath.Join(dir, "part-*"))
		if err == nil && len(parts) <= n {
			err = fmt.Errorf("%d parts, want more than %d", len(parts), n)
		}
		return err
	}))
}

// CheckParts checks that the parts hold the ids 1..n once each, in order, and
// that no spool was left.
func CheckParts(t testing.TB, dir string, n int64) {
	t.Helper()
	r, err := checker.Parts(dir, n)
	Must(t, err)
	if !r.OK() {
		t.Errorf("%s: %s", dir, r)
	}
	NoSpools(t, dir)
}

// NoSpools checks that nothing half-made is left beside the parts.
func NoSpools(t testing.TB, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".spool*"))
	Must(t, err)
	if len(left) > 0 {
		t.Errorf("spool files left: %v", left)
	}
}

// Record is a checkpoint record as mqbctl shows it.
type Record struct {
	Epoch, Version uint64
	Position       string
}

// RecordOf is the record of a route with one partition.
func RecordOf(t testing.TB, f *fleet.Fleet, route string) Record {
	t.Helper()
	var r Record
	Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		out, err := f.Ctl(t.Context(), "checkpoint", "show", route, "-o", "json")
		if err != nil {
			return err
		}
		var v struct{ Checkpoints []Record }
		if err := json.Unmarshal(out, &v); err != nil {
			return err
		}
		if len(v.Checkpoints) != 1 {
			return errors.New("want one record: " + string(out))
		}
		r = v.Checkpoints[0]
		return nil
	}))
	return r
}

// NoNoise checks the log of a woken node: it says once per partition that it
// lost it, naming gate, fence or sink, and neither panics nor loops.
func NoNoise(t testing.TB, f *fleet.Fleet, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		log := f.Log(node)
		if strings.Contains(log, "goroutine ") {
			t.Errorf("%s printed a stack trace", node)
		}
		lost := map[string]int{}
		for line := range strings.Lines(log) {
			if !strings.Contains(line, "lost ownership") {
				continue
			}
			if !strings.Contains(line, "by=gate") && !strings.Contains(line, "by=fence") && !strings.Contains(line, "by=sink") {
				t.Errorf("%s does not say why: %s", node, line)
			}
			lost[field(line, "partition=")+"/"+field(line, "epoch=")]++
		}
		if len(lost) == 0 {
			t.Errorf("%s did not say that it lost its partitions", node)
		}
		for p, n := range lost {
			if n != 1 {
				t.Errorf("%s said %d times that it lost %s", node, n, p)
			}
		}
	}
}

func field(line, key string) string {
	_, rest, _ := strings.Cut(line, key)
	v, _, _ := strings.Cut(rest, " ")
	return strings.TrimSpace(v)
}
