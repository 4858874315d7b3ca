package main

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// program lets a program use the harness, whose servers end with a test: it is
// the test, and end is its end.
type program struct {
	testing.TB // nil: what the harness does not use is not here
	ctx        context.Context
	cleanups   []func()
}

func (p *program) Helper()                  {}
func (p *program) Context() context.Context { return p.ctx }
func (p *program) Failed() bool             { return false }
func (p *program) Cleanup(f func())         { p.cleanups = append(p.cleanups, f) }
func (p *program) Log(args ...any)          { fmt.Fprintln(os.Stderr, args...) }
func (p *program) Logf(f string, a ...any)  { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (p *program) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }
func (p *program) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "mqb-bench-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *program) end() {
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
}
