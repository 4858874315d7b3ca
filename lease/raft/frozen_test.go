package raft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/test/freeze"
)

// memberEnv makes the test binary a member in a process of its own: its value is
// the data directory.
const memberEnv = "MQB_TEST_MEMBER"

// runMember makes a group, says where it listens and answers one question a
// line, "get KEY", "put KEY VALUE" or "keepalive ID", until its input ends.
func runMember() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	e, err := Open(Options{Cluster: "test", Node: "child", DataDir: os.Getenv(memberEnv), Advertise: l.Addr().String(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	e.Mux(l)
	fmt.Println(l.Addr())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var key, value string
		var id lease.LeaseID
		answer := ""
		if n, _ := fmt.Sscanf(in.Text(), "get %s", &key); n == 1 {
			kv, _, err := e.Get(ctx, key)
			switch {
			case err != nil:
				answer = "error " + err.Error()
			case kv != nil:
				answer = string(kv.Value)
			}
		} else if n, _ := fmt.Sscanf(in.Text(), "put %s %s", &key, &value); n == 2 {
			r, err := e.Txn(ctx, nil, []lease.Op{lease.Put(key, []byte(value))})
			answer = fmt.Sprint(r.Revision, err)
		} else if n, _ := fmt.Sscanf(in.Text(), "keepalive %d", &id); n == 1 {
			_, err := e.KeepAlive(ctx, id)
			switch {
			case errors.Is(err, lease.ErrLeaseNotFound):
				answer = "gone"
			case err != nil:
				answer = "error " + err.Error()
			default:
				answer = "kept"
			}
		}
		cancel()
		fmt.Println(answer)
	}
	_ = e.Close()
}

// member is the test's end of such a process.
type member struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	at  string
}

func startMember(t *testing.T, dir string) *member {
	t.Helper()
	m := &member{t: t, cmd: exec.Command(os.Args[0])}
	m.cmd.Env = append(os.Environ(), memberEnv+"="+dir)
	m.cmd.Stderr = os.Stderr
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.in, err = m.cmd.StdinPipe()
	}
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.cmd.Process.Signal(syscall.SIGCONT) // an error means it is dead already
		_ = m.in.Close()
		_ = m.cmd.Wait()
	})
	m.out = bufio.NewScanner(out)
	m.at = m.line()
	return m
}

func (m *member) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) freeze() {
	m.t.Helper()
	if err := freeze.Process(m.cmd.Process.Pid); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) ask(questions string) {
	m.t.Helper()
	if _, err := io.WriteString(m.in, questions); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) line() string {
	m.t.Helper()
	if !m.out.Scan() {
		m.t.Fatal("the member ended")
	}
	return m.out.Text()
}

// TestWhatWasAcknowledgedSurvivesKill9 kills a member in the middle of its writes.
func TestWhatWasAcknowledgedSurvivesKill9(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := int64(0)
	for round := range 4 {
		m := startMember(t, dir)
		m.ask("get /n\n")
		if got := m.line(); got != "" && got != fmt.Sprint(last) && got != fmt.Sprint(last+1) || got == "" && last > 0 {
			t.Fatalf("round %d: read %q after %d was acknowledged", round, got, last)
		}
		for i := range int64(40) {
			m.ask(fmt.Sprintf("put /n %d\n", last+i+1))
		}
		for range 10 * (round + 1) {
			if got := m.line(); !strings.HasSuffix(got, "<nil>") {
				t.Fatal(got)
			}
			last++
		}
		m.signal(syscall.SIGKILL)
		for m.out.Scan() { // answers that were on their way count too
			last++
		}
		_ = m.cmd.Wait()
	}
}

// TestALeaderThatWakesServesNoStaleReadAndKeepsNoDeadLease freezes a leader
// process with questions already in its input: it answers them before it can
// have heard of its successor.
func TestALeaderThatWakesServesNoStaleReadAndKeepsNoDeadLease(t *testing.T) {
	t.Parallel()
	child := startMember(t, t.TempDir())
	at := child.at
	a := newNode(t, "a", t.TempDir(), Options{Join: []string{at}})
	b := newNode(t, "b", t.TempDir(), Options{Join: []string{at}})
	nodes := []*node{a, b}
	untilVoters(t, a, 3)

	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		until(t, "the child leads", func() bool {
			name, _ := a.Leader()
			if name == "child" {
				return true
			}
			for _, n := range nodes {
				if n.raft.Load().State() == hraft.Leader {
					_ = n.raft.Load().LeadershipTransferToServer("child", hraft.ServerAddress(at)).Error()
				}
			}
			return false
		})
		old, now := fmt.Sprintf("old%d", round), fmt.Sprintf("new%d", round)
		id, err := a.Grant(t.Context(), 500*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		put(t, a, "/x", old)
		child.ask("get /x\n")
		if got := child.line(); got != old {
			t.Fatalf("before: %q", got)
		}
		child.freeze()
		child.ask(strings.Repeat(fmt.Sprintf("get /x\nkeepalive %d\n", id), 3))
		until(t, "a successor", func() bool { name, _ := b.Leader(); return name == "a" || name == "b" })
		put(t, b, "/x", now)
		until(t, "the lease's end", func() bool {
			_, err := b.KeepAlive(t.Context(), 1<<40) // answered by a leader only
			_, held := b.store.TTL(id)
			return errors.Is(err, lease.ErrLeaseNotFound) && !held
		})
		child.signal(syscall.SIGCONT)
		for range 3 {
			if got := child.line(); got != now && !strings.HasPrefix(got, "error") {
				t.Fatalf("round %d: the woken leader read %q", round, got)
			}
			if got := child.line(); got != "gone" && !strings.HasPrefix(got, "error") {
				t.Fatalf("round %d: the woken leader kept a lease that had ended: %q", round, got)
			}
		}
	}
}
