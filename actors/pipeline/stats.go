package pipeline

import (
	"sync/atomic"
	"time"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/message"
)

// Stats are the counters of one partition on this node, over all its runs
// (invariant 4). Written by the run's loops, read by anyone.
type Stats struct {
	Read, Written, Covered, Filtered, DeadLettered, Dropped, Returned atomic.Int64
	// Bytes counts payload bytes handed to the sink and made durable.
	Bytes atomic.Int64
	// FenceWait is the time in nanoseconds that a writer loop waited for a claim
	// or for a commit of the record alone; RunTime the time runs were open.
	FenceWait, RunTime atomic.Int64
	// Commits counts changes of the record.
	Commits atomic.Int64
	// Input and Output measure single calls, where the route asks for it.
	Input, Output Calls
	Lag           atomic.Int64
	position      atomic.Pointer[message.Position]
	record        atomic.Pointer[checkpoint.Record]
}

// Counters returns a snapshot for a status.
func (s *Stats) Counters() lease.Counters {
	return lease.Counters{
		Read: s.Read.Load(), Written: s.Written.Load(), Covered: s.Covered.Load(),
		Filtered: s.Filtered.Load(), DeadLettered: s.DeadLettered.Load(), Dropped: s.Dropped.Load(), Returned: s.Returned.Load(),
	}
}

// Position is the durable position, zero before the first claim.
func (s *Stats) Position() message.Position {
	if p := s.position.Load(); p != nil {
		return *p
	}
	return message.Position{}
}

// Record is the checkpoint record as last known to be stored, nil before the
// first claim.
func (s *Stats) Record() *checkpoint.Record { return s.record.Load() }

// Stored notes the record as stored, by a claim or a commit.
func (s *Stats) Stored(rec checkpoint.Record) {
	s.record.Store(&rec)
	s.position.Store(&rec.Position)
}

// WaitFence adds the time since t to FenceWait.
func (s *Stats) WaitFence(t time.Time) { s.FenceWait.Add(int64(time.Since(t))) }

// tally follows source records through a committer until they are durable or
// given back. read == rows + filtered + dead + dropped + covered.
type tally struct {
	read, rows, filtered, dead, dropped, covered, bytes int64
}

func (t *tally) add(u tally) {
	t.read += u.read
	t.rows += u.rows
	t.filtered += u.filtered
	t.dead += u.dead
	t.dropped += u.dropped
	t.covered += u.covered
	t.bytes += u.bytes
}

// durable moves a tally into the counters.
func (s *Stats) durable(t tally) {
	s.Written.Add(t.rows)
	s.Filtered.Add(t.filtered)
	s.DeadLettered.Add(t.dead)
	s.Dropped.Add(t.dropped)
	s.Covered.Add(t.covered)
	s.Bytes.Add(t.bytes)
}

// returned gives the whole tally back to the source: it will be read again.
func (s *Stats) returned(t tally) { s.Returned.Add(t.read) }

// unwound gives back what a panic tore out of a loop's hands: the records read
// since before that nothing else accounts for.
func (s *Stats) unwound(before lease.Counters) {
	missing := func(c lease.Counters) int64 {
		return c.Read - c.Written - c.Covered - c.Filtered - c.DeadLettered - c.Dropped - c.Returned
	}
	s.Returned.Add(missing(s.Counters()) - missing(before))
}

// letters counts n of the dropped records as dead letters.
func (t tally) letters(n int) tally {
	t.dead += int64(n)
	t.dropped -= int64(n)
	return t
}

func tallyOf(b *message.Batch) tally {
	return tally{read: int64(b.Read), rows: int64(b.Len()), filtered: int64(b.Filtered), dropped: int64(b.Dropped)}
}
