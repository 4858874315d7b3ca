// Mutants takes the guards out of the product, one at a time, and runs the test
// that has to notice. The tree is not touched: the compiler is shown an edited
// copy of one file. A guard that no test needs is a guess; this is how the tests
// prove that they need each of them.
//
//	go run ./test/mutants            all of them, as a table
//	go run ./test/mutants -write     and the table into docs/testing.md
//	go run ./test/mutants -only gate those whose guard matches
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

var (
	only  = flag.String("only", "", "a regular `expression` that the guard must match")
	write = flag.Bool("write", false, "put the table into "+page)
)

const page = "docs/testing.md"

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mqb-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	lines := []string{"| Guard taken out | In | Test that turns red |", "|---|---|---|"}
	var survived []string
	for _, m := range mutants {
		if !match.MatchString(m.guard) {
			continue
		}
		started := time.Now()
		what, err := m.run(ctx, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.guard, err)
		}
		fmt.Printf("%-8s %5.1f s  %s: %s\n", what, time.Since(started).Seconds(), m.guard, m.test)
		if what != red {
			survived = append(survived, m.guard)
		}
		lines = append(lines, fmt.Sprintf("| %s | `%s` | `%s` in `%s` |", m.guard, m.file, m.test, m.pkg))
	}
	fmt.Printf("\n%s\n\n%.0f s\n", strings.Join(lines, "\n"), time.Since(began).Seconds())
	if len(survived) > 0 {
		return fmt.Errorf("nothing turned red without: %s", strings.Join(survived, "; "))
	}
	if *write {
		return insert(strings.Join(lines, "\n"))
	}
	return nil
}

// What became of a mutant.
const (
	red   = "red"
	green = "SURVIVED"
)

func (m mutant) run(ctx context.Context, dir string) (string, error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	var out, failed bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-json", "-timeout", "4m", "-run", pattern(m.test), "./"+m.pkg)
	// By the environment, so that a test which builds the product builds the mutant.
	cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay)
	cmd.Stdout, cmd.Stderr = &out, &failed
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	ran, broke := false, false
	var log strings.Builder
	for line := range bytes.Lines(out.Bytes()) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		log.WriteString(e.Output)
		if e.Test == m.test {
			ran = ran || e.Action == "run"
			broke = broke || e.Action == "fail"
		}
	}
	var exit *exec.ExitError
	switch {
	case runErr != nil && !errors.As(runErr, &exit):
		return "", runErr
	case !ran:
		return "", fmt.Errorf("%s did not run: %s%s", m.test, failed.String(), log.String())
	case broke, runErr != nil: // a panic ends the process before the test has a result
		return red, nil
	}
	return green, nil
}

// overlay writes the edited file and the list that puts it in the place of the
// real one.
func (m mutant) overlay(dir string) (string, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%q is there %d times in %s, want once: the guard was rewritten, rewrite its mutant", m.old, n, m.file)
	}
	edited := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(edited, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o644); err != nil {
		return "", err
	}
	real, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{real: edited}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o644)
}

// pattern matches one test, each level by its whole name.
func pattern(test string) string {
	levels := strings.Split(test, "/")
	for i, l := range levels {
		levels[i] = "^" + regexp.QuoteMeta(l) + "$"
	}
	return strings.Join(levels, "/")
}

// insert replaces what stands between the marks in the page.
func insert(table string) error {
	const from, to = "<!-- mutants -->\n", "<!-- /mutants -->"
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), from)
	_, after, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table between %q and %q", page, strings.TrimSpace(from), to)
	}
	return os.WriteFile(page, []byte(before+from+"\n"+table+"\n\n"+to+after), 0o644)
}
