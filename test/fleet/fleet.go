// Package fleet runs mqbd processes and asks them through mqbctl, as an operator
// would. The demo, the end-to-end tests and the benchmarks use it; it shares no
// code with the product and knows only its commands and their JSON.
package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mqbridge/mqb/test/freeze"
)

// Fleet is a cluster of mqbd processes under one directory. Safe for concurrent use.
type Fleet struct {
	// Bin holds mqbd and mqbctl, Dir gets a data directory and a log per node.
	Bin, Dir string
	// TTL is the nodes' lease TTL; 0 leaves the default.
	TTL time.Duration
	// Coordinator is the nodes' --coordinator; "" is the raft inside them.
	Coordinator string
	// Args and Env go to every node that is started.
	Args, Env []string

	mu    sync.Mutex
	nodes map[string]*node
}

type node struct {
	cmd    *exec.Cmd
	addr   string
	frozen bool
	exited chan struct{}
}

func (n *node) dead() bool {
	select {
	case <-n.exited:
		return true
	default:
		return false
	}
}

// Start starts a node, for the first time or again on its data directory. The
// first one founds the cluster, the others join it. env is added for this
// process only.
func (f *Fleet) Start(name string, env ...string) error {
	return f.StartAt(name, f.Coordinator, env...)
}

// StartAt is Start with a coordinator of its own: another way to the same one.
func (f *Fleet) StartAt(name, coordinator string, env ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes == nil {
		f.nodes = map[string]*node{}
	}
	addr := ""
	if old := f.nodes[name]; old != nil {
		addr = old.addr
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = l.Addr().String()
		_ = l.Close()
	}
	args := []string{"--name", name, "--data-dir", filepath.Join(f.Dir, name), "--listen", addr}
	if f.TTL > 0 {
		args = append(args, "--lease-ttl", f.TTL.String())
	}
	if coordinator != "" {
		args = append(args, "--coordinator", coordinator)
	}
	for other, n := range f.nodes {
		if coordinator == "" && other != name && !n.dead() {
			args = append(args, "--join", n.addr)
			break
		}
	}
	log, err := os.OpenFile(f.LogPath(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(f.Bin, "mqbd"), append(args, f.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(append(os.Environ(), f.Env...), env...)
	n := &node{cmd: cmd, addr: addr, exited: make(chan struct{})}
	if err := startChild(cmd, n.exited); err != nil {
		return err
	}
	f.nodes[name] = n
	return nil
}

// LogPath is where a node's output goes.
func (f *Fleet) LogPath(name string) string { return filepath.Join(f.Dir, name+".log") }

// Log is a node's output so far.
func (f *Fleet) Log(name string) string {
	data, _ := os.ReadFile(f.LogPath(name))
	return string(data)
}

// Addr is the address of a node's API.
func (f *Fleet) Addr(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name].addr
}

// Pid is the process of a node.
func (f *Fleet) Pid(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name].cmd.Process.Pid
}

// Freeze stops a node with SIGSTOP and returns when it has stopped, or is gone. Thaw
// lets it go on.
func (f *Fleet) Freeze(name string) {
	f.MarkFrozen(name)
	_ = freeze.Process(f.Pid(name))
}

// Thaw lets a frozen node go on.
func (f *Fleet) Thaw(name string) { f.signal(name, syscall.SIGCONT) }

// MarkFrozen notes that a node stopped itself at a hook.
func (f *Fleet) MarkFrozen(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name].frozen = true
}

// Kill ends a node with SIGKILL and waits for it.
func (f *Fleet) Kill(name string) {
	f.signal(name, syscall.SIGKILL)
	<-f.exited(name)
}

// Exited is closed when the node's process is gone.
func (f *Fleet) Exited(name string) <-chan struct{} { return f.exited(name) }

func (f *Fleet) exited(name string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name].exited
}

func (f *Fleet) signal(name string, s syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	n.frozen = false
	_ = n.cmd.Process.Signal(s)
}

// Terminate sends a node SIGTERM; see Exited.
func (f *Fleet) Terminate(name string) { f.signal(name, syscall.SIGTERM) }

// StopAll ends every node in order (SIGTERM), after a deadline by force.
func (f *Fleet) StopAll() {
	f.mu.Lock()
	nodes := make([]*node, 0, len(f.nodes))
	for _, n := range f.nodes {
		nodes = append(nodes, n)
		_ = n.cmd.Process.Signal(syscall.SIGCONT)
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
	}
	f.mu.Unlock()
	deadline := time.After(20 * time.Second)
	for _, n := range nodes {
		select {
		case <-n.exited:
		case <-deadline:
			_ = n.cmd.Process.Kill()
			<-n.exited
		}
	}
}

// Ctl runs mqbctl against a node that lives and returns its standard output.
func (f *Fleet) Ctl(ctx context.Context, args ...string) ([]byte, error) {
	f.mu.Lock()
	var names []string
	for name, n := range f.nodes {
		if !n.dead() && !n.frozen {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		f.mu.Unlock()
		return nil, errors.New("no node lives")
	}
	addr := f.nodes[names[0]].addr
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return Run(ctx, filepath.Join(f.Bin, "mqbctl"), append([]string{"--server", addr}, args...)...)
}

// ExitError is a command that ended with another code than 0.
type ExitError struct {
	Args   []string
	Code   int
	Stderr string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit %d: %s", strings.Join(e.Args, " "), e.Code, strings.TrimSpace(e.Stderr))
}

// Run runs a command and returns its standard output; *ExitError has its code
// and standard error.
func Run(ctx context.Context, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.Bytes(), &ExitError{Args: append([]string{filepath.Base(path)}, args...), Code: exit.ExitCode(), Stderr: errOut.String()}
	}
	return out.Bytes(), err
}

// Eventually calls f until it returns nil or the time is over, and returns its
// last error.
func Eventually(ctx context.Context, within time.Duration, f func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Lease is a row of mqbctl leases.
type Lease struct {
	Route, Partition, Owner, State, Position, Reason string
	Epoch                                            uint64
	Counters                                         map[string]int64
}

// Leases are the rows of mqbctl leases.
type Leases []Lease

// Leases asks for the leases.
func (f *Fleet) Leases(ctx context.Context) (Leases, error) {
	out, err := f.Ctl(ctx, "leases", "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct{ Leases Leases }
	return v.Leases, json.Unmarshal(out, &v)
}

// Count counts the leases in a state and of an owner; "" is any.
func (l Leases) Count(state, owner string) (n int) {
	for _, x := range l {
		if (state == "" || x.State == state) && (owner == "" || x.Owner == owner) {
			n++
		}
	}
	return n
}

// Busiest is the node with the most partitions, other than not.
func (l Leases) Busiest(not string) (name string) {
	by := map[string]int{}
	for _, x := range l {
		if x.Owner != "" && x.Owner != not {
			by[x.Owner]++
		}
	}
	for n, k := range by {
		if name == "" || k > by[name] || k == by[name] && n < name {
			name = n
		}
	}
	return name
}

// Until asks for the leases until ok says so.
func (f *Fleet) Until(ctx context.Context, within time.Duration, what string, ok func(Leases) bool) error {
	var last Leases
	err := Eventually(ctx, within, func() error {
		l, err := f.Leases(ctx)
		if err != nil {
			return err
		}
		if last = l; !ok(l) {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w (%v)", what, err, last)
	}
	return nil
}

// MovedFrom waits until n partitions run (or are done) on other nodes than name.
func (f *Fleet) MovedFrom(ctx context.Context, name string, n int) error {
	return f.Until(ctx, time.Minute, "the partitions of "+name+" run elsewhere", func(l Leases) bool {
		busy := 0
		for _, x := range l {
			if x.Owner != "" && x.Owner != name && (x.State == "running" || x.State == "done") {
				busy++
			}
		}
		return busy == n
	})
}

// Voters waits until want nodes are active voters of the embedded raft.
func (f *Fleet) Voters(ctx context.Context, want int) error { return f.active(ctx, want, true) }

// Active waits until want nodes are active, whether they vote or not.
func (f *Fleet) Active(ctx context.Context, want int) error { return f.active(ctx, want, false) }

func (f *Fleet) active(ctx context.Context, want int, voters bool) error {
	return Eventually(ctx, 30*time.Second, func() error {
		out, err := f.Ctl(ctx, "nodes", "-o", "json")
		if err != nil {
			return err
		}
		var v struct {
			Nodes []struct {
				Name, State string
				Voter       bool
			}
		}
		if err := json.Unmarshal(out, &v); err != nil {
			return err
		}
		n := 0
		for _, x := range v.Nodes {
			if (x.Voter || !voters) && x.State == "active" {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d of %d nodes: %s", n, want, out)
		}
		return nil
	})
}
