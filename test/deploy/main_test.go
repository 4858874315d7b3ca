// Package deploy tests what stands in /deploy as it is used: the image and the
// compose files with a container engine, the unit with systemd's own check. The
// schemas of compose and Kubernetes are in the module beside it, schema.
package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// root is the project's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	must(t, err)
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs a program in the project's directory with env added, for at most
// the time given, and returns its standard output.
func command(t *testing.T, within time.Duration, env []string, name string, args ...string) (string, error) {
	t.Helper()
	// Not the test's context: it is over when cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, tail(out.String()), tail(errOut.String()))
	}
	return out.String(), nil
}

func tail(s string) string { return s[max(0, len(s)-4096):] }
