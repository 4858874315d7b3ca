//go:build linux || darwin

package api

import "golang.org/x/sys/unix"

// disk returns what a process without privileges may still write to the file
// system of dir, and its size; zeros if it cannot be asked.
func disk(dir string) (free, total uint64) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize)
}
