package file

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/mqbridge/mqb/message"
)

// worthAhead is how much of a file has to be left for reading ahead to pay.
const worthAhead = 1 << 20

// ahead decodes the blocks of one file on several goroutines and hands their
// batches out in the order of the file.
//
// It guesses where records begin and proves it afterwards: a block is cut behind
// what looks like the end of a record, a worker decodes it as far as its records
// are regular, and its batch counts only if the reader, going through the file in
// order, comes to stand exactly at the block's beginning. Whatever is irregular
// (a bad record, a huge one, a block cut in the wrong place) is left to the
// reader's own filler, which goes on where the worker stopped. So the records,
// their numbers and their errors are those of the filler alone, and the guess
// costs speed at worst.
//
// Room for what is read ahead is taken only while there is plenty (invariant 8);
// without it the workers end, and the reader goes on alone.
type ahead struct {
	content content
	pool    *message.Pool
	decoder blockDecoder
	block   *atomic.Int64 // bytes that make about one batch
	order   chan *job     // in the order of the file; closed when nothing more comes
	halt    context.CancelFunc
	ctx     context.Context
	workers sync.WaitGroup
	room    message.Lease // for the workers' own buffers

	mu   sync.Mutex // held while a block is cut, so that they come in order
	at   int64      // where the next block begins
	over bool
}

// blockDecoder decodes whole records. It is used by several goroutines at a time.
type blockDecoder interface {
	// inPlace says that payloads stay where they are, so that a block is read
	// into the batch's arena.
	inPlace() bool
	// cut returns how much of block is whole records, as far as can be seen.
	cut(block []byte) int
	// decode appends the regular records at the beginning of block, which is at
	// base in the content, numbered from 0. It returns the bytes they took.
	decode(b *message.Batch, block []byte, base int64) int
}

// job is a block on its way to be a batch.
type job struct {
	base, end int64 // of the block
	took      int64 // where the records in the batch end
	batch     *message.Batch
	panicked  any
	done      chan struct{}
}

func aheadWorkers() int { return min(runtime.GOMAXPROCS(0), 4) }

// newAhead starts reading ahead at a place where a record begins; nil if there is
// no room for it.
func newAhead(life context.Context, r *reader, d blockDecoder) *ahead {
	workers := aheadWorkers()
	a := &ahead{content: r.content, pool: r.pool, decoder: d, block: &r.block, at: r.at.Offset, order: make(chan *job, 2*workers)}
	if !d.inPlace() {
		var ok bool
		if a.room, ok = r.budget.TryAhead(int64(workers) * blockBytes); !ok {
			return nil
		}
	}
	a.ctx, a.halt = context.WithCancel(life)
	for range workers {
		a.workers.Add(1)
		go a.work()
	}
	go func() {
		a.workers.Wait()
		close(a.order)
	}()
	return a
}

func (a *ahead) work() {
	defer a.workers.Done()
	var own []byte
	for {
		j, block := a.next(&own)
		if j == nil {
			return
		}
		a.decode(j, block)
	}
}

// decode never lets a panic end the process: it is the reader's to pass on.
func (a *ahead) decode(j *job, block []byte) {
	defer func() {
		if v := recover(); v != nil {
			j.panicked = fmt.Sprintf("%v\n%s", v, debug.Stack())
		}
		close(j.done)
	}()
	n := a.decoder.decode(j.batch, block, j.base)
	j.batch.Read = j.batch.Len()
	j.took = j.base + int64(n)
}

// next cuts a block. nil when reading ahead is over: there is no room, no whole
// block any more, or an error, which the reader will meet by itself.
func (a *ahead) next(own *[]byte) (*job, []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return nil, nil
	}
	a.over = true // unless a block comes of it
	b, ok := a.pool.TryGet()
	if !ok {
		return nil, nil
	}
	size := int(a.block.Load())
	var block []byte
	if a.decoder.inPlace() {
		b.Arena = b.Arena[:min(size, cap(b.Arena))]
		block = b.Arena
	} else {
		if len(*own) < size {
			*own = make([]byte, size+size/8)
		}
		block = (*own)[:size]
	}
	n, end, err := a.content.readAt(a.ctx, block, a.at)
	cut := 0
	if err == nil && !end {
		cut = a.decoder.cut(block[:n])
	}
	if cut == 0 {
		b.Release()
		return nil, nil
	}
	j := &job{base: a.at, end: a.at + int64(cut), batch: b, done: make(chan struct{})}
	select {
	case a.order <- j:
	case <-a.ctx.Done():
		b.Release()
		return nil, nil
	}
	a.at, a.over = j.end, false
	return j, block[:cut]
}

// stop ends the workers and gives back what they read. It waits for them.
func (a *ahead) stop() {
	a.halt()
	for j := range a.order {
		<-j.done
		j.batch.Release()
	}
	a.room.Release()
}

// takeAhead returns the batch of the next block if it was read ahead and begins
// where the reader stands. nil: the filler has the next record.
func (r *reader) takeAhead(ctx context.Context) (*message.Batch, error) {
	if r.at.Offset < r.until {
		return nil, nil // the rest of a block
	}
	r.until = 0
	if r.ahead == nil && !r.startAhead() {
		return nil, nil
	}
	for {
		j := r.head
		r.head = nil
		if j == nil {
			var ok bool
			select {
			case j, ok = <-r.ahead.order:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if !ok {
				r.stopAhead()
				return nil, nil
			}
		}
		select {
		case <-j.done:
		case <-ctx.Done():
			r.head = j
			return nil, ctx.Err()
		}
		if j.panicked != nil {
			panic(j.panicked)
		}
		if j.base != r.at.Offset {
			// The filler went past the block's beginning: a record was not what
			// it looked like.
			r.head = j
			r.stopAhead()
			return nil, nil
		}
		if j.took < j.end {
			r.until = j.end
		}
		if j.batch.Len() == 0 {
			j.batch.Release()
			if j.took == j.end { // blank lines
				r.at.Offset = j.end
				continue
			}
			return nil, nil
		}
		for i := range j.batch.Len() {
			j.batch.Msg(i).Ordinal += r.at.Record
		}
		r.at = place{Offset: j.took, Record: r.at.Record + int64(j.batch.Len())}
		return j.batch, nil
	}
}

// startAhead begins to read ahead if that pays.
func (r *reader) startAhead() bool {
	if r.live || r.at.Open || r.ended || r.block.Load() == 0 || r.at.Offset < r.notBefore {
		return false
	}
	worth := r.src.worth
	if _, packed := r.content.(*stream); packed {
		worth /= 8 // there is about so much more in it
	}
	if r.content.left(r.at.Offset) < worth {
		return false
	}
	if d := r.filler.blocks(); d != nil {
		r.ahead = newAhead(r.life, r, d)
	}
	if r.ahead == nil {
		r.notBefore = r.at.Offset + r.src.worth
		return false
	}
	r.pool.KeepMore(3 * aheadWorkers()) // queued, and one in each worker's hands
	return true
}

// measure learns from a batch that was read from offset on how large a block
// makes one batch: a little less than fits, since what does not fit is left to
// the filler.
func (r *reader) measure(b *message.Batch, from int64) {
	in, n, out := float64(r.at.Offset-from), float64(b.Read), float64(len(b.Arena)+1)
	if r.perRecord == 0 {
		r.perRecord, r.growth, r.fit = in/n, out/in, 0.95
	}
	r.perRecord += (in/n - r.perRecord) / 8
	r.growth += (out/in - r.growth) / 8
	if r.until > 0 {
		r.fit = max(r.fit*0.97, 0.5)
	} else {
		r.fit = min(r.fit*1.001, 0.95)
	}
	r.block.Store(int64(max(r.fit*min(r.perRecord*float64(r.batch), blockBytes/r.growth, blockBytes), 1)))
}

// stopAhead goes on without, for a while at least.
func (r *reader) stopAhead() {
	if r.ahead == nil {
		return
	}
	if r.head != nil {
		<-r.head.done
		r.head.batch.Release()
		r.head = nil
	}
	r.ahead.stop()
	r.pool.KeepMore(0)
	r.ahead, r.until = nil, 0
	r.notBefore = r.at.Offset + r.src.worth/4
}
