package harness

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and then ends the servers that they shared
// (Kafka and its like start on first use). It fails the package when goroutines
// are left behind. Call it from TestMain; it does not return.
func Main(m *testing.M, leaks ...goleak.Option) {
	code := m.Run()
	shared.mu.Lock()
	for i := len(shared.stop) - 1; i >= 0; i-- {
		shared.stop[i]()
	}
	shared.mu.Unlock()
	if code == 0 {
		if err := goleak.Find(leaks...); err != nil {
			fmt.Fprintf(os.Stderr, "harness: goroutines left behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

var shared struct {
	mu   sync.Mutex
	stop []func()
}

// atEnd registers what Main does after the tests, last one first.
func atEnd(stop func()) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.stop = append(shared.stop, stop)
}

// AtEnd registers what Main does after the tests, for things that all of a
// package's tests share.
func AtEnd(do func()) { atEnd(do) }

// Cache is the directory in which downloads and builds are kept between test
// runs, outside the source tree: $MQB_TEST_CACHE, or mqb-test in the user's cache
// directory.
func Cache() string {
	dir := os.Getenv("MQB_TEST_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "mqb-test")
	}
	return dir
}

// Cached returns the directory Cache()/name, made by build if it is not there.
// build fills the directory it is given, which gets its name only when build
// succeeded; test binaries that ask at the same time wait for one another. The
// name carries the version of what is in it.
func Cached(t testing.TB, name string, build func(dir string) error) string {
	t.Helper()
	dir, err := cached(name, build)
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	return dir
}

func cached(name string, build func(dir string) error) (string, error) {
	dir := filepath.Join(Cache(), name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := lock(name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(Cache(), "unfinished-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := build(tmp); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	// MkdirTemp's mode would keep servers that run as another user out.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

// lock takes a lock among all test binaries of this user on this machine; the
// kernel gives it back if the binary dies.
func lock(name string) (unlock func(), err error) {
	f, err := lockFile(name, syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = f.Close() }, nil
}

func lockFile(name string, how int) (*os.File, error) {
	dir := filepath.Join(Cache(), "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// ports keeps the lock files of FreePort open for the life of the test binary.
var ports struct {
	mu   sync.Mutex
	next int
	held []*os.File
}

const firstPort, portCount = 18000, 12000

// FreePort returns a loopback port that no other caller gets while this test
// binary lives, so that a server can be started on it again. The ports lie below
// the range from which Linux picks those of outgoing connections.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	return port
}

func freePort() (int, error) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.next == 0 {
		h := fnv.New32a()
		fmt.Fprint(h, os.Getpid())
		ports.next = 1 + int(h.Sum32()%portCount)
	}
	for range portCount {
		port := firstPort + ports.next%portCount
		ports.next++
		f, err := lockFile(fmt.Sprintf("port-%d", port), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			return 0, err
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			_ = f.Close()
			continue
		}
		_ = l.Close()
		ports.held = append(ports.held, f)
		return port, nil
	}
	return 0, errors.New("no free port")
}

// Install makes sure that Debian packages are there and installs what is missing,
// which only root on a Debian system can.
func Install(t testing.TB, packages ...string) {
	t.Helper()
	missing := notInstalled(packages)
	if len(missing) == 0 {
		return
	}
	cmd := "apt-get install --no-install-recommends " + strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		t.Fatalf("harness: this test needs Debian packages that are not installed; as root: %s", cmd)
	}
	unlock, err := lock("apt")
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	defer unlock()
	if missing = notInstalled(packages); len(missing) == 0 {
		return
	}
	// Without lists, or with old ones, the first try fails quickly.
	if _, err := apt(append([]string{"install", "-y", "--no-install-recommends"}, missing...)...); err == nil {
		return
	}
	if out, err := apt("update"); err != nil {
		t.Fatalf("harness: apt-get update: %v\n%s", err, out)
	}
	if out, err := apt(append([]string{"install", "-y", "--no-install-recommends"}, missing...)...); err != nil {
		t.Fatalf("harness: %s: %v\n%s", cmd, err, out)
	}
}

func apt(args ...string) ([]byte, error) {
	cmd := exec.Command("apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	// RUNLEVEL keeps the packages' services from starting by themselves.
	cmd.Env = append(os.Environ(), "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive")
	return cmd.CombinedOutput()
}

func notInstalled(packages []string) (missing []string) {
	for _, p := range packages {
		out, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status}", p).Output()
		if err != nil || string(out) != "installed" {
			missing = append(missing, p)
		}
	}
	return missing
}

// Eventually polls cond until it returns nil, and fails the test with its last
// error when that takes longer than within.
func Eventually(t testing.TB, within time.Duration, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not so after %v: %v", within, err)
		}
		time.Sleep(pause)
	}
}
