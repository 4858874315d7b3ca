// Package freeze stops a process in the way that the product's promises are about:
// it keeps its memory and its connections, and does nothing.
package freeze

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process stops a child of this process (SIGSTOP) and returns when all its threads
// have stopped. That comes a moment after the signal, on a busy machine later than
// an answer to the next question. An error when the process ends instead.
func Process(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	for {
		// Its end, of which this does not ask, is left to whoever waits for it.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("freeze process %d: %w", pid, err)
		default:
			return nil
		}
	}
}
