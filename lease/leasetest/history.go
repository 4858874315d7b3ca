package leasetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"

	"github.com/mqbridge/mqb/lease"
)

// The histories are of a few keys under one prefix. Every transaction writes at
// least one value that no other writes, which does two things. A revision stands
// for the value that was written at it, so the model tells what a comparison of
// revisions must say. And a watch tells of each transaction whose answer was lost
// whether it was carried out, any time later, or not: a search that has to guess
// this doubles with every lost answer.
const (
	historyKeys    = 3
	historyWorkers = 5
	historyCalls   = 60 // of each worker, without a disturbance
	historyPace    = 4 * time.Millisecond
	// historyTimeout bounds one call; a call that takes longer has an unknown outcome.
	historyTimeout = 400 * time.Millisecond
	// decideWithin bounds the search for an order. It takes milliseconds, but a store
	// that is wrong can make it long.
	decideWithin = 60 * time.Second
)

// cell is a key in the model: the number of its value, 0 when absent, and how
// often it was put since it was created.
type cell struct{ value, version int }

// world is the model's state. Revision is the highest one that an answer has told:
// whatever is answered by something later must not tell a lower one.
type world struct {
	cells    [historyKeys]cell
	revision int64
}

// question is one call: a read of one key when ops is empty.
type question struct {
	key      int
	compares []guess
	ops      []change
}

// guess compares one key with what its writer last saw of it.
type guess struct {
	key   int
	field lease.Field
	saw   cell
}

type change struct {
	key, value int  // value 0 deletes
	all        bool // deletes every key; the value goes to a key beside them
}

// answer is what came back.
type answer struct {
	cell      cell // of a read
	succeeded bool
	revision  int64
}

// step is the store as it should be: one call at a time.
func step(state, input, output any) (bool, any) {
	w, q := state.(world), input.(question)
	a := output.(answer)
	if len(q.ops) == 0 {
		ok := a.cell == w.cells[q.key] && a.revision >= w.revision
		w.revision = a.revision
		return ok, w
	}
	holds := true
	for _, g := range q.compares {
		now := w.cells[g.key]
		switch g.field {
		case lease.FieldVersion:
			holds = holds && now.version == g.saw.version
		default: // the value, or the revision that stands for it
			holds = holds && now.value == g.saw.value
		}
	}
	ok := a.succeeded == holds && a.revision >= w.revision
	if holds {
		ok = ok && a.revision > w.revision // a change takes a revision of its own
		before := w.cells
		for _, c := range q.ops {
			switch {
			case c.all:
				w.cells = [historyKeys]cell{}
			case c.value == 0:
				w.cells[c.key] = cell{}
			default:
				w.cells[c.key] = cell{c.value, before[c.key].version + 1}
			}
		}
	}
	w.revision = a.revision
	return ok, w
}

func historyModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return world{} },
		Step: step,
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v -> %+v", input, output)
		},
	}
}

// worker asks one client, one question at a time.
type worker struct {
	c      lease.Coordinator
	prefix string // of the keys in the model
	beside string // a key that is not
	id     int
	random *rand.Rand
	saw    [historyKeys]cell
	mods   [historyKeys]int64 // ModRevision of what was seen
	values int
	begin  time.Time
	calls  []porcupine.Operation
	// lost are the transactions without an answer.
	lost []porcupine.Operation
}

func (w *worker) key(i int) string { return fmt.Sprintf("%s%d", w.prefix, i) }

// value makes a number that no other write has.
func (w *worker) value() int {
	w.values++
	return w.values*historyWorkers + w.id + 1
}

// ask makes one random call and puts it into the history.
func (w *worker) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	k := w.random.IntN(historyKeys)
	other := (k + 1) % historyKeys
	q := question{key: k}
	guessed := func(k int) guess {
		fields := []lease.Field{lease.FieldVersion, lease.FieldModRevision, lease.FieldValue}
		if w.saw[k] == (cell{}) {
			fields = fields[:2] // an absent key has no value to compare
		}
		return guess{key: k, field: fields[w.random.IntN(len(fields))], saw: w.saw[k]}
	}
	switch w.random.IntN(10) {
	default: // a read
	case 0:
		q.ops = []change{{key: k, value: w.value()}}
	case 1, 2, 3:
		q.compares = []guess{guessed(k)}
		q.ops = []change{{key: k, value: w.value()}}
	case 4:
		q.compares = []guess{guessed(k), guessed(other)}
		q.ops = []change{{key: k, value: w.value()}, {key: other, value: w.value()}}
	case 5:
		q.compares = []guess{guessed(k)}
		q.ops = []change{{key: k}, {key: other, value: w.value()}}
	case 6:
		q.compares = []guess{guessed(other)}
		q.ops = []change{{all: true, value: w.value()}}
	}
	op := porcupine.Operation{ClientId: w.id, Input: q, Call: int64(time.Since(w.begin))}
	var a answer
	var err error
	if len(q.ops) == 0 {
		var kv *lease.KV
		if kv, a.revision, err = w.c.Get(ctx, w.key(k)); err == nil {
			if a.cell, err = seen(kv); err != nil {
				return err
			}
			w.saw[k], w.mods[k] = a.cell, 0
			if kv != nil {
				w.mods[k] = kv.ModRevision
			}
		}
	} else {
		var r lease.Result
		r, err = w.c.Txn(ctx, w.compares(q), w.ops(q))
		a.succeeded, a.revision = r.Succeeded, r.Revision
	}
	switch {
	case err == nil:
		op.Output, op.Return = a, int64(time.Since(w.begin))
		w.calls = append(w.calls, op)
	case !errors.Is(err, lease.ErrUnavailable):
		return err
	case len(q.ops) > 0: // a read without an answer says nothing
		w.lost = append(w.lost, op)
	}
	return nil
}

// seen is a key as the model has it.
func seen(kv *lease.KV) (cell, error) {
	if kv == nil {
		return cell{}, nil
	}
	c := cell{version: int(kv.Version)}
	if _, err := fmt.Sscan(string(kv.Value), &c.value); err != nil {
		return cell{}, fmt.Errorf("%s holds %q: %w", kv.Key, kv.Value, err)
	}
	return c, nil
}

func (w *worker) compares(q question) []lease.Compare {
	var out []lease.Compare
	for _, g := range q.compares {
		switch g.field {
		case lease.FieldVersion:
			out = append(out, lease.VersionIs(w.key(g.key), int64(g.saw.version)))
		case lease.FieldModRevision:
			out = append(out, lease.ModRevisionIs(w.key(g.key), w.mods[g.key]))
		default:
			out = append(out, lease.ValueIs(w.key(g.key), fmt.Append(nil, g.saw.value)))
		}
	}
	return out
}

func (w *worker) ops(q question) []lease.Op {
	var out []lease.Op
	for _, c := range q.ops {
		switch {
		case c.all:
			out = append(out, lease.DeletePrefix(w.prefix), lease.Put(w.beside, fmt.Append(nil, c.value)))
		case c.value == 0:
			out = append(out, lease.Delete(w.key(c.key)))
		default:
			out = append(out, lease.Put(w.key(c.key), fmt.Append(nil, c.value)))
		}
	}
	return out
}

func testHistory(t *testing.T, h *Harness) { checkHistory(t, h, nil) }

func testDisturbedHistory(t *testing.T, h *Harness) {
	if h.Disturb != nil {
		checkHistory(t, h, h.Disturb)
	}
}

// told is when and at which revision a watch showed a value.
type told struct {
	at, revision int64
}

// follow notes every value that is written under prefix, until it sees the value
// end. A watch that ends is begun again where it was.
func follow(ctx context.Context, c lease.Coordinator, prefix string, from int64, begin time.Time, end string) (map[string]told, error) {
	written := map[string]told{}
	for lost := 0; ; lost++ {
		var why error
		for r := range c.Watch(ctx, prefix, from) {
			if why = r.Err; why != nil {
				break
			}
			if r.Revision < from {
				return nil, fmt.Errorf("watch from revision %d shows revision %d", from, r.Revision)
			}
			from = r.Revision + 1
			for _, e := range r.Events {
				if e.Type == lease.EventPut {
					written[string(e.KV.Value)] = told{int64(time.Since(begin)), r.Revision}
				}
			}
			if _, ok := written[end]; ok {
				return written, nil
			}
		}
		if ctx.Err() != nil || lost == 100 {
			return nil, fmt.Errorf("watch from revision %d: %w (%w)", from, why, ctx.Err())
		}
	}
}

// resolve turns the transactions without an answer that a watch saw into such
// with one. What it has not seen was not carried out before the history's end.
func (w *worker) resolve(written map[string]told) {
	for _, op := range w.lost {
		q := op.Input.(question)
		for _, c := range q.ops {
			if at, ok := written[fmt.Sprint(c.value)]; ok && c.value != 0 {
				op.Output, op.Return = answer{succeeded: true, revision: at.revision}, at.at
				w.calls = append(w.calls, op)
				break
			}
		}
	}
}

// checkHistory lets workers ask at random, all at once, while disturb does its
// part, and looks for an order of their calls that one store without any
// concurrency could have had.
func checkHistory(t *testing.T, h *Harness, disturb func(*testing.T)) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx := within(t)
	over := make(chan struct{}) // the disturbance is
	if disturb == nil {
		close(over)
	}
	begin := time.Now()
	var written map[string]told
	var watched errgroup.Group
	from := revision(t, h.client(0)) + 1
	watched.Go(func() (err error) {
		written, err = follow(ctx, h.client(len(h.Clients)-1), key(t, ""), from, begin, "end")
		return err
	})
	var workers []*worker
	var wg sync.WaitGroup
	for i := range historyWorkers {
		w := &worker{
			c: h.client(i), prefix: key(t, "in/"), beside: key(t, "beside"), id: i, begin: begin,
			random: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		workers = append(workers, w)
		wg.Go(func() {
			pace := time.NewTicker(historyPace)
			defer pace.Stop()
			for n := 0; ; n++ {
				select {
				case <-over:
					if n >= historyCalls {
						return
					}
				default:
				}
				if err := w.ask(ctx); err != nil {
					t.Errorf("worker %d: %v", i, err)
					return
				}
				if disturb != nil {
					<-pace.C // the longer it takes, the longer the history
				}
			}
		})
	}
	if disturb != nil {
		func() {
			defer close(over)
			disturb(t)
		}()
	}
	wg.Wait()
	put(t, h.client(0), lease.Put(key(t, "beside"), []byte("end")))
	if err := watched.Wait(); err != nil {
		t.Fatal(err)
	}
	var history []porcupine.Operation
	lost, found := 0, 0
	for _, w := range workers {
		answered := len(w.calls)
		w.resolve(written)
		lost += len(w.lost)
		found += len(w.calls) - answered
		history = append(history, w.calls...)
	}
	t.Logf("%d calls in %v; %d lost their answer, and %d of these were carried out",
		len(history)+lost-found, time.Since(begin).Round(time.Millisecond), lost, found)
	if t.Failed() {
		return
	}
	switch porcupine.CheckOperationsTimeout(historyModel(), history, decideWithin) {
	case porcupine.Illegal:
		t.Errorf("no order of the calls explains what they returned; the history:\n%s", describe(history))
	case porcupine.Unknown:
		t.Errorf("no order of the calls found in %v; the history:\n%s", decideWithin, describe(history))
	}
}

func describe(history []porcupine.Operation) string {
	var s strings.Builder
	describe := historyModel().DescribeOperation
	for _, op := range history {
		fmt.Fprintf(&s, "client %d %d..%d %s\n", op.ClientId, op.Call, op.Return, describe(op.Input, op.Output))
	}
	return s.String()
}
