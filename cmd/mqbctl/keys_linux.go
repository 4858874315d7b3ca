package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// keys hands each key that is pressed on a terminal over, without waiting for the
// end of a line, until restore is called. Anything else is left alone.
func keys(in *os.File, pressed func(byte)) (restore func()) {
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	raw := *before
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &raw) != nil {
		return func() {}
	}
	go func() { // ends with the process: a read of a terminal cannot be broken off
		var b [1]byte
		for {
			if _, err := in.Read(b[:]); err != nil {
				return
			}
			pressed(b[0])
		}
	}()
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
}

// windowSize is that of a terminal; zeros where there is none.
func windowSize(w io.Writer) (rows, cols int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(s.Row), int(s.Col)
}
