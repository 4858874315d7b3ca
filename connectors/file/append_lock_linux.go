package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the exclusive lock on the file behind f, which belongs to the open
// file: it is gone when f is closed, and f is not closed before a write that is
// under way has ended.
func tryLock(f *os.File) (bool, error) {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// datasync makes the content durable, and as much of the rest as is needed to read it.
func datasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
