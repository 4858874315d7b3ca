// Package e2e runs the product as a user does: real processes, real servers,
// real signals.
package e2e

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// runWith runs a command with more environment.
func runWith(ctx context.Context, env []string, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
