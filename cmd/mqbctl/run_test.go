package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// csvRoute writes n rows and a route that makes parts of them.
func csvRoute(t *testing.T, n int, more string) (file, dir string) {
	t.Helper()
	dir = t.TempDir()
	var b strings.Builder
	b.WriteString("id,name\n")
	for i := range n {
		fmt.Fprintf(&b, "%d,x%d\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "in.csv"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "routes.yaml")
	text := fmt.Sprintf("routes:\n  csv:\n    input: {file: {path: %q, format: csv}}\n    output: {file: {path: %q, format: raw, name_by: source_position}}\n%s",
		filepath.Join(dir, "in.csv"), filepath.Join(dir, "out"), more)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, dir
}

func runFile(t *testing.T, file, dir string, args ...string) (summary, result) {
	t.Helper()
	r := mqbctl(t, "", append([]string{"run", file, "--data-dir", filepath.Join(dir, "state"), "-o", "json"}, args...)...)
	var s summary
	if err := json.Unmarshal([]byte(r.out), &s); err != nil && r.code == 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	return s, r
}

// rows counts the lines of all parts.
func rows(t *testing.T, dir string) (n int) {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "out", "part-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(text), "\n")
	}
	return n
}

func TestRunEndsAtTheEndOfInputAndGoesOnFromThere(t *testing.T) {
	t.Parallel()
	file, dir := csvRoute(t, 5000, "")
	s, r := runFile(t, file, dir)
	if r.code != 0 || s.Records != 5000 || s.Done != 1 || s.Bytes == 0 || s.Counters.Read != 5000 {
		t.Fatalf("first run: %+v %+v", s, r)
	}
	f, err := os.OpenFile(filepath.Join(dir, "in.csv"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		fmt.Fprintf(f, "%d,y\n", i)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s, r := runFile(t, file, dir); r.code != 0 || s.Records != 10 {
		t.Fatalf("second run: %+v %+v", s, r)
	}
	if n := rows(t, dir); n != 5010 {
		t.Errorf("%d rows", n)
	}
}

func TestRunReportsAStoppedPartition(t *testing.T) {
	t.Parallel()
	file, dir := csvRoute(t, 10, "")
	in := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(in, []byte("id,name\n1,a\n2,\"b\" c\n3,d\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, r := runFile(t, file, dir)
	if r.code != 1 || !strings.Contains(r.err, "in.csv") {
		t.Errorf("%+v", r)
	}
}

// TestRunLeavesRoutesOfOtherFilesAlone: what another file brought into the same
// directory must not run because this one does.
func TestRunLeavesRoutesOfOtherFilesAlone(t *testing.T) {
	t.Parallel()
	first, dir := csvRoute(t, 100, "")
	if _, r := runFile(t, first, dir); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if err := os.WriteFile(filepath.Join(dir, "in2.csv"), []byte("id\n1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(dir, "second.yaml")
	text := fmt.Sprintf("routes:\n  other:\n    input: {file: {path: %q, format: csv}}\n    output: null\n", filepath.Join(dir, "in2.csv"))
	if err := os.WriteFile(second, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, r := runFile(t, second, dir)
	if r.code != 0 || s.Partitions != 1 || s.Records != 1 {
		t.Errorf("%+v %+v", s, r)
	}
	if s, r := runFile(t, first, dir); r.code != 0 || s.Partitions != 1 || s.Records != 0 {
		t.Errorf("the first again: %+v %+v", s, r)
	}
}

func TestRunUsage(t *testing.T) {
	t.Parallel()
	file, dir := csvRoute(t, 1, "")
	for _, args := range [][]string{{"--memory", "lots"}, {"--log-level", "loud"}} {
		if _, r := runFile(t, file, dir, args...); r.code != 2 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if _, r := runFile(t, file, dir, "--position", "latest"); r.code != 5 {
		t.Errorf("latest: %+v", r)
	}
}

// The cause that is shown is what the system said, not that a wait was over; and
// --connect-timeout ends it long before give_up_after does.
func TestRunNamesTheRealCauseOfAStartThatFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, port := csvFile(t, dir, 3), closedPort(t)
	for text, want := range map[string]string{
		fmt.Sprintf("input: {file: {path: %q, format: csv}}\noutput: {sqlx: {url: \"postgres://u@%s/d\", table: t}}\n", in, port): "route r: output: not reachable within 3s",
		fmt.Sprintf("input: {kafka: {url: %q, topic: t}}\n", port):                                                                "route r: input: not reachable within 3s",
	} {
		dir, file := t.TempDir(), write(t, "r.yaml", text)
		started := time.Now()
		_, r := runFile(t, file, dir, "--connect-timeout", "3s")
		if r.code != 4 || !strings.Contains(r.err, want) || !strings.Contains(r.err, "connection refused") || strings.Contains(r.err, "deadline") || strings.Contains(r.err, "mqbctl nodes") {
			t.Errorf("%+v", r)
		}
		if took := time.Since(started); took > 25*time.Second {
			t.Errorf("took %v", took)
		}
	}
}
