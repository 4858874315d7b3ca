// Package actors runs partitions: a tree of supervised actors on hollywood's
// local engine.
//
//	nodeActor ─ routeActor/<route> ─ partitionActor/<route>/<partition>
//	                                     └ one attempt at a time: a goroutine group
//
// Control is messages, small ones, that carry the attempt they belong to; payload
// never travels in a mailbox. Supervision is ours and not the engine's: its
// restart limit ends the process, its inbox is unbounded and its Poison loses
// messages. So Receive recovers its own panics and does no I/O, work is stopped
// by contexts, and an actor's id is never used twice.
package actors

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strconv"
	"sync/atomic"

	"github.com/anthdm/hollywood/actor"
)

// engine is the part of hollywood that we use, so that another local engine
// could take its place.
type engine struct {
	e   *actor.Engine
	log *slog.Logger
	ids atomic.Uint64
}

// pid addresses an actor.
type pid = *actor.PID

// receiver handles one message; from is the actor itself.
type receiver func(self pid, msg any)

func newEngine(log *slog.Logger) (*engine, error) {
	e, err := actor.NewEngine(actor.NewEngineConfig())
	if err != nil {
		return nil, fmt.Errorf("actor engine: %w", err)
	}
	return &engine{e: e, log: log}, nil
}

// spawn starts an actor. The kind is for people; the id is new each time, since
// the engine answers a duplicate id with the old actor's address. A panic in
// receive is logged and costs that message only: an actor's state is changed in
// one place per message, and what must not be lost is in the coordinator.
func (g *engine) spawn(kind string, receive receiver) pid {
	f := func(c *actor.Context) {
		switch msg := c.Message().(type) {
		case actor.Initialized, actor.Started, actor.Stopped:
		default:
			defer func() {
				if v := recover(); v != nil {
					g.log.Error("panic in an actor", "actor", kind, "panic", v, "stack", string(debug.Stack()))
				}
			}()
			receive(c.PID(), msg)
		}
	}
	return g.e.SpawnFunc(f, kind,
		actor.WithID(strconv.FormatUint(g.ids.Add(1), 10)),
		actor.WithMaxRestarts(math.MaxInt32))
}

func (g *engine) send(to pid, msg any) { g.e.Send(to, msg) }

// remove takes an actor that has nothing left to do out of the engine.
func (g *engine) remove(p pid) { g.e.Stop(p) }
