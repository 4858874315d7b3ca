package pipeline

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// startStages puts the middlewares between read and ready: one loop, or several
// workers with a sequencer behind them. Either closes ready at its end.
func (r *run) startStages(ctx context.Context, g *errgroup.Group, read <-chan item, ready chan<- item) {
	if len(r.Middlewares) < 2 {
		var chain []connectors.Middleware
		if len(r.Middlewares) == 1 {
			chain = r.Middlewares[0]
		}
		g.Go(r.guard(func() error { return r.stageLoop(ctx, chain, read, ready) }))
		return
	}
	// A batch takes its place in line before a worker takes the batch; as many
	// stand in line as there are workers, so that a batch that is slow, or a writer
	// that is, stops the reader (invariant 8).
	line, work := make(chan *place, len(r.Middlewares)), make(chan *place)
	working, stop := r.untilDrain(ctx)
	g.Go(r.guard(func() error { return r.dispatch(ctx, read, line, work) }))
	for _, chain := range r.Middlewares {
		g.Go(r.guard(func() error {
			for p := range work {
				r.work(working, chain, p)
			}
			return nil
		}))
	}
	g.Go(r.guard(func() error {
		defer stop()
		return r.sequence(ctx, working, line, ready)
	}))
}

// stageLoop runs the middlewares of one chain. When a drain begins, a batch that
// waits in one (a limiter) and those behind it go back to the source at once: a
// hand-off must not take as long as the slowest pace.
func (r *run) stageLoop(ctx context.Context, chain []connectors.Middleware, in <-chan item, out chan<- item) error {
	defer close(out)
	working, stop := r.untilDrain(ctx)
	defer stop()
	for it := range in {
		var after error
		if it.batch != nil {
			after = r.process(working, chain, &it)
			if after != nil && working.Err() != nil {
				r.giveBack(it.batch)
				for it := range in { // the reader stops too, and closes it
					r.giveBack(it.batch)
				}
				return ctx.Err() // nil when it is only a drain
			}
		}
		if err := r.send(ctx, out, it); err != nil {
			return err
		}
		if after != nil {
			return r.send(ctx, out, item{err: after})
		}
	}
	return nil
}

// place is an item's place in the line of the sequencer.
type place struct {
	it    item
	after error // of process
	ok    bool  // false: its worker panicked, and the batch is lost to it
	done  chan struct{}
}

// dispatch gives each item its place in line, then to a worker.
func (r *run) dispatch(ctx context.Context, in <-chan item, line, work chan<- *place) error {
	defer close(line)
	defer close(work)
	for it := range in {
		p := &place{it: it, done: make(chan struct{})}
		select {
		case line <- p:
		case <-ctx.Done():
			r.giveBack(it.batch)
			return ctx.Err()
		}
		if it.batch == nil {
			p.ok = true
			close(p.done)
			continue
		}
		select {
		case work <- p:
		case <-ctx.Done():
			// The sequencer, which waits for this place, gives the batch back.
			p.ok, p.after = true, ctx.Err()
			close(p.done)
			return ctx.Err()
		}
	}
	return nil
}

func (r *run) work(ctx context.Context, chain []connectors.Middleware, p *place) {
	defer close(p.done)
	p.after = r.process(ctx, chain, &p.it)
	p.ok = true
}

// sequence hands items on in the order in which they were read. What stands
// behind an error goes back to the source, however far it has got.
func (r *run) sequence(ctx, working context.Context, line <-chan *place, out chan<- item) (err error) {
	defer close(out)
	ended := false
	for p := range line {
		<-p.done
		switch {
		case !p.ok: // its worker's panic ends the run, and counts what it tore away
			ended = true
		case ended || err != nil:
			r.giveBack(p.it.batch)
		case p.after != nil && working.Err() != nil:
			// A drain, or the end of the run: see stageLoop.
			r.giveBack(p.it.batch)
			ended, err = true, ctx.Err()
		default:
			if err = r.send(ctx, out, p.it); err == nil && p.after != nil {
				ended, err = true, r.send(ctx, out, item{err: p.after})
			}
		}
	}
	return err
}

// process runs a chain over the batch of it in place. The error, if any, stands
// right behind what is left of the batch.
func (r *run) process(ctx context.Context, chain []connectors.Middleware, it *item) error {
	for _, m := range chain {
		err := m.Process(ctx, it.batch)
		var rows *connectors.RowsError
		if errors.As(err, &rows) {
			err = r.refused(it.batch, rows.Rows, &it.letters, false)
		} else if err != nil {
			// None of it is handed on, and its dead letters are not carried out either.
			n := len(it.letters)
			it.letters = nil
			it.batch.Read -= n
			it.batch.Dropped -= n
			r.Stats.Returned.Add(int64(n + it.batch.CutBefore(0)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refused applies the route's rule to rows of b: they become dead letters, are
// dropped and counted, or are cut away with everything behind them. verdict says
// that another run might not refuse them again.
func (r *run) refused(b *message.Batch, rows []connectors.RowError, letters *[]letter, verdict bool) error {
	var drop []int
	for _, row := range rows {
		if r.DeadLetters != nil {
			*letters = append(*letters, r.letterOf(b, row.Index, row.Err, verdict))
		} else if err := r.reject(b.Msg(row.Index).Ordinal, b.Payload(row.Index), row.Err); err != nil {
			b.DropRows(drop)
			r.Stats.Returned.Add(int64(b.CutBefore(row.Index - len(drop))))
			return err
		}
		drop = append(drop, row.Index)
	}
	b.DropRows(drop)
	return nil
}

// reject asks the route's rule about one record. nil: it is dropped and counted.
func (r *run) reject(ordinal int64, payload []byte, err error) error {
	return r.Claim.Reject(context.Background(), connectors.BadRecord{
		Ordinal: ordinal,
		Place:   r.placeOf(ordinal),
		Err:     err,
		Payload: payload,
	})
}

// placeOf is where a person finds a record of which only the number is known.
func (r *run) placeOf(ordinal int64) string {
	return fmt.Sprintf("%s record %d (the first is 0)", r.Claim.Partition.ID, ordinal)
}
