package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqbridge/mqb/cluster/api"
	"github.com/mqbridge/mqb/cluster/api/client"
	"github.com/mqbridge/mqb/lease"
	"github.com/spf13/pflag"
)

// asMqbd makes this test binary an mqbd, so that tests have real processes.
const asMqbd = "MQBD_TEST_AS_MQBD"

func TestMain(m *testing.M) {
	if os.Getenv(asMqbd) != "" {
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process is a running mqbd; its log is read line by line.
type process struct {
	cmd  *exec.Cmd
	log  bytes.Buffer
	line *bufio.Scanner
	addr string
	*client.Client
}

// start launches mqbd and waits until it listens.
func start(t *testing.T, dir string, env []string, args ...string) *process {
	t.Helper()
	return startWith(t, dir, client.Access{}, env, args...)
}

// startWith gives the client of the process an access.
func startWith(t *testing.T, dir string, access client.Access, env []string, args ...string) *process {
	t.Helper()
	p := launch(t, dir, env, args...)
	_, rest, _ := strings.Cut(p.until(t, "node started"), "address=")
	p.addr, _, _ = strings.Cut(rest, " ")
	c, err := client.New(p.addr, access)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p.Client = c
	return p
}

// launch runs mqbd with its own working directory.
func launch(t *testing.T, dir string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Dir = dir
	p.cmd.Env = append(append(os.Environ(), asMqbd+"=1", "STATE_DIRECTORY="), env...)
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		_ = w.Close()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		go func() { _, _ = io.Copy(io.Discard, r) }()
		<-exited
		if t.Failed() {
			t.Logf("log of mqbd:\n%s", p.log.String())
		}
	})
	p.line = bufio.NewScanner(r)
	return p
}

// until reads the log up to a line that contains text.
func (p *process) until(t *testing.T, text string) string {
	t.Helper()
	for p.line.Scan() {
		fmt.Fprintln(&p.log, p.line.Text())
		if strings.Contains(p.line.Text(), text) {
			return p.line.Text()
		}
	}
	t.Fatalf("mqbd ended before it said %q", text)
	return ""
}

// wait reads the log to its end and returns the exit code.
func (p *process) wait() int {
	for p.line.Scan() {
		fmt.Fprintln(&p.log, p.line.Text())
	}
	return p.cmd.ProcessState.ExitCode()
}

// eventually asks until ok says so.
func eventually[T any](t *testing.T, what string, ask func(context.Context) (T, error), ok func(T) bool) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		v, err := ask(ctx)
		if err == nil && ok(v) {
			return v
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never %s: %+v %v", what, v, err)
		}
	}
}

// fileRoute writes a paced route whose parts appear in dir/out.
func fileRoute(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("id\n")
	for i := range 5000 {
		fmt.Fprintln(&b, i)
	}
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, "in", fmt.Sprintf("f%d.csv", i)), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "routes.yaml")
	text := fmt.Sprintf(`routes:
  csv:
    shared_storage: true
    roll: {records: 100}
    batch_size: 50
    input: {file: {path: %q, format: csv}, middlewares: [limiter: {messages_per_second: 500}]}
    output: {file: {path: %q, format: raw, name_by: source_position}}
`, filepath.Join(dir, "in", "*.csv"), filepath.Join(dir, "out"))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func running(v api.Leases) bool {
	n := 0
	for _, l := range v.Leases {
		if l.State == lease.StateRunning && l.Owner != "" && l.Position != "" {
			n++
		}
	}
	return n == 3
}

func TestDefaultsMakeAWorkingNodeThatDrainsOnSIGTERM(t *testing.T) {
	dir := t.TempDir()
	// Only the port is not the default: tests run beside other things.
	p := start(t, dir, []string{"MQBD_LISTEN=127.0.0.1:0"}, "--routes", fileRoute(t, dir))
	all := func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "") }
	v := eventually(t, "running", all, running)
	if v.Leases[0].Guarantee != "exactly-once" || v.Leases[0].Epoch != 1 {
		t.Errorf("leases %+v", v)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".mqb", "raft")); err != nil {
		t.Errorf("no state under .mqb: %v", err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	log := p.log.String()
	if n := strings.Count(log, "msg=released"); n != 3 {
		t.Errorf("%d partitions released", n)
	}
	if strings.Contains(log, "not everything was handed over") || strings.Contains(log, "goroutine ") {
		t.Error("the stop was not clean")
	}

	// Started again, each partition goes on under a new epoch.
	p = start(t, dir, nil, "--listen", "127.0.0.1:0")
	v = eventually(t, "running again", func(ctx context.Context) (api.Leases, error) { return p.Leases(ctx, "csv") }, running)
	for _, l := range v.Leases {
		if l.Epoch != 2 {
			t.Errorf("epoch %d after a restart", l.Epoch)
		}
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The limiter holds a batch for most of a minute, and a drain waits for it.
	path := filepath.Join(dir, "routes.yaml")
	if err := os.WriteFile(path, []byte("routes:\n  slow:\n    batch_size: 5\n    input: {static: x, middlewares: [limiter: {messages_per_second: 0.1}]}\n    output: null\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, nil, "--listen", "127.0.0.1:0", "--routes", path)
	p.until(t, "msg=running")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.until(t, "stopping")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p.wait()
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("took %s after the second signal", d)
	}
}

func TestThreeNodesShareAndDrain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	routes := fileRoute(t, dir)
	nodes := map[string]*process{}
	for _, name := range []string{"n1", "n2", "n3"} {
		args := []string{"--name", name, "--data-dir", filepath.Join(dir, name), "--listen", "127.0.0.1:0"}
		if n1 := nodes["n1"]; n1 != nil {
			args = append(args, "--join", n1.addr)
		}
		nodes[name] = start(t, dir, nil, args...)
	}
	one := nodes["n1"]
	eventually(t, "three voters", one.Nodes, func(v api.Nodes) bool {
		n := 0
		for _, x := range v.Nodes {
			if x.Voter && x.State == api.NodeActive {
				n++
			}
		}
		return n == 3
	})
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes["n2"].Apply(t.Context(), api.File{Text: string(text)}, "", false); err != nil {
		t.Fatal(err)
	}
	all := func(ctx context.Context) (api.Leases, error) { return nodes["n3"].Leases(ctx, "") }
	owners := func(v api.Leases) map[string]bool {
		out := map[string]bool{}
		for _, l := range v.Leases {
			out[l.Owner] = true
		}
		return out
	}
	eventually(t, "one partition each", all, func(v api.Leases) bool { return running(v) && len(owners(v)) == 3 })
	if err := one.Drain(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "off the drained node", all, func(v api.Leases) bool { return running(v) && !owners(v)["n2"] })
	eventually(t, "drained", one.Nodes, func(v api.Nodes) bool { return v.Nodes[1].State == api.NodeDrained })
}

func TestHealthAsksTheNode(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), nil, "--listen", "127.0.0.1:0")
	eventually(t, "ready", func(ctx context.Context) (error, error) { return p.Ready(ctx), nil },
		func(err error) bool { return err == nil })
	var out, errOut bytes.Buffer
	if code := execute([]string{"health", "--server", p.addr}, &out, &errOut); code != 0 {
		t.Errorf("code %d: %s", code, errOut.String())
	}
	_ = p.cmd.Process.Kill()
	p.wait()
	if code := execute([]string{"health", "--server", p.addr}, &out, &errOut); code != 4 {
		t.Errorf("code %d of a dead node", code)
	}
}

func TestOccupiedPortAndInvalidRoutesEndTheProcess(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("routes: {r: {inptu: {static: x}}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[int][]string{
		1: {"--listen", l.Addr().String()},
		2: {"--listen", "0.0.0.0:7070"},
		3: {"--listen", "127.0.0.1:0", "--routes", bad},
	} {
		cmd := exec.Command(os.Args[0], append(args, "--data-dir", t.TempDir())...)
		cmd.Env = append(os.Environ(), asMqbd+"=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != want {
			t.Errorf("%v: %v, want %d\n%s", args, err, want, out)
		}
	}
}

func parse(t *testing.T, env map[string]string, file string, args ...string) (options, error) {
	t.Helper()
	var o options
	fs := pflag.NewFlagSet("mqbd", pflag.ContinueOnError)
	o.flags(fs)
	if file != "" {
		path := filepath.Join(t.TempDir(), "mqbd.yaml")
		if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	err := o.load(fs, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	if err != nil {
		return o, err
	}
	return o, o.check()
}

func TestFlagsVariablesAndFileSayTheSame(t *testing.T) {
	t.Parallel()
	env := map[string]string{"MQBD_NAME": "env", "MQBD_DATA_DIR": "/env", "MQBD_JOIN": "a:1,b:2"}
	file := "name: file\ndata-dir: /file\njoin: [c:3]\nlease-ttl: 5s\nmemory: 64MiB\nvoters: 5\nlabel: {zone: b}\n"
	o, err := parse(t, env, file, "--name", "flag")
	if err != nil {
		t.Fatal(err)
	}
	if o.Name != "flag" || o.DataDir != "/env" || strings.Join(o.Join, " ") != "a:1 b:2" ||
		o.LeaseTTL != 5*time.Second || o.Memory != 64<<20 || o.Voters != 5 || o.Labels["zone"] != "b" {
		t.Errorf("got %+v", o)
	}
	o, err = parse(t, nil, "join: [c:3, d:4]\n")
	if err != nil || strings.Join(o.Join, " ") != "c:3 d:4" {
		t.Errorf("got %+v %v", o.Join, err)
	}
}

func TestSettingsThatCannotWorkAreRefusedTogether(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file string
		args []string
		says []string
	}{
		"beyond loopback": {"", []string{"--listen", "0.0.0.0:7070"}, []string{"beyond loopback"}},
		"by name":         {"", []string{"--listen", "example.com:7070"}, []string{"beyond loopback"}},
		"etcd":            {"", []string{"--coordinator", "etcd://h", "--join", "h:1"}, []string{"host:port", "--join is for"}},
		"coordinator":     {"", []string{"--coordinator", "etdc://u:secret@h:1"}, []string{"use raft or etcd://"}},
		"tls and ttl": {"", []string{"--tls-cert", "x", "--lease-ttl", "1s", "--voters", "4"},
			[]string{"--tls-cert and --tls-key go together", "at least 2s", "odd"}},
		"unknown key": {"nmae: x\n", nil, []string{`unknown key "nmae"`}},
		"wrong type":  {"voters: many\n", nil, []string{"voters"}},
		"memory":      {"", []string{"--memory", "1KiB"}, []string{"1MiB"}},
		"join":        {"", []string{"--join", "host"}, []string{"host:port"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, nil, c.file, c.args...)
			for _, want := range c.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}
