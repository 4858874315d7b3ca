// Package message holds what moves along a route: batches of messages, and the
// positions they came from.
//
// A Batch owns one byte arena; its messages are offsets into it, not slices, so
// that a batch of thousands of messages is a handful of objects to the garbage
// collector and growing the arena never invalidates a message.
package message

import "fmt"

// Message is one record inside a Batch. All its bytes are views into the
// batch's arena and are read through the batch.
type Message struct {
	// Ordinal numbers the record within its source partition: rising, with gaps
	// where the source has them. File: record index from 0. Kafka: offset.
	Ordinal int64
	// Next is the source's own note of where the following record begins
	// (file: byte offset; Kafka: offset + 1). Only Positions reads it.
	Next int64

	off, n   uint32 // payload
	koff, kn uint32 // key; kn == absent means no key
	moff     uint32 // first pair in Batch.pairs
	mn       uint32 // number of pairs
}

const absent = ^uint32(0)

type pair struct{ koff, kn, voff, vn uint32 }

// Positioner turns a message into the position after it. A source sets it on
// its batches; positions are made only when somebody asks (a part that rolls
// inside a batch, a batch cut before a bad row).
type Positioner interface {
	After(m *Message) Position
}

// Batch is an ordered run of messages of one partition with the positions
// around it. From is where the first record was read, End is "next to read":
// the batch covers [From, End) even where records were filtered out of it.
//
// A Batch has one owner at a time: the stage that holds it. Release returns its
// bytes to the budget and the batch to its pool; nothing taken from the batch
// (payloads, keys, metadata) may be used after that. Not safe for concurrent use.
type Batch struct {
	From, End Position
	Positions Positioner

	// Counters of invariant 4, per batch: Read is the number of source records
	// in [From, End) that the reader saw, Dropped those it dropped by an
	// explicit rule, Filtered those a middleware removed. Read - Dropped -
	// Filtered == Len() until a splitting middleware runs.
	Read, Dropped, Filtered int

	// Arena is the batch's memory. Sources append to it directly and then call
	// Add with offsets; everybody else goes through the methods.
	Arena []byte

	msgs  []Message
	pairs []pair

	// framed* describe the block of the arena in which the payloads of all
	// messages stand one after another, each followed by '\n'; valid while
	// framed is true. It lets a line sink write a batch, or any run of it, with
	// one copy.
	framed bool

	lease Lease
	pool  *Pool
}

// Len is the number of messages.
func (b *Batch) Len() int { return len(b.msgs) }

// Msg returns message i for reading its Ordinal and Next. The pointer is valid
// until the batch is changed or released.
func (b *Batch) Msg(i int) *Message { return &b.msgs[i] }

// Payload returns the payload of message i: a view into the arena.
func (b *Batch) Payload(i int) []byte {
	m := &b.msgs[i]
	return b.Arena[m.off : m.off+m.n : m.off+m.n]
}

// Key returns the key of message i, nil when it has none.
func (b *Batch) Key(i int) []byte {
	m := &b.msgs[i]
	if m.kn == absent {
		return nil
	}
	return b.Arena[m.koff : m.koff+m.kn : m.koff+m.kn]
}

// Add appends a message whose payload already stands in the arena at
// [off, off+n). Metadata added by AddMeta belongs to the message added last.
func (b *Batch) Add(off, n int, ordinal, next int64) {
	if uint64(off)+uint64(n) > uint64(len(b.Arena)) {
		panic(fmt.Sprintf("message: payload [%d,%d) outside an arena of %d bytes", off, off+n, len(b.Arena)))
	}
	b.msgs = append(b.msgs, Message{
		Ordinal: ordinal, Next: next,
		off: uint32(off), n: uint32(n), kn: absent, moff: uint32(len(b.pairs)),
	})
}

// Append copies payload into the arena and adds a message for it.
func (b *Batch) Append(payload []byte, ordinal, next int64) {
	off := len(b.Arena)
	b.Arena = append(b.Arena, payload...)
	b.Add(off, len(payload), ordinal, next)
	b.framed = false
}

// SetKey copies key into the arena as the key of the last message; nil removes it.
func (b *Batch) SetKey(key []byte) {
	m := &b.msgs[len(b.msgs)-1]
	if key == nil {
		m.kn = absent
		return
	}
	m.koff, m.kn = uint32(len(b.Arena)), uint32(len(key))
	b.Arena = append(b.Arena, key...)
	b.framed = false
}

// SetPayload replaces the payload of message i, copying it into the arena.
func (b *Batch) SetPayload(i int, payload []byte) {
	off := len(b.Arena)
	b.Arena = append(b.Arena, payload...)
	b.msgs[i].off, b.msgs[i].n = uint32(off), uint32(len(payload))
	b.framed = false
}

// AddMeta adds one metadata pair to the last message, copying both strings.
// Names are unique within a message by convention; Meta returns the last one.
func (b *Batch) AddMeta(key string, value []byte) { b.addMeta(len(b.msgs)-1, key, value) }

// PutMeta adds or replaces a metadata pair of any message.
func (b *Batch) PutMeta(i int, key string, value []byte) {
	m := &b.msgs[i]
	for p := m.moff; p < m.moff+m.mn; p++ {
		pr := &b.pairs[p]
		if string(b.Arena[pr.koff:pr.koff+pr.kn]) == key {
			pr.voff, pr.vn = uint32(len(b.Arena)), uint32(len(value))
			b.Arena = append(b.Arena, value...)
			b.framed = false
			return
		}
	}
	b.addMeta(i, key, value)
}

func (b *Batch) addMeta(i int, key string, value []byte) {
	m := &b.msgs[i]
	if m.moff+m.mn != uint32(len(b.pairs)) {
		// The pairs of one message are contiguous: move them to the end.
		old := b.pairs[m.moff : m.moff+m.mn]
		m.moff = uint32(len(b.pairs))
		b.pairs = append(b.pairs, old...)
	}
	ko := uint32(len(b.Arena))
	b.Arena = append(b.Arena, key...)
	vo := uint32(len(b.Arena))
	b.Arena = append(b.Arena, value...)
	b.pairs = append(b.pairs, pair{koff: ko, kn: uint32(len(key)), voff: vo, vn: uint32(len(value))})
	m.mn++
	b.framed = false
}

// Meta looks up one metadata value of message i.
func (b *Batch) Meta(i int, key string) (value []byte, ok bool) {
	m := &b.msgs[i]
	for p := m.moff + m.mn; p > m.moff; p-- {
		pr := &b.pairs[p-1]
		if string(b.Arena[pr.koff:pr.koff+pr.kn]) == key {
			return b.Arena[pr.voff : pr.voff+pr.vn : pr.voff+pr.vn], true
		}
	}
	return nil, false
}

// MetaLen is the number of metadata pairs of message i.
func (b *Batch) MetaLen(i int) int { return int(b.msgs[i].mn) }

// MetaAt returns pair j of message i, in the order they were added.
func (b *Batch) MetaAt(i, j int) (key, value []byte) {
	pr := &b.pairs[b.msgs[i].moff+uint32(j)]
	return b.Arena[pr.koff : pr.koff+pr.kn : pr.koff+pr.kn], b.Arena[pr.voff : pr.voff+pr.vn : pr.voff+pr.vn]
}

// Keep removes the messages for which keep returns false and counts them as
// filtered. The order of the others is unchanged.
func (b *Batch) Keep(keep func(i int) bool) {
	out := 0
	for i := range b.msgs {
		if keep(i) {
			if out != i {
				b.msgs[out] = b.msgs[i]
			}
			out++
		}
	}
	if out != len(b.msgs) {
		b.Filtered += len(b.msgs) - out
		b.msgs = b.msgs[:out]
		b.framed = false
	}
}

// MarkFramed is called by a source whose payloads stand in the arena in order,
// each followed by exactly one '\n'. Any change to the messages takes the mark away.
func (b *Batch) MarkFramed() { b.framed = len(b.msgs) > 0 }

// Lines returns the block holding the payloads of messages [i, j), each
// followed by one '\n', when the batch still stands in that form; else nil.
func (b *Batch) Lines(i, j int) []byte {
	if !b.framed || i >= j {
		return nil
	}
	last := &b.msgs[j-1]
	return b.Arena[b.msgs[i].off : last.off+last.n+1]
}

// PositionAfter is the position after message i; after the last message it is End,
// so that records dropped behind it are covered too.
func (b *Batch) PositionAfter(i int) Position {
	if i == len(b.msgs)-1 || b.Positions == nil {
		return b.End
	}
	return b.Positions.After(&b.msgs[i])
}

// Bytes is the size of the arena in use.
func (b *Batch) Bytes() int { return len(b.Arena) }

// Release gives the batch back. Safe to call once per Get; the batch must not be
// touched afterwards.
func (b *Batch) Release() {
	b.lease.Release()
	if b.pool != nil {
		b.pool.put(b)
	}
}

// Clear empties a batch for its owner to fill it again: messages, counters and
// positions go, memory and the lease on it stay.
func (b *Batch) Clear() {
	lease := b.lease
	b.reset()
	b.lease = lease
}

// AppendFrom copies message i of other, with its key and metadata, to the end of b.
func (b *Batch) AppendFrom(other *Batch, i int) {
	m := other.Msg(i)
	b.Append(other.Payload(i), m.Ordinal, m.Next)
	b.SetKey(other.Key(i))
	for j := range other.MetaLen(i) {
		k, v := other.MetaAt(i, j)
		b.AddMeta(string(k), v)
	}
}

// Join moves the records of other, which follow those of b, to the end of b, and
// releases other. Both must be of one reader, so that the positions of either are
// made by the other's Positioner too.
func (b *Batch) Join(other *Batch) {
	base := uint32(len(b.Arena))
	if uint64(base)+uint64(len(other.Arena)) >= uint64(absent) {
		panic("message: the joined batches have more than 4 GiB")
	}
	framed := b.framed && other.framed && len(b.msgs) > 0 && b.endsArena()
	b.Arena = append(b.Arena, other.Arena...)
	pairs := uint32(len(b.pairs))
	for _, m := range other.msgs {
		m.off += base
		if m.kn != absent {
			m.koff += base
		}
		m.moff += pairs
		b.msgs = append(b.msgs, m)
	}
	for _, p := range other.pairs {
		p.koff += base
		p.voff += base
		b.pairs = append(b.pairs, p)
	}
	b.framed = framed && other.msgs[0].off == 0
	b.End, b.Positions = other.End, other.Positions
	b.Read += other.Read
	b.Dropped += other.Dropped
	b.Filtered += other.Filtered
	if other.lease.n > 0 {
		b.lease.Join(other.lease)
		other.lease = Lease{}
	}
	other.Release()
}

// endsArena reports whether the last payload and its line end are the end of the
// arena, so that what is appended follows them.
func (b *Batch) endsArena() bool {
	last := &b.msgs[len(b.msgs)-1]
	return int(last.off+last.n)+1 == len(b.Arena)
}

func (b *Batch) reset() {
	*b = Batch{Arena: b.Arena[:0], msgs: b.msgs[:0], pairs: b.pairs[:0], pool: b.pool}
}

// DropRows removes the messages with the given indexes, in rising order, and
// counts them as dropped by an explicit rule.
func (b *Batch) DropRows(rows []int) {
	filtered, next := b.Filtered, 0
	b.Keep(func(i int) bool {
		if next < len(rows) && rows[next] == i {
			next++
			return false
		}
		return true
	})
	b.Dropped += b.Filtered - filtered
	b.Filtered = filtered
}

// CutBefore keeps messages [0, i) and moves End to right before message i: what
// follows is as if it had not been read. It returns how many source records
// that are, for the counter of what was returned to the source. Records that
// were filtered or dropped anywhere in the batch stay counted as such.
func (b *Batch) CutBefore(i int) (returned int) {
	if i >= len(b.msgs) {
		return 0
	}
	end := b.From
	if i > 0 {
		end = b.PositionAfter(i - 1)
	}
	returned = len(b.msgs) - i
	b.msgs = b.msgs[:i]
	b.End = end
	b.Read -= returned
	b.framed = b.framed && i > 0
	return returned
}
