//go:build mqbhooks

package hook

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The environment of a test build:
//
//	MQB_HOOK      point[@n]=action, comma separated; n counts passes from 1 (default 1);
//	              action is kill (SIGKILL to itself), stop (SIGSTOP to itself) or hang
//	              (the goroutine goes no further, whatever its context says)
//	MQB_HOOK_FILE a file that gets one line "point pid" when a hook fires, written
//	              before the signal, so that a test can wait for it
//	MQB_HOOK_OFF  names of guards to switch off, comma separated (gate)
var state = struct {
	sync.Mutex
	armed map[string]hook
	seen  map[string]int
	off   map[string]bool
}{armed: map[string]hook{}, seen: map[string]int{}, off: map[string]bool{}}

type hook struct {
	n      int
	signal syscall.Signal
	hang   bool
}

func init() {
	for _, s := range strings.Split(os.Getenv("MQB_HOOK"), ",") {
		point, action, ok := strings.Cut(s, "=")
		if !ok {
			continue
		}
		h := hook{n: 1, signal: syscall.SIGKILL}
		switch action {
		case "stop":
			h.signal = syscall.SIGSTOP
		case "hang":
			h.hang = true
		}
		if p, n, ok := strings.Cut(point, "@"); ok {
			point = p
			h.n, _ = strconv.Atoi(n)
		}
		state.armed[point] = h
	}
	for _, s := range strings.Split(os.Getenv("MQB_HOOK_OFF"), ",") {
		if s != "" {
			state.off[s] = true
		}
	}
}

// At fires the hook armed for this point, if its turn has come.
func At(point string) {
	state.Lock()
	h, armed := state.armed[point]
	state.seen[point]++
	fire := armed && state.seen[point] == h.n
	state.Unlock()
	if !fire {
		return
	}
	if path := os.Getenv("MQB_HOOK_FILE"); path != "" {
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
			_, _ = f.WriteString(point + " " + strconv.Itoa(os.Getpid()) + "\n")
			_ = f.Close()
		}
	}
	if h.hang {
		select {}
	}
	// To this very thread: a signal to the process may be taken by another one,
	// and the caller would run on, past the point, until it is stopped.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), h.signal)
}

// Disabled reports whether MQB_HOOK_OFF names this guard.
func Disabled(guard string) bool { return unguarded || state.off[guard] }
