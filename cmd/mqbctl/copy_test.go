package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// copyFiles runs copy with its state in dir.
func copyFiles(t *testing.T, dir string, args ...string) (summary, result) {
	t.Helper()
	r := mqbctl(t, "", append([]string{"copy", "-o", "json", "--data-dir", filepath.Join(dir, "state")}, args...)...)
	var s summary
	if r.code == 0 {
		if err := json.Unmarshal([]byte(r.out), &s); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
	}
	return s, r
}

func csvFile(t *testing.T, dir string, n int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("id,name\n")
	for i := range n {
		fmt.Fprintf(&b, "%d,x%d\n", i, i)
	}
	path := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lines are the records of all parts, in order.
func lines(t *testing.T, dir string) []string {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "part-*"))
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, p := range parts {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return strings.Split(strings.TrimSuffix(all.String(), "\n"), "\n")
}

// A good copy must say so, however short it is: its end can come before anybody
// waits for it.
func TestCopyDrainOfAGoodCopyExitsWithZero(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		dir := t.TempDir()
		s, r := copyFiles(t, dir, csvFile(t, dir, n), filepath.Join(dir, "out")+"/", "--drain")
		if r.code != 0 || s.Records != int64(n) || r.err != "" {
			t.Fatalf("%d records: %+v %+v", n, s, r)
		}
		if _, err := os.Stat(filepath.Join(dir, "state")); !os.IsNotExist(err) {
			t.Errorf("a complete copy left its state behind: %v", err)
		}
	}
}

func TestCopyFilterAndMiddlewaresOfTheURI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, r := copyFiles(t, dir, csvFile(t, dir, 100)+"|filter?id >= 50", filepath.Join(dir, "out")+"/?format=raw", "--filter", "id < 60")
	if r.code != 0 || s.Records != 10 || s.Counters.Filtered != 90 {
		t.Fatalf("%+v %+v", s, r)
	}
	if got := lines(t, filepath.Join(dir, "out")); len(got) != 10 || got[0] != `{"id":"50","name":"x50"}` {
		t.Errorf("%q", got)
	}
}

// The position behind a limit is right behind the last record, so that nothing is
// left out or repeated by the copy that goes on there.
func TestCopyLimitEndsAfterExactlyNRecordsAndResumeGoesOnBehindThem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := csvFile(t, dir, 5000), filepath.Join(dir, "out")+"/"
	for _, want := range []int64{1, 1500, 1023, 1025, 1451, 0} {
		limit := max(want, 1)
		if want == 1451 {
			limit = 4000
		}
		s, r := copyFiles(t, dir, in, out, "--resume", "--limit", fmt.Sprint(limit), "--batch-size", "100")
		if r.code != 0 || s.Records != want || !strings.Contains(r.err, "the state of this copy is in") {
			t.Fatalf("want %d: %+v %+v", want, s, r)
		}
	}
	got := lines(t, out)
	if len(got) != 5000 {
		t.Fatalf("%d lines", len(got))
	}
	for i, l := range got {
		if want := fmt.Sprintf(`{"id":"%d","name":"x%d"}`, i, i); l != want {
			t.Fatalf("line %d: %s", i, l)
		}
	}
}

// Files that an earlier run has read and deleted are done as soon as a run begins, and
// are not counted in place of those that are still to be read.
func TestCopyOfFilesThatAreDeletedGoesOnUntilTheLastOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	for round, files := range [][]string{{"a", "b", "c", "d"}, {"e", "f"}, {"g"}} {
		for _, name := range files {
			sub := filepath.Join(in, name)
			if err := os.MkdirAll(sub, 0o700); err != nil {
				t.Fatal(err)
			}
			csvFile(t, sub, 20_000)
		}
		s, r := copyFiles(t, dir, "file:"+filepath.Join(in, "*", "in.csv")+"?format=csv&delete=true", filepath.Join(dir, "out")+"/", "--resume")
		if r.code != 0 || s.Records != int64(20_000*len(files)) {
			t.Errorf("round %d: %+v %+v", round, s, r)
		}
		if left, _ := filepath.Glob(filepath.Join(in, "*", "in.csv")); len(left) > 0 {
			t.Errorf("round %d: %q are still there", round, left)
		}
	}
}

// A limit is of the copy, not of each of its partitions.
func TestCopyLimitIsSharedByAllFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 4 {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		csvFile(t, sub, 500)
	}
	s, r := copyFiles(t, dir, filepath.Join(dir, "*", "in.csv"), filepath.Join(dir, "out")+"/", "--limit", "777", "--batch-size", "50")
	if r.code != 0 || s.Records != 777 || len(lines(t, filepath.Join(dir, "out"))) != 777 {
		t.Errorf("%+v %+v", s, r)
	}
}

func TestCopyStartsOverWithoutResume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := csvFile(t, dir, 10)
	for range 2 {
		if s, r := copyFiles(t, dir, in, "null:"); r.code != 0 || s.Records != 10 {
			t.Fatalf("%+v %+v", s, r)
		}
	}
	for _, want := range []int64{10, 0} {
		if s, r := copyFiles(t, dir, in, "null:", "--resume"); r.code != 0 || s.Records != want {
			t.Fatalf("want %d: %+v %+v", want, s, r)
		}
	}
	// Another filter is another copy.
	if s, r := copyFiles(t, dir, in, "null:", "--resume", "--filter", "id > 3"); r.code != 0 || s.Records != 6 {
		t.Errorf("%+v %+v", s, r)
	}
}

func TestCopyWaitEndsWhenNothingCame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, r := copyFiles(t, dir, csvFile(t, dir, 10), "null:", "--wait", "300ms")
	if r.code != 0 || s.Records != 10 || s.Seconds < 0.3 {
		t.Errorf("%+v %+v", s, r)
	}
}

// An exit with 1 names the record and how to go on.
func TestCopyOfABadRecordExitsWithOneAndResumesBehindWhatWasGood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(in, []byte("id,name\n1,a\n2,\"b\" c\n3,d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, r := copyFiles(t, dir, in, filepath.Join(dir, "out")+"/")
	if r.code != 1 || !strings.Contains(r.err, "in.csv:3") || !strings.Contains(r.err, "--resume goes on") {
		t.Errorf("%+v", r)
	}
}

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Nothing was delivered, so there is nothing to wait fifty seconds for; and the
// cause that is shown is the connection's, not that something ended.
func TestCopyToOrFromADeadPortFailsInSecondsWithTheRealCause(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, port := csvFile(t, dir, 10), closedPort(t)
	for _, uris := range [][2]string{
		{in, "postgres://u:geheim@" + port + "/d?table=t"},
		{"kafka://" + port + "/t", "null:"},
	} {
		started := time.Now()
		_, r := copyFiles(t, dir, uris[0], uris[1], "--drain", "--connect-timeout", "3s")
		if r.code != 4 || !strings.Contains(r.err, "connection refused") || strings.Contains(r.err, "geheim") {
			t.Errorf("%v: %+v", uris, r)
		}
		if took := time.Since(started); took > 25*time.Second {
			t.Errorf("%v took %v", uris, took)
		}
	}
}

// What trying again cannot cure ends at once, with its cause and no other.
func TestAMisconfiguredEndpointEndsAtOnceAndDoesNotReconnectForEver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	_, r := copyFiles(t, dir, csvFile(t, dir, 10), file+"/", "--connect-timeout", "1m")
	if r.code == 0 || !strings.Contains(r.err, "director") {
		t.Errorf("%+v", r)
	}
	_, r = copyFiles(t, dir, filepath.Join(dir, "absent.csv"), filepath.Join(dir, "out")+"/", "--connect-timeout", "1m")
	if !strings.Contains(r.err, "absent.csv") {
		t.Errorf("absent: %+v", r)
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestCopyUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := csvFile(t, dir, 1)
	if err := os.Symlink(in, filepath.Join(dir, "link.csv")); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"needs a source and a destination":            {in},
		"one argument too many":                       {"--from", in, "null:", "x"},
		"--dlq and DST are the same":                  {in, filepath.Join(dir, "x"), "--dlq", filepath.Join(dir, "x")},
		"--resume and --no-resume":                    {in, "null:", "--resume", "--no-resume"},
		"--limit must not be negative":                {in, "null:", "--limit", "-1"},
		"did you mean --filter?":                      {in, "null:", "--filtr", "id > 1"},
		"is a directory: write":                       {in, dir},
		"are the same file":                           {in, filepath.Join(dir, "link.csv")},
		"--wait ends a copy":                          {in, "null:", "--wait", "1s", "--drain=false"},
		"invalid argument":                            {in, "null:", "--wait", "soon"},
		"--resume: a memory topic":                    {"memory:t", "null:", "--resume"},
		`unknown scheme "kafak"`:                      {"kafak://h/t", "null:"},
		`did you mean "format"`:                       {in + "?fromat=csv", "null:"},
		`"static" as an output is not`:                {in, "static:x"},
		"a nested endpoint (fanout) is not supported": {in, "fanout:?to=null:"},
	} {
		if _, r := copyFiles(t, dir, args...); r.code == 0 || r.code == 1 || !strings.Contains(r.err, want) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if s, r := copyFiles(t, dir, "--to", "null:", in); r.code != 0 || s.Records != 1 {
		t.Errorf("--to: %+v", r)
	}
}

// What copy prints as a file runs as a file, and has no password in it.
func TestCopyPrintsItsConfigurationWithSecretsMasked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := csvFile(t, dir, 3)
	r := mqbctl(t, "", "copy", in, filepath.Join(dir, "out")+"/", "--print-config")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	file := filepath.Join(dir, "routes.yaml")
	if err := os.WriteFile(file, []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, r := runFile(t, file, dir); r.code != 0 || s.Records != 3 {
		t.Errorf("%+v %+v", s, r)
	}
	r = mqbctl(t, "", "copy", in, "postgres://u:geheim@h/d?table=t&sslpassword=geheim2&passfile=x", "--print-config")
	if r.code != 0 || strings.Contains(r.out+r.err, "geheim") || !strings.Contains(r.err, "secrets are masked") {
		t.Errorf("%+v", r)
	}
}
