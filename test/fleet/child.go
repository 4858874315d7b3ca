package fleet

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startChild starts cmd so that it dies with this process. The kernel ties that
// to the thread that forked, so the thread waits for the child.
func startChild(cmd *exec.Cmd, exited chan<- struct{}) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(exited)
		}
	}()
	return <-started
}
