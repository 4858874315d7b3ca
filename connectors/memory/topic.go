package memory

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/mqbridge/mqb/message"
)

// heldBytes bounds what one partition of a topic holds (invariant 8); one record
// may pass it, so that a huge one gets through alone.
const heldBytes = 16 << 20

// registry is the process's topics. Endpoints of different routes meet here by
// name, which is the whole point of the connector and the reason for a global.
type registry struct {
	mu sync.Mutex
	m  map[string]*topic
}

var topics = registry{m: map[string]*topic{}}

// open returns the topic and counts the reference; topic.close gives it back.
// Both ends of a topic may write its sizes; the larger capacity holds, while the
// number of partitions must be the same, since keys depend on it.
func (r *registry) open(name string, capacity, partitions int) (*topic, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.m[name]
	if t == nil {
		t = &topic{name: name, seed: maphash.MakeSeed(), instance: []byte(rand.Text()), logs: make([]*log, partitions)}
		for i := range t.logs {
			t.logs[i] = newLog()
		}
		r.m[name] = t
	}
	if len(t.logs) != partitions {
		return nil, fmt.Errorf("topic %q has %d partitions on its other end, not %d", name, len(t.logs), partitions)
	}
	t.refs++
	for _, l := range t.logs {
		l.grow(capacity)
	}
	return t, nil
}

func (r *registry) close(t *topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.refs--
	if t.refs > 0 {
		return
	}
	for _, l := range t.logs {
		if !l.empty() {
			return // kept for whoever opens it next
		}
	}
	delete(r.m, t.name)
}

type topic struct {
	name string
	refs int // guarded by registry.mu
	seed maphash.Seed
	// instance is random: a position of another life of this topic is recognized by it.
	instance []byte
	logs     []*log
	turn     atomic.Uint64
}

// route says which log message i of b goes to: by key, else by turn.
func (t *topic) route(b *message.Batch, i int, turn uint64) int {
	if len(t.logs) == 1 {
		return 0
	}
	if key := b.Key(i); key != nil {
		return int(maphash.Bytes(t.seed, key) % uint64(len(t.logs)))
	}
	return int(turn % uint64(len(t.logs)))
}

// log is one ordered partition of a topic. Ordinals count from 0 in each life of
// the topic. Records [first, next) are held, those from read on wait for a reader.
type log struct {
	mu                sync.Mutex
	changed           chan struct{} // closed and replaced whenever anything below changes
	capacity          int64
	chunks            []chunk // oldest first
	first, read, next int64
	bytes             int
}

// chunk is what one append brought; message i of b has the ordinal base + i.
type chunk struct {
	base int64
	b    *message.Batch
}

func newLog() *log { return &log{changed: make(chan struct{})} }

func (l *log) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *log) grow(capacity int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int64(capacity) > l.capacity {
		l.capacity = int64(capacity)
		l.broadcast()
	}
}

func (l *log) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first == l.next
}

// append copies the messages of b that rows names, waiting for room as often as
// it has to; allowed is asked before each step that readers can see. On an error
// a prefix of rows was appended.
func (l *log) append(ctx context.Context, b *message.Batch, rows []int, allowed func() error) error {
	for len(rows) > 0 {
		if err := allowed(); err != nil {
			return err
		}
		l.mu.Lock()
		room := l.capacity - (l.next - l.read)
		if room <= 0 || l.bytes >= heldBytes {
			changed := l.changed
			l.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n := min(int(room), len(rows))
		c := chunk{base: l.next, b: message.NewBatch()}
		taken := 0
		for taken < n && (taken == 0 || l.bytes+c.b.Bytes() < heldBytes) {
			copyMessage(c.b, b, rows[taken], 0)
			taken++
		}
		l.chunks = append(l.chunks, c)
		l.next += int64(taken)
		l.bytes += c.b.Bytes()
		l.broadcast()
		l.mu.Unlock()
		rows = rows[taken:]
	}
	return nil
}

// wait returns once there is a record at or after at, or when ctx ends.
func (l *log) wait(ctx context.Context, at int64) error {
	for {
		l.mu.Lock()
		changed, ready := l.changed, l.next > at
		l.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill copies records from ordinal at on into b, at most limit records and, but
// for the first one, at most size bytes. It returns the ordinal to go on at.
func (l *log) fill(b *message.Batch, at int64, limit, size int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.chunks {
		for i := max(at-c.base, 0); i < int64(c.b.Len()); i++ {
			if b.Len() == limit || b.Len() > 0 && b.Bytes()+len(c.b.Payload(int(i))) > size {
				l.markRead(at)
				return at
			}
			copyMessage(b, c.b, int(i), at)
			at++
		}
	}
	l.markRead(at)
	return at
}

func (l *log) markRead(at int64) {
	if at > l.read {
		l.read = at
		l.broadcast()
	}
}

// free forgets the records below at.
func (l *log) free(at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at <= l.first {
		return
	}
	l.first = min(at, l.next)
	for len(l.chunks) > 0 && l.chunks[0].base+int64(l.chunks[0].b.Len()) <= l.first {
		l.bytes -= l.chunks[0].b.Bytes()
		l.chunks[0].b = nil
		l.chunks = l.chunks[1:]
	}
	l.broadcast()
}

// resume prepares for a reader whose position is n in this life of the topic and
// returns where records are held from.
func (l *log) resume(n int64) (first, next int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = max(l.first, min(n, l.next))
	l.broadcast()
	return l.first, l.next
}

// rebase prepares for a reader whose position n is of an earlier life of the
// topic: everything held is newer than that, so it is numbered from n on and
// positions keep rising (invariant 3).
func (l *log) rebase(n int64) (first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if by := n - l.first; by > 0 {
		l.first += by
		l.next += by
		for i := range l.chunks {
			l.chunks[i].base += by
		}
	}
	l.read = l.first
	l.broadcast()
	return l.first
}

func (l *log) lag(at int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - at
}

func copyMessage(dst, src *message.Batch, i int, ordinal int64) {
	dst.Append(src.Payload(i), ordinal, ordinal+1)
	if key := src.Key(i); key != nil {
		dst.SetKey(key)
	}
	for j := range src.MetaLen(i) {
		k, v := src.MetaAt(i, j)
		dst.AddMeta(string(k), v)
	}
}
