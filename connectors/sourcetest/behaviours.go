package sourcetest

import (
	"context"
	"errors"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// behaviours in the order they run: the plain ones first, since the others
// build on them.
var behaviours = []behaviour{
	{"partitions are stable", always, partitionsStable},
	{"identity is stable", always, identityStable},
	{"order and counters", always, orderAndCounters},
	{"position after each record of a batch", always, positionAfter},
	{"resume at every stored position", resumes, resumeEverywhere},
	{"nothing lost or doubled over many re-opens", func(s *Subject) bool { return s.Resumes && s.Append != nil }, manyReopens},
	{"settle keeps what is behind it", resumes, settlePrefix},
	{"settle twice and in the middle of a batch", resumes, settleRepeated},
	{"end of input, then growth", func(s *Subject) bool { return s.Ends && s.Append != nil }, endThenGrowth},
	{"waits at the end, then growth", func(s *Subject) bool { return !s.Ends && s.Append != nil }, waitThenGrowth},
	{"close while Read waits for records", func(s *Subject) bool { return !s.Ends && s.Append != nil }, closeWhileWaiting},
	{"cancel while Read waits for records", func(s *Subject) bool { return !s.Ends && s.Append != nil }, cancelWhileWaiting},
	{"close while Read waits for memory", always, closeWhileStarved},
	{"bounded memory with a stalled consumer", appends, boundedMemory},
	{"lost head is a gap", func(s *Subject) bool { return s.LoseHead != nil }, lostHead},
	{"head lost under a reader is a gap", func(s *Subject) bool { return s.LoseHead != nil }, lostHeadWhileReading},
	{"a head lost before the position is none", func(s *Subject) bool { return s.LoseHead != nil }, lostHeadBehind},
	{"lost tail is a gap", func(s *Subject) bool { return s.LoseTail != nil }, lostTail},
	{"replaced data is reported", func(s *Subject) bool { return s.Replace != nil }, replaced},
	{"rejected record leaves the others", func(s *Subject) bool { return s.AppendBad != nil }, rejectedDropped},
	{"refused rejection stops before the record", func(s *Subject) bool { return s.AppendBad != nil }, rejectedStops},
}

func partitionsStable(r *rig) {
	r.append(3)
	a, b := r.s.Open(r.T), r.s.Open(r.T)
	defer a.Close()
	defer b.Close()
	first, again := r.partition(a), r.partition(b)
	if first.ID != again.ID || first.Node != again.Node || first.PartSource != again.PartSource || first.PartNumber != again.PartNumber {
		r.Errorf("the partition is %+v at first and then %+v", first, again)
	}
	if err := a.Check(r.ctx()); err != nil {
		r.Errorf("check: %v", err)
	}
	parts, err := a.Partitions(r.ctx())
	if err != nil {
		r.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range parts {
		if p.ID == "" || seen[p.ID] {
			r.Errorf("partition id %q is empty or there twice", p.ID)
		}
		seen[p.ID] = true
	}
}

func identityStable(r *rig) {
	r.append(10)
	src := r.s.Open(r.T)
	p := r.partition(src)
	first, err := src.Identify(r.ctx(), p, "")
	if err != nil {
		r.Fatalf("identify at the first claim: %v", err)
	}
	if err := src.Close(); err != nil {
		r.Fatal(err)
	}
	r.append(10)
	src = r.s.Open(r.T)
	defer src.Close()
	again, err := src.Identify(r.ctx(), p, first)
	if err != nil {
		r.Fatalf("identify after growth: %v", err)
	}
	if again != first {
		// A source may refine its identity (a file shorter than the hashed head),
		// but then the refined one has to stay.
		third, err := src.Identify(r.ctx(), p, again)
		if err != nil || third != again {
			r.Errorf("identity %q, then %q, then %q (%v)", first, again, third, err)
		}
	}
}

func (r *rig) total() int {
	if r.s.Append == nil {
		return r.s.Preloaded
	}
	return r.h.Records
}

func orderAndCounters(r *rig) {
	r.append(r.total())
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	read := 0
	n.readTo(r.appended, func(b *message.Batch) { read += b.Read })
	if read != n.next {
		r.Errorf("the batches' Read add up to %d, not %d (invariant 4)", read, n.next)
	}
	if lag := n.reader.Lag(); lag > 0 {
		r.Errorf("lag %d at the end of the data", lag)
	}
	if r.s.Ends {
		if b, err := n.reader.Read(r.ctx()); !errors.Is(err, connectors.ErrEndOfInput) || b != nil {
			r.Errorf("at the end: batch %v, error %v; want ErrEndOfInput alone", b != nil, err)
		}
	}
}

func positionAfter(r *rig) {
	r.append(r.total())
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	inside := false
	n.readTo(r.appended, func(b *message.Batch) {
		inside = inside || b.Len() > 1
		if b.Len() > 1 && b.Positions == nil {
			r.Error("a batch of several messages has no Positions: it could not be cut")
		}
	})
	if !inside {
		r.Error("no batch had more than one message")
	}
}

// resumeEverywhere opens a reader at the position after each record and sees
// that the next one comes first; from a few of them it reads to the end.
func resumeEverywhere(r *rig) {
	r.append(min(r.total(), 150))
	n := r.start(message.Position{}, "", 0)
	var all []message.Position
	n.readTo(r.appended, func(b *message.Batch) {
		for i := range b.Len() {
			all = append(all, b.PositionAfter(i))
		}
	})
	id := n.claim.Record.Source
	n.close()
	whole := 0
	for i, p := range all[:len(all)-1] {
		again := r.start(p, id, i+1)
		b := again.read()
		if b.From.Compare(p) != 0 {
			r.Errorf("opened at %q, but the first batch begins at %q", p.Sort, b.From.Sort)
		}
		for j := range min(b.Len(), len(all)-i-1) {
			if got, want := b.PositionAfter(j), all[i+1+j]; got.Compare(want) != 0 {
				r.Fatalf("record %d has the position %q after a resume and %q before", i+1+j, got.Sort, want.Sort)
			}
		}
		b.Release()
		if i%29 == 0 {
			again.readTo(r.appended, nil)
			whole++
		}
		again.close()
	}
	// At the very end there is nothing to come, which no source may answer with
	// a record.
	if r.s.Ends {
		again := r.start(all[len(all)-1], id, r.appended)
		if _, err := again.reader.Read(r.ctx()); !errors.Is(err, connectors.ErrEndOfInput) {
			r.Errorf("resumed at the end: %v, want ErrEndOfInput", err)
		}
		again.close()
	}
}

// manyReopens kills a run again and again at a random record, sometimes inside a
// batch, while the data grows.
func manyReopens(r *rig) {
	total := r.h.Records
	r.append(total / 4)
	pos, id, next := message.Position{}, "", 0
	for next < total {
		if r.appended < total && (r.rng.IntN(2) == 0 || next == r.appended) {
			r.append(min(total-r.appended, 1+r.rng.IntN(total/4)))
		}
		n := r.start(pos, id, next, batchSize(1+r.rng.IntN(40)))
		id = n.claim.Record.Source
		for n.next < r.appended {
			b := n.read()
			stop := r.rng.IntN(3) == 0
			if stop && b.Len() > 0 {
				cut := r.rng.IntN(b.Len())
				pos, next = b.PositionAfter(cut), n.next-b.Len()+cut+1
			} else {
				pos, next = b.End, n.next
			}
			b.Release()
			if stop {
				break
			}
			if r.rng.IntN(4) == 0 {
				if err := n.reader.Settle(r.ctx(), pos); err != nil {
					r.Errorf("settle: %v", err)
				}
			}
		}
		n.close()
	}
}

// settlePrefix reads ahead of what it settles, as the pipeline does, and starts
// again at what was settled: nothing from there on may be missing (invariant 2).
func settlePrefix(r *rig) {
	r.append(r.total())
	n := r.start(message.Position{}, "", 0)
	third := n.readTo(r.appended/3, nil)
	next := n.next
	n.readTo(r.appended, nil)
	if err := n.reader.Settle(r.ctx(), third); err != nil {
		r.Fatalf("settle: %v", err)
	}
	id := n.claim.Record.Source
	n.close()
	if r.s.Held != nil {
		if held := r.s.Held(r.T); held > next {
			r.Errorf("the source lost everything before record %d, but was settled to %d (invariant 2)", held, next)
		}
	}
	again := r.start(third, id, next)
	defer again.close()
	end := again.readTo(r.appended, nil)
	if r.s.Held != nil {
		if err := again.reader.Settle(r.ctx(), end); err != nil {
			r.Fatalf("settle: %v", err)
		}
		if held := r.s.Held(r.T); held != r.appended {
			r.Errorf("all %d records are settled, but the source holds them from %d on", r.appended, held)
		}
	}
}

func settleRepeated(r *rig) {
	r.append(r.total())
	n := r.start(message.Position{}, "", 0)
	b := n.read()
	for b.Len() == 0 { // a batch may move the position alone
		b.Release()
		b = n.read()
	}
	first := b.PositionAfter(0)
	b.Release()
	for range 2 {
		if err := n.reader.Settle(r.ctx(), first); err != nil {
			r.Errorf("settle: %v", err)
		}
	}
	id := n.claim.Record.Source
	n.close()
	again := r.start(first, id, 1)
	defer again.close()
	again.readTo(r.appended, nil)
}

func endThenGrowth(r *rig) {
	r.append(7)
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	for range 3 {
		n.readTo(r.appended, nil)
		for range 2 {
			if b, err := n.reader.Read(r.ctx()); !errors.Is(err, connectors.ErrEndOfInput) || b != nil {
				r.Fatalf("at the end: batch %v, error %v; want ErrEndOfInput alone", b != nil, err)
			}
		}
		r.append(5)
	}
	n.readTo(r.appended, nil)
}

func waitThenGrowth(r *rig) {
	r.append(7)
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	n.readTo(r.appended, nil)
	c := n.background(r.ctx())
	n.blocked(c, "there is nothing to read")
	r.append(5)
	res := n.await(c, "there are new records")
	if res.err != nil {
		r.Fatalf("read after growth: %v", res.err)
	}
	n.check(res.b)
	res.b.Release()
	n.readTo(r.appended, nil)
}

func closeWhileWaiting(r *rig) {
	r.append(3)
	n := r.start(message.Position{}, "", 0)
	n.readTo(r.appended, nil)
	c := n.background(r.Context())
	n.blocked(c, "there is nothing to read")
	n.close()
	if res := n.await(c, "the reader was closed"); res.err == nil {
		r.Error("a closed reader returned a batch")
	}
}

func cancelWhileWaiting(r *rig) {
	r.append(3)
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	n.readTo(r.appended, nil)
	ctx, cancel := context.WithCancel(r.Context())
	c := n.background(ctx)
	n.blocked(c, "there is nothing to read")
	cancel()
	if res := n.await(c, "its context ended"); !errors.Is(res.err, context.Canceled) {
		r.Errorf("cancelled Read: %v, want context.Canceled", res.err)
	}
	// A cancelled Read loses nothing.
	r.append(4)
	n.readTo(r.appended, nil)
}

// closeWhileStarved holds the whole budget elsewhere, as other partitions do.
func closeWhileStarved(r *rig) {
	r.append(10)
	n := r.start(message.Position{}, "", 0, budget(1<<20))
	elsewhere, err := message.NewPool(n.claim.Budget, 1<<20).Get(r.ctx())
	if err != nil {
		r.Fatal(err)
	}
	defer elsewhere.Release()
	c := n.background(r.Context())
	n.blocked(c, "there is no memory (invariant 8)")
	n.close()
	if res := n.await(c, "the reader was closed"); res.err == nil {
		r.Error("a closed reader returned a batch")
	}
}

// boundedMemory never releases a batch and sees the reader stop within its
// budget, and go on when one batch comes back (invariant 8).
func boundedMemory(r *rig) {
	const size = 1 << 20
	each := len(r.s.Payload(0)) + 1
	want := 3*size/each + 1
	r.append(want)
	n := r.start(message.Position{}, "", 0, budget(size), batchSize(1000))
	defer n.close()
	var held []*message.Batch
	bytes := 0
	hold := func(res readResult) {
		r.Helper()
		if res.err != nil {
			r.Fatalf("read: %v", res.err)
		}
		n.check(res.b)
		held = append(held, res.b)
		if bytes += res.b.Bytes(); bytes > size+size/2 {
			r.Fatalf("%d bytes in batches against a budget of %d (invariant 8)", bytes, size)
		}
	}
	hold(n.await(n.background(r.Context()), "there are records and memory"))
	for stalled := false; !stalled; {
		c := n.background(r.Context())
		select {
		case res := <-c:
			hold(res)
		case <-time.After(r.h.Blocked):
			stalled = true
			bytes -= held[0].Bytes()
			held[0].Release()
			held = held[1:]
			hold(n.await(c, "memory came back"))
		}
	}
	for _, b := range held {
		b.Release()
	}
	n.readTo(want, nil)
}

// stopped is how a lost position may show itself: when the run opens, or at its
// first Read; never as a record.
func (r *rig) stopped(pos message.Position, id string, next int, want ...error) {
	r.Helper()
	n, err := r.tryStart(pos, id, next)
	if err == nil {
		defer n.close()
		var b *message.Batch
		b, err = n.reader.Read(r.ctx())
		if err == nil {
			r.Fatalf("a silent jump: Read returned %d messages, the first %.80q (invariant 10)", b.Len(), first(b))
		}
	}
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	r.Errorf("got %v, want one of %v", err, want)
}

func first(b *message.Batch) []byte {
	if b.Len() == 0 {
		return nil
	}
	return b.Payload(0)
}

func (r *rig) positions(total int) (at []message.Position, id string) {
	r.Helper()
	n := r.start(message.Position{}, "", 0)
	defer n.close()
	at = append(at, message.Position{})
	n.readTo(total, func(b *message.Batch) {
		for i := range b.Len() {
			at = append(at, b.PositionAfter(i))
		}
	})
	return at, n.claim.Record.Source
}

func lostHead(r *rig) {
	r.append(20)
	at, id := r.positions(20)
	r.s.LoseHead(r.T, 10)
	r.stopped(at[4], id, 4, connectors.ErrGap)
}

func lostHeadWhileReading(r *rig) {
	r.append(20)
	n := r.start(message.Position{}, "", 0, batchSize(2))
	defer n.close()
	n.readTo(2, nil)
	r.s.LoseHead(r.T, 15)
	// What the reader had fetched already may still come, in order; then a gap.
	for {
		b, err := n.reader.Read(r.ctx())
		if err != nil {
			if !errors.Is(err, connectors.ErrGap) && n.next < 15 {
				r.Errorf("got %v after record %d, want ErrGap", err, n.next)
			}
			return
		}
		n.check(b) // a jump is fatal here
		b.Release()
		if n.next == 20 {
			return
		}
	}
}

func lostHeadBehind(r *rig) {
	r.append(20)
	at, id := r.positions(20)
	r.s.LoseHead(r.T, 10)
	n := r.start(at[10], id, 10)
	defer n.close()
	n.readTo(20, nil)
}

func lostTail(r *rig) {
	r.append(20)
	at, id := r.positions(20)
	r.s.LoseTail(r.T, 10)
	r.stopped(at[15], id, 15, connectors.ErrGap)
}

func replaced(r *rig) {
	r.append(20)
	at, id := r.positions(20)
	r.s.Replace(r.T)
	r.stopped(at[5], id, 5, connectors.ErrGap, checkpoint.ErrForeign)
}

func rejectedDropped(r *rig) {
	r.append(3)
	r.s.AppendBad(r.T)
	r.append(3)
	r.s.AppendBad(r.T) // at the very end: its position must be covered too
	var bad []connectors.BadRecord
	n := r.start(message.Position{}, "", 0, reject(func(_ context.Context, b connectors.BadRecord) error {
		bad = append(bad, b)
		return nil
	}))
	read, dropped := 0, 0
	var end message.Position
	for read < 8 {
		b := n.read()
		read, dropped, end = read+b.Read, dropped+b.Dropped, b.End
		b.Release()
	}
	if n.next != 6 || dropped != 2 || read != 8 || len(bad) != 2 {
		r.Errorf("%d records, %d read, %d dropped, %d rejected; want 6, 8, 2, 2 (invariant 4)", n.next, read, dropped, len(bad))
	}
	for _, b := range bad {
		if b.Err == nil || b.Place == "" {
			r.Errorf("a rejected record without its reason or place: %+v", b)
		}
	}
	id := n.claim.Record.Source
	n.close()
	if r.s.Resumes {
		r.append(2)
		again := r.start(end, id, 6)
		defer again.close()
		again.readTo(8, nil)
	}
}

var errStop = errors.New("the route's rule is to stop")

func rejectedStops(r *rig) {
	r.append(3)
	r.s.AppendBad(r.T)
	r.append(3)
	n := r.start(message.Position{}, "", 0, reject(func(context.Context, connectors.BadRecord) error { return errStop }))
	var end message.Position
	for {
		b, err := n.reader.Read(r.ctx())
		if err != nil {
			if !errors.Is(err, errStop) {
				r.Errorf("got %v, want the error that Reject returned", err)
			}
			break
		}
		n.check(b)
		end = b.End
		b.Release()
	}
	if n.next != 3 {
		r.Errorf("%d records before the stop, want all 3 (invariant 12)", n.next)
	}
	id := n.claim.Record.Source
	n.close()
	if !r.s.Resumes {
		return
	}
	// With the other rule a later run goes on at the very record.
	calls, dropped := 0, 0
	again := r.start(end, id, 3, reject(func(context.Context, connectors.BadRecord) error { calls++; return nil }))
	defer again.close()
	again.readTo(6, func(b *message.Batch) { dropped += b.Dropped })
	if calls != 1 || dropped != 1 {
		r.Errorf("after the stop: %d rejected, %d dropped; want 1 and 1", calls, dropped)
	}
}
