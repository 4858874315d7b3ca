// Package e2e runs the product as a user does: real processes, real servers,
// real signals.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// builds are the binaries under test, by build tags, made once.
var builds = struct {
	sync.Mutex
	dir  string
	done map[string]string
}{done: map[string]string{}}

// build returns the directory of mqbd and mqbctl built with tags.
func build(t *testing.T, tags string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if dir, ok := builds.done[tags]; ok {
		return dir
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "mqb-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir = dir
	}
	dir := filepath.Join(builds.dir, "bin-"+strings.ReplaceAll(tags, ",", "-"))
	cmd := exec.Command("go", "build", "-tags", tags, "-o", dir+"/", "./cmd/mqbd", "./cmd/mqbctl")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	builds.done[tags] = dir
	return dir
}

const (
	withHooks = "mqbhooks"
	noFence   = "mqbhooks,mqbnofence"
)

// newFleet returns a fleet whose nodes end with the test; their logs are shown
// when it fails.
func newFleet(t *testing.T, tags string) *fleet.Fleet {
	t.Helper()
	f := &fleet.Fleet{Bin: build(t, tags), Dir: t.TempDir(), TTL: 3 * time.Second}
	t.Cleanup(func() {
		f.StopAll()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(f.Dir, "*.log"))
			for _, l := range logs {
				data, _ := os.ReadFile(l)
				if len(data) > 6000 {
					data = data[len(data)-6000:]
				}
				t.Logf("%s:\n%s", filepath.Base(l), data)
			}
		}
	})
	return f
}

func startAll(t *testing.T, f *fleet.Fleet, names ...string) {
	t.Helper()
	for _, n := range names {
		must(t, f.Start(n))
	}
	must(t, f.Voters(ctxOf(t), len(names)))
}

func ctxOf(t *testing.T) context.Context { return t.Context() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes a file below dir and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// csvFile writes rows with the ids from first on.
func csvFile(t *testing.T, dir, name string, first, rows int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("id,note\n")
	for i := range rows {
		fmt.Fprintf(&b, "%d,\"row, %d\"\n", first+i, i)
	}
	return write(t, dir, name, b.String())
}

// apply applies a spec and fails the test if it is refused.
func apply(t *testing.T, f *fleet.Fleet, spec string) {
	t.Helper()
	path := write(t, f.Dir, "apply.yaml", spec)
	must(t, fleet.Eventually(ctxOf(t), 15*time.Second, func() error {
		_, err := f.Ctl(ctxOf(t), "apply", "-f", path)
		return err
	}))
}

// hooked returns the environment of a node that fires a hook, and the file that
// tells when it did.
func hooked(t *testing.T, hook string) (env []string, fired string) {
	fired = filepath.Join(t.TempDir(), "fired")
	return []string{"MQB_HOOK=" + hook, "MQB_HOOK_FILE=" + fired}, fired
}

// awaitFile waits until a file is there.
func awaitFile(t *testing.T, path string, within time.Duration) {
	t.Helper()
	must(t, fleet.Eventually(ctxOf(t), within, func() error { _, err := os.Stat(path); return err }))
}

// runWith runs a command with more environment.
func runWith(ctx context.Context, env []string, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
