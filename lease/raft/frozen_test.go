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
)

// memberEnv makes the test binary a member in a process of its own: its value is
// the data directory.
const memberEnv = "MQB_TEST_MEMBER"

// runMember makes a group, says where it listens and answers one question a
// line, "get KEY" or "keepalive ID", until its input ends.
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
		var key string
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

// TestALeaderThatWakesServesNoStaleReadAndKeepsNoDeadLease freezes a leader
// process with questions already in its input: it answers them before it can
// have heard of its successor.
func TestALeaderThatWakesServesNoStaleReadAndKeepsNoDeadLease(t *testing.T) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), memberEnv+"="+t.TempDir())
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewScanner(pipe)
	defer func() {
		_ = child.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_ = child.Wait()
	}()
	line := func() string {
		if !out.Scan() {
			t.Fatal("the member ended")
		}
		return out.Text()
	}
	at := line()
	a := newNode(t, "a", t.TempDir(), Options{Join: []string{at}})
	b := newNode(t, "b", t.TempDir(), Options{Join: []string{at}})
	nodes := []*node{a, b}
	untilVoters(t, a, 3)

	for round := range 3 {
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
		_, _ = io.WriteString(in, "get /x\n")
		if got := line(); got != old {
			t.Fatalf("before: %q", got)
		}
		if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(in, strings.Repeat(fmt.Sprintf("get /x\nkeepalive %d\n", id), 3))
		until(t, "a successor", func() bool { name, _ := b.Leader(); return name == "a" || name == "b" })
		put(t, b, "/x", now)
		until(t, "the lease's end", func() bool {
			_, err := b.KeepAlive(t.Context(), 1<<40) // answered by a leader only
			_, held := b.store.TTL(id)
			return errors.Is(err, lease.ErrLeaseNotFound) && !held
		})
		if err := child.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := line(); got != now && !strings.HasPrefix(got, "error") {
				t.Fatalf("round %d: the woken leader read %q", round, got)
			}
			if got := line(); got != "gone" && !strings.HasPrefix(got, "error") {
				t.Fatalf("round %d: the woken leader kept a lease that had ended: %q", round, got)
			}
		}
	}
}
