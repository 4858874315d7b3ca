package file_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/file"
	"github.com/mqbridge/mqb/test/harness"
)

// The tests of this file write from other processes: the test binary itself, built
// with hooks, which then runs writer instead of tests.
const writerEnv = "MQB_TEST_FILE_WRITER"

func TestMain(m *testing.M) {
	if url := os.Getenv(writerEnv); url != "" {
		if err := writer(url); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "mqb-file-writer-")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	writerPath = filepath.Join(dir, "writer")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// writer swaps "k" over the version named by each line it reads, or over the
// newest one for ever ("*"), and answers with what became of it.
func writer(url string) error {
	s, err := file.Open(context.Background(), url)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if in.Text() != "*" {
			expected, err := strconv.ParseUint(in.Text(), 10, 64)
			if err != nil {
				return err
			}
			fmt.Println(outcome(s.Swap(context.Background(), "k", expected, record(expected+1))))
			continue
		}
		for {
			now, err := s.Load(context.Background(), "k")
			if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
				return err
			}
			if err := s.Swap(context.Background(), "k", now.Version, record(now.Version+1)); err == nil {
				fmt.Println(now.Version + 1)
			} else if !errors.Is(err, checkpoint.ErrConflict) {
				return err
			}
		}
	}
	return in.Err()
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "written"
	case errors.Is(err, checkpoint.ErrConflict):
		return "conflict"
	}
	return err.Error()
}

var (
	writerPath  string
	buildWriter = sync.OnceValue(func() error {
		out, err := exec.Command("go", "test", "-c", "-tags", "mqbhooks", "-o", writerPath, ".").CombinedOutput()
		if err != nil {
			return fmt.Errorf("build the writer: %w\n%s", err, out)
		}
		return nil
	})
)

// process is a writer under the control of a test.
type process struct {
	cmd   *exec.Cmd
	in    *os.File
	out   *bufio.Reader
	fired string // the file that a hook writes when it fires
}

func startWriter(t *testing.T, root, hook string) *process {
	t.Helper()
	if err := buildWriter(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(writerPath), fired: filepath.Join(t.TempDir(), "fired")}
	p.cmd.Env = append(os.Environ(), writerEnv+"=file://"+root, "MQB_HOOK="+hook, "MQB_HOOK_FILE="+p.fired)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.in, p.out = inR, outW, inW, bufio.NewReader(outR)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = inR.Close()
	_ = outW.Close()
	t.Cleanup(func() {
		p.kill()
		_ = inW.Close()
		_ = outR.Close()
	})
	return p
}

func (p *process) say(line string) { _, _ = p.in.WriteString(line + "\n") }

// hear is the writer's next line, "" if it is dead.
func (p *process) hear() string {
	line, _ := p.out.ReadString('\n')
	return strings.TrimSpace(line)
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// atHook waits until the hook has fired and the process stands still or is gone.
func (p *process) atHook(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, func() error {
		_, err := os.Stat(p.fired)
		if err != nil {
			return err
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil || bytes.Contains(stat, []byte(") T ")) || bytes.Contains(stat, []byte(") Z ")) {
			return nil
		}
		return errors.New("still running")
	})
}

// A writer sleeps between two steps for so long that its name was used, and removed
// as old. Before it wrote its temporary file, the link then succeeds, and only the
// look after it tells; later the file is gone, or the version has its successors.
func TestSleepingWriterThatLinksARemovedNameIsFenced(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"checkpoint.file.compared", "checkpoint.file.written", "checkpoint.file.linked", "checkpoint.file.synced"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			s := open(t, root)
			swap(t, s, "k", 0)
			p := startWriter(t, root, point+"=stop")
			p.say("1")
			p.atHook(t)
			now, err := s.Load(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			// Whoever comes next fences the sleeper, whether it linked or not.
			for v := now.Version; v < 9; v++ {
				rec := record(v + 1)
				rec.Epoch = 2
				if err := s.Swap(t.Context(), "k", v, rec); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if got := p.hear(); got != "conflict" {
				t.Fatalf("the sleeper's swap: %q (invariant 1)", got)
			}
			if now, err = s.Load(t.Context(), "k"); err != nil || now.Epoch != 2 || now.Version != 9 {
				t.Fatalf("the record is now %+v, %v", now, err)
			}
			rec := record(10)
			if err := s.Swap(t.Context(), "k", 9, rec); err != nil {
				t.Fatal(err)
			}
			if names := versions(t, s.RecordDir("k")); len(names) != 3 {
				t.Fatalf("left behind: %q", names)
			}
		})
	}
}

func TestWriterKilledBetweenStepsHarmsNobody(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]uint64{
		"checkpoint.file.compared": 1, "checkpoint.file.written": 1, "checkpoint.file.linked": 2, "checkpoint.file.synced": 2,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			s := open(t, root)
			swap(t, s, "k", 0)
			p := startWriter(t, root, point+"=kill")
			p.say("1")
			if got := p.hear(); got != "" {
				t.Fatalf("not killed: %q", got)
			}
			rec, err := s.Load(t.Context(), "k")
			if err != nil || rec.Version != want {
				t.Fatalf("version %d, want %d (%v)", rec.Version, want, err)
			}
			swap(t, s, "k", want)
			if temps, _ := filepath.Glob(filepath.Join(s.RecordDir("k"), ".*")); len(temps) != 0 {
				t.Fatalf("left behind: %q", temps)
			}
		})
	}
}

// Two processes write as fast as they can and are killed at any moment, again and
// again: what one of them was told is written stays written, once.
func TestKilledAtAnyMomentNothingGoesBack(t *testing.T) {
	t.Parallel()
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	root := t.TempDir()
	s := open(t, root)
	var told uint64
	for range rounds {
		var wg sync.WaitGroup
		seen := make([][]uint64, 2)
		for i := range seen {
			p := startWriter(t, root, "")
			p.say("*")
			wg.Go(func() {
				for n := 0; n < 5+i; n++ {
					v, err := strconv.ParseUint(p.hear(), 10, 64)
					if err != nil {
						t.Errorf("the writer ended: %v", err)
						return
					}
					seen[i] = append(seen[i], v)
				}
				p.kill()
				for line := p.hear(); line != ""; line = p.hear() {
					if v, err := strconv.ParseUint(line, 10, 64); err == nil {
						seen[i] = append(seen[i], v)
					}
				}
			})
		}
		wg.Wait()
		rec, err := s.Load(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		winner := map[uint64]int{}
		for i, list := range seen {
			for _, v := range list {
				if other, twice := winner[v]; twice {
					t.Fatalf("version %d was written by %d and %d (invariant 1)", v, other, i)
				}
				if v <= told || v > rec.Version {
					t.Fatalf("version %d was written; before it %d, after it %d", v, told, rec.Version)
				}
				winner[v] = i
			}
		}
		told = rec.Version
	}
	if names := versions(t, s.RecordDir("k")); len(names) > 4 {
		t.Fatalf("left behind: %q", names)
	}
}
