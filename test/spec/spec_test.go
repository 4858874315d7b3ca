// Package spec searches the models of docs/spec with spin: what the protocol
// promises holds in each of them, and each control, which leaves out one rule,
// fails. A control that passes means that its model does not see that rule.
package spec

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check is one model with one set of switches, separated by spaces.
type check struct{ model, switches string }

// holds are searched to the end. How large each search is stands in the README.
var holds = []check{
	{"fencing", ""},
	{"intents", ""},
	{"handoff", ""},
	{"handoff", "TRANSACTIONAL"},
	{"counter", ""},
	{"restored", ""},
	{"restored", "NO_NAMES OLD_BACKUP"},
}

// fails are the controls. Each has to break what its model asserts.
var fails = []check{
	{"fencing", "NO_FENCE"},
	{"fencing", "NO_INTENT"},
	{"fencing", "RENAME"},
	{"fencing", "FALLBACK"},
	{"fencing", "CONSUME"},
	{"intents", "AHEAD"},
	{"intents", "RECHOOSE"},
	{"intents", "NO_FENCE"},
	{"handoff", "RELEASE_FIRST"},
	{"handoff", "SETTLE_FIRST"},
	{"handoff", "TRANSACTIONAL NO_FENCE"},
	{"counter", "NO_RUN"},
	{"counter", "NO_RAISE"},
	{"counter", "NO_FENCE"},
	{"restored", "NO_NAMES"},
	{"restored", "NO_NAMES OLD_BACKUP NO_MARK"},
}

const models = "../../docs/spec"

// atOnce bounds the searches side by side: each takes a core and up to memory MiB.
const (
	atOnce = 2
	memory = "900"
	limit  = 5 * time.Minute // of one step, on a machine that has other work
)

func TestModels(t *testing.T) {
	harness.Install(t, "spin", "gcc", "libc6-dev")
	turns := make(chan struct{}, atOnce)
	start := func(c check, broken bool) {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			c.search(t, broken)
		})
	}
	for _, c := range holds {
		start(c, false)
	}
	for _, c := range fails {
		start(c, true)
	}
}

func TestEveryModelIsSearched(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(models, "*.pml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("models in %s: %v, %v", models, files, err)
	}
	for _, f := range files {
		model := strings.TrimSuffix(filepath.Base(f), ".pml")
		of := func(c check) bool { return c.model == model }
		if !slices.ContainsFunc(holds, of) || !slices.ContainsFunc(fails, of) {
			t.Errorf("%s needs a search that holds and a control that fails", f)
		}
	}
}

func (c check) name() string {
	return strings.Join(append([]string{c.model}, strings.Fields(c.switches)...), "/")
}

// search makes the verifier of a model and runs it in a directory of its own.
func (c check) search(t *testing.T, broken bool) {
	model, err := filepath.Abs(filepath.Join(models, c.model+".pml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var args []string
	for _, s := range strings.Fields(c.switches) {
		args = append(args, "-D"+s)
	}
	run(t, dir, "spin", append(args, "-a", model)...)
	run(t, dir, "gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM="+memory, "-o", "pan", "pan.c")
	began := time.Now()
	out := run(t, dir, "./pan", "-m200000")
	took := time.Since(began).Round(10 * time.Millisecond)

	violated := bytes.Contains(out, []byte("assertion violated"))
	complete := bytes.Contains(out, []byte("errors: 0")) &&
		!bytes.Contains(out, []byte("Search not completed")) && !bytes.Contains(out, []byte("max search depth too small"))
	switch {
	case broken && !violated:
		t.Fatalf("this control has to break an assertion and does not:\n%s", out)
	case broken:
		if _, err := os.Stat(filepath.Join(dir, c.model+".pml.trail")); err != nil {
			t.Errorf("no counterexample: %v", err)
		}
	case !complete:
		t.Fatalf("does not hold, or was not searched to the end:\n%s\n%s", out, c.trail(t, dir, args, model))
	}
	t.Logf("%v: %s", took, line(out, "states, stored"))
}

// trail is the counterexample in words, as spin replays it.
func (c check) trail(t *testing.T, dir string, args []string, model string) []byte {
	if _, err := os.Stat(filepath.Join(dir, c.model+".pml.trail")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return run(t, dir, "spin", append(args, "-t", "-p", model)...)
}

func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if name == "./pan" {
		cmd.Path = filepath.Join(dir, "pan")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func line(out []byte, with string) string {
	for l := range strings.Lines(string(out)) {
		if strings.Contains(l, with) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}
