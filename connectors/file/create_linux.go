package file

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// createAs gives the file tmp the name final unless there is one: fs.ErrExist.
// Never a plain rename, which would replace a part that another owner made. tmp
// may be gone afterwards: file systems without hard links move it.
func createAs(tmp, final string) error {
	err := os.Link(tmp, final)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, final, unix.RENAME_NOREPLACE)
		if err != nil {
			err = &os.LinkError{Op: "renameat2", Old: tmp, New: final, Err: err}
		}
	}
	return err
}

// startWriteback asks the kernel to begin writing a range out. It is a hint:
// what it says about errors, fsync says again.
func startWriteback(f *os.File, offset, n int64) {
	if n > 0 {
		_ = unix.SyncFileRange(int(f.Fd()), offset, n, unix.SYNC_FILE_RANGE_WRITE)
	}
}
