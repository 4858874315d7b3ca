package scenarios

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/lease/memory"
)

// A clock that runs slow keeps a gate open for longer than it believes. The
// margin is a fifth of the TTL, so that a clock may lose a fifth, far more than
// any does: with one that loses 18 % the gate still closes before the lease ends.
func TestGateClosesBeforeTheLeaseEndsOnASlowClock(t *testing.T) {
	for _, rate := range []float64{0.82, 1, 1.18} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.NewStore(memory.Options{})
			defer store.Close()
			client, witness := store.Client(), store.Client()
			begun := time.Now()
			s, err := lease.NewSession(client, lease.SessionOptions{
				Now: func() time.Duration { return time.Duration(float64(time.Since(begun)) * rate) },
				Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			time.Sleep(time.Minute) // of the bubble's clock
			if err := s.Gate(); err != nil {
				t.Fatalf("rate %v: the gate is closed though the lease is kept: %v", rate, err)
			}
			client.SetAvailable(false)
			for s.Gate() == nil {
				time.Sleep(time.Millisecond)
			}
			if err := s.Gate(); !errors.Is(err, lease.ErrGateClosed) {
				t.Fatal(err)
			}
			if _, err := witness.KeepAlive(t.Context(), s.Lease()); err != nil {
				t.Errorf("rate %v: the lease ended before the gate closed: %v", rate, err)
			}
			cancel()
			<-ended
		})
	}
}

// wallClock are the methods that take the reading of the monotonic clock off a
// time: what is computed from their results jumps with the wall clock.
var wallClock = map[string]bool{"Unix": true, "UnixMilli": true, "UnixMicro": true, "UnixNano": true, "UTC": true}

// told are the places that only tell people a time, or that no decision follows.
var told = map[string]string{
	"actors/pipeline/intent.go": "a counter of the time that commits took",
	"cluster/api":               "answers to people",
	"cluster/catalog/orders.go": "when an order was given, for people",
	"cluster/events":            "when something happened, for people",
	"lease/owners.go":           "a partition's history, for people",
	"lease/raft/port.go":        "a deadline that has passed, whatever the clock says",
	"lease/leasetest":           "a suite",
	"checkpoint/storetest":      "a suite",
}

// No decision about leases, owners or records reads the wall clock (invariant 7):
// every time that the deciding packages compare is a difference of readings which
// still carry the monotonic clock. So an hour's jump changes nothing.
func TestWallClockThatJumpsDecidesNothing(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, dir := range []string{"lease", "checkpoint", "actors", "cluster", "message", "middleware"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for place := range told {
				if name == place || strings.HasPrefix(name, place+"/") {
					return nil
				}
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if s, ok := call.Fun.(*ast.SelectorExpr); ok && wallClock[s.Sel.Name] {
					t.Errorf("%s: %s reads the wall clock", files.Position(call.Pos()), s.Sel.Name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
