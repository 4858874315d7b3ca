package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("HARNESS_TEST_BUSY") != "" {
		for range runtime.GOMAXPROCS(0) {
			go func() {
				for n := 0; ; n++ {
				}
			}()
		}
		select {}
	}
	if os.Getenv("HARNESS_TEST_PARENT") != "" {
		p, err := start(context.Background(), Spec{Path: "sleep", Args: []string{"600"}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		select {}
	}
	Main(m)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServerDoesNotOutliveKilledTestBinary(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HARNESS_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("child is not there")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	Eventually(t, 10*time.Second, func() error {
		// Whoever inherits the child reaps it, or leaves a zombie.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("still there: %s", stat)
		}
		return nil
	})
}

func TestFrozenProcessStops(t *testing.T) {
	p := Start(t, Spec{Path: "sleep", Args: []string{"600"}})
	p.Freeze()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil || !strings.Contains(string(stat), ") T ") {
		t.Errorf("not stopped: %s %v", stat, err)
	}
	p.Stop()
	p.Stop()
	if alive(p.Pid()) {
		t.Fatal("still there")
	}
}

// A server that answers once more after Freeze returned makes tests of a frozen one
// fail now and then: of many threads, the one that gets the signal has to be
// scheduled before the others stop.
func TestNothingOfAFrozenServerRuns(t *testing.T) {
	p := Start(t, Spec{Path: os.Args[0], Env: []string{"HARNESS_TEST_BUSY=1", "GOMAXPROCS=32"}})
	for range 5 {
		Eventually(t, 30*time.Second, func() error {
			if !moving(p.Pid()) {
				return errors.New("it does not run, or is not seen to")
			}
			return nil
		})
		p.Freeze()
		if moving(p.Pid()) {
			t.Fatal("something still runs")
		}
		p.Thaw()
	}
}

func TestStartSaysWhyServerDidNotComeUp(t *testing.T) {
	_, err := start(t.Context(), Spec{Path: "sh", Args: []string{"-c", "echo no such disk; exit 3"},
		Ready: func(context.Context) error { return errors.New("not yet") }})
	if err == nil || !strings.Contains(err.Error(), "no such disk") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("error does not say it: %v", err)
	}
}

func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		p := FreePort(t)
		if seen[p] {
			t.Fatalf("port %d twice", p)
		}
		seen[p] = true
	}
}

func TestCachedIsBuiltOnceAndNeverHalf(t *testing.T) {
	t.Setenv("MQB_TEST_CACHE", t.TempDir())
	if _, err := cached("thing-1", func(string) error { return errors.New("no network") }); err == nil {
		t.Fatal("failed build was accepted")
	}
	built := 0
	for range 2 {
		Cached(t, "thing-1", func(dir string) error { built++; return os.WriteFile(dir+"/x", nil, 0o644) })
	}
	if built != 1 {
		t.Fatalf("built %d times", built)
	}
}
