//go:build !linux

package main

import (
	"io"
	"os"
)

// keys reads none here: an interrupt ends what is live.
func keys(*os.File, func(byte)) (restore func()) { return func() {} }

func windowSize(io.Writer) (rows, cols int) { return 0, 0 }
