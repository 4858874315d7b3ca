package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is mqbctl in a process of its own: for its standard streams, and signals.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "MQBCTL_TEST_PROCESS=1")
	return cmd
}

// eventually polls until ok, for half a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
		<-tick.C
	}
}

// What is copied to standard output is not mixed with anything.
func TestCopyFromStandardInputToStandardOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := process(t, "copy", "file:-?format=csv", "-", "--filter", "id >= 1", "--data-dir", filepath.Join(dir, "state"))
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("id,name\n0,a\n1,b\n2,c"), &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	if got := out.String(); got != "{\"id\":\"1\",\"name\":\"b\"}\n{\"id\":\"2\",\"name\":\"c\"}\n" {
		t.Errorf("%q", got)
	}
	if !strings.HasPrefix(errOut.String(), "2 records") || !strings.Contains(errOut.String(), "of 3 read: 1 filtered") {
		t.Errorf("%q", errOut.String())
	}
}

// An interrupt is how a copy ends that follows its input; it has lost nothing.
func TestAnInterruptEndsACopyThatFollowsWithZero(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := csvFile(t, dir, 10), filepath.Join(dir, "out.jsonl")
	cmd := process(t, "copy", in, out, "--drain=false", "--data-dir", filepath.Join(dir, "state"))
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		text, _ := os.ReadFile(out)
		return bytes.Count(text, []byte("\n"))
	}
	eventually(t, "ten lines", func() bool { return count() == 10 })
	f, err := os.OpenFile(in, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, "10,x")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the line that was added", func() bool { return count() == 11 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(printed.String(), "11 records") {
		t.Errorf("%v: %s", err, printed.String())
	}
}

// Killed at any moment, a copy goes on with --resume as if nothing had happened: no
// line is there twice, and none is missing.
func TestCopyKilledAndResumedWritesEachLineOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const n = 20_000
	in, out := csvFile(t, dir, n), filepath.Join(dir, "out.jsonl")
	args := []string{"copy", in + "|limiter?messages_per_second=8000", out, "--batch-size", "100", "--data-dir", filepath.Join(dir, "state"), "--resume"}
	size := func() int64 {
		info, err := os.Stat(out)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for range 2 {
		cmd := process(t, args...)
		before := size()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a few lines", func() bool { return size() > before+60_000 })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			t.Fatalf("killed: %v", err)
		}
	}
	if b, err := process(t, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, l := range lines {
		if want := fmt.Sprintf(`{"id":"%d","name":"x%d"}`, i, i); l != want {
			t.Fatalf("line %d is %s", i, l)
		}
	}
	if len(lines) != n {
		t.Errorf("%d lines", len(lines))
	}
}

// cutShort interrupts a copy of in to out when a few lines are there, and returns what it said.
func cutShort(t *testing.T, dir, in, out string, more ...string) (summary, string) {
	t.Helper()
	args := append([]string{"copy", in + "|limiter?messages_per_second=8000", out, "--batch-size", "100", "--data-dir", filepath.Join(dir, "state"), "-o", "json"}, more...)
	cmd := process(t, args...)
	var printed, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &errOut
	before := len(wholeFile(t, out))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a few lines", func() bool { return len(wholeFile(t, out)) > before+20_000 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	var s summary
	if err := json.Unmarshal(printed.Bytes(), &s); err != nil {
		t.Fatalf("%v: %s", err, printed.String())
	}
	return s, errOut.String()
}

func wholeFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return text
}

// What an interrupted copy commits on its way out is in its counts: every record
// that was read is in one of them (invariant 4), and the file has as many lines.
func TestTheCountsOfAnInterruptedCopyAreThoseOfItsEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := csvFile(t, dir, 100_000), filepath.Join(dir, "out.jsonl")
	s, said := cutShort(t, dir, in, out)
	if n := bytes.Count(wholeFile(t, out), []byte("\n")); int64(n) != s.Records || s.Read != s.Records+s.Counters.Returned || s.Partitions != 1 {
		t.Errorf("%d lines: %+v", n, s)
	}
	if !strings.Contains(said, "interrupted") || !strings.Contains(said, "--resume goes on") {
		t.Error(said)
	}
}

// timeout(1) signals the process and then its group: that is one interrupt, and no
// order to leave without committing.
func TestTwoSignalsAtOnceAreOneInterrupt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := csvFile(t, dir, 10), filepath.Join(dir, "out.jsonl")
	cmd := process(t, "copy", in, out, "--drain=false", "--data-dir", filepath.Join(dir, "state"))
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ten lines", func() bool { return bytes.Count(wholeFile(t, out), []byte("\n")) == 10 })
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(printed.String(), "10 records") {
		t.Errorf("%v: %s", err, printed.String())
	}
}
