// Package harness starts the real servers that tests run against: as children in
// their own process groups, on loopback ports and data directories of their own,
// so that the tests of several packages can run at once on one machine. A server
// never outlives the test binary, however that ends. Linux only.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Spec says how a server is started and how one knows that it is up.
type Spec struct {
	// Name stands in messages; "" is the base name of Path.
	Name string
	// Path is the binary, looked up in $PATH when it has no slash.
	Path string
	Args []string
	// Env is added to the environment of the test binary.
	Env []string
	Dir string
	// User names the system user to run as, for servers that refuse root; ""
	// keeps our own.
	User string
	// Ready is polled until it returns nil; nil means ready at once.
	Ready func(ctx context.Context) error
	// ReadyTimeout bounds the polling; 0 is 90 s, since machines that test are busy.
	ReadyTimeout time.Duration
	// StopSignal asks for an orderly end; 0 is SIGTERM.
	StopSignal syscall.Signal
	// StopTimeout is how long Stop waits before it kills; 0 is 15 s.
	StopTimeout time.Duration
}

// Process is one life of a server. A server that was stopped or killed is started
// again with the same Spec, which gives another Process. Safe for concurrent use.
type Process struct {
	spec Spec
	pid  int
	log  *tail
	done chan struct{} // closed when the process was reaped; err is set before
	err  error

	mu     sync.Mutex // held while signalling, so that no reaped pid is signalled
	reaped bool
}

// Start starts a server, waits until it is ready and ends it with the test. Its
// last output is logged if the test fails.
func Start(t testing.TB, spec Spec) *Process {
	t.Helper()
	p, err := start(t.Context(), spec)
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("last output of %s:\n%s", p.spec.Name, p.Log())
		}
	})
	return p
}

// start is Start without a test to end the process: the caller owns it.
func start(ctx context.Context, spec Spec) (*Process, error) {
	if spec.Name == "" {
		spec.Name = spec.Path
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if spec.User != "" {
		c, err := credential(spec.User)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
		attr.Credential = c
	}
	cmd.SysProcAttr = attr
	p := &Process{spec: spec, log: &tail{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	// A grandchild that keeps the pipes open must not keep Wait from returning.
	cmd.WaitDelay = 2 * time.Second

	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the *thread* that forked
		// ends; this one is kept for as long as the process lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		p.reaped, p.err = true, err
		p.mu.Unlock()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := p.ready(ctx); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start %s: %w; its last output:\n%s", spec.Name, err, p.Log())
	}
	return p, nil
}

func (p *Process) ready(ctx context.Context) error {
	if p.spec.Ready == nil {
		return nil
	}
	within := p.spec.ReadyTimeout
	if within == 0 {
		within = 90 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		try, end := context.WithTimeout(ctx, 2*time.Second)
		err := p.spec.Ready(try)
		end()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended before it was ready: %v", p.err)
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", within, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Pid is the process id of the server, which is also the id of its group.
func (p *Process) Pid() int { return p.pid }

// Log is the last part of what the server wrote to its standard output and error.
func (p *Process) Log() string { return p.log.String() }

// Done is closed when the server has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns when the server has ended, with its exit error.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal to the server itself; to one that has ended, nothing.
func (p *Process) Signal(sig syscall.Signal) { p.signal(p.pid, sig) }

func (p *Process) signal(to int, sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(to, sig)
	}
}

// Freeze stops the whole group (SIGSTOP): connections stay open, nothing answers. It
// returns when that is so, which on a busy machine takes longer than an answer does.
func (p *Process) Freeze() {
	p.signal(-p.pid, syscall.SIGSTOP)
	for deadline := time.Now().Add(10 * time.Second); moving(p.pid) && time.Now().Before(deadline); {
		runtime.Gosched()
	}
}

// moving reports whether a thread of a process group has not stopped yet.
func moving(group int) bool {
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range processes {
		if _, pgrp := threadState(path); pgrp != group {
			continue
		}
		threads, _ := filepath.Glob(filepath.Dir(path) + "/task/*/stat")
		for _, path := range threads {
			if state, _ := threadState(path); strings.Contains("RSD", state) {
				return true
			}
		}
	}
	return false
}

// threadState reads the state and the process group in a stat file of proc(5), "T"
// and 0 if the thread is gone.
func threadState(path string) (state string, pgrp int) {
	text, _ := os.ReadFile(path)
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 3 {
		return "T", 0
	}
	pgrp, _ = strconv.Atoi(fields[2])
	return fields[0], pgrp
}

// Thaw lets a frozen group go on.
func (p *Process) Thaw() { p.signal(-p.pid, syscall.SIGCONT) }

// Kill ends the whole group at once (SIGKILL) and waits for the server's end.
func (p *Process) Kill() {
	p.signal(-p.pid, syscall.SIGKILL)
	<-p.done
}

// Stop ends the server in order, frozen or not, and kills it when it takes longer
// than StopTimeout. What is left of its group is killed. Calling it again does nothing.
func (p *Process) Stop() {
	select {
	case <-p.done:
		return
	default:
	}
	sig, within := p.spec.StopSignal, p.spec.StopTimeout
	if sig == 0 {
		sig = syscall.SIGTERM
	}
	if within == 0 {
		within = 15 * time.Second
	}
	p.Signal(sig)
	p.Thaw()
	select {
	case <-p.done:
	case <-time.After(within):
		p.Kill()
	}
	// The group id cannot be in other use while a member of it lives.
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// tail is a writer that remembers the last tailBytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

const tailBytes = 16 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if n := len(w.buf); n > 2*tailBytes {
		w.buf = append(w.buf[:0], w.buf[n-tailBytes:]...)
		w.cut = true
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return "…" + string(bytes.ToValidUTF8(w.buf, nil))
	}
	return string(w.buf)
}
