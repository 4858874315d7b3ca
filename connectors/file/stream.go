package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

const (
	// lookAhead is how much content a stream makes before it is asked for, if the
	// budget has room for it; lookLittle, if not.
	lookAhead  = 512 << 10
	lookLittle = 64 << 10
	// chunk is the most that a feed is asked for at a time.
	chunk = 64 << 10
)

// errTorn: the content ends where it cannot end, unless more comes.
var errTorn = errors.New("ends too early")

// feed is where a stream gets its bytes from. One goroutine uses it, but left and
// stop may be called by any.
type feed interface {
	// Read ends with io.EOF, with an error that wraps errTorn, or with one that
	// no more bytes can cure.
	io.Reader
	// more reports whether there is more behind the end that Read came to, and if
	// so lets Read go on.
	more() (bool, error)
	// left is how many bytes there are to be read yet, -1 if nobody knows.
	left() int64
	// stop makes Read return, now and from now on.
	stop()
	// close frees what the feed holds, when nobody uses it any more.
	close()
}

// stream is content that is made in order and only once: what comes out of a
// decompressor or a pipe. A goroutine of its own fills a window ahead of the
// readers. The window begins at what they released, so that they can go back to
// their position, and ends a bounded number of bytes behind what they asked for.
type stream struct {
	feed feed
	live bool  // as in reader: hand over what is there, without waiting for more
	most int64 // bytes of the window

	budget *message.Budget
	room   message.Lease // for look, while the window is being filled; run's own
	look   int

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when something below changes
	buf     []byte
	lo, hi  int   // the window is buf[lo:hi]
	roomy   int   // times in a row that the buffer was much too large for it
	base    int64 // offset of buf[lo] in the content
	before  int64 // line feeds before it
	kept    int64 // what is before this was released
	want    int64 // somebody asked for what is before this
	err     error // why nothing follows the window; nil while it grows
	asked   int   // whether there is more by now: questions,
	told    int   // and answers
	closed  bool
	ended   chan struct{} // the goroutine is gone
}

func newStream(f feed, live bool, budget *message.Budget, maxRecord int64) *stream {
	s := &stream{feed: f, live: live, most: 2*maxRecord + 4<<20, budget: budget, changed: make(chan struct{}), ended: make(chan struct{})}
	go s.run()
	return s
}

// run fills the window until the stream is closed or broken.
func (s *stream) run() {
	defer close(s.ended)
	defer func() {
		if v := recover(); v != nil {
			_ = s.got(0, &connectors.Error{Class: connectors.ClassBug, Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())})
		}
	}()
	for {
		space := s.space()
		if space == nil {
			return
		}
		n, err := s.feed.Read(space)
		err = s.got(n, err)
		for err != nil {
			if soft := errors.Is(err, io.EOF) || errors.Is(err, errTorn); !soft || s.live || !s.question() {
				return
			}
			more, merr := s.feed.more()
			if merr != nil {
				err = merr
			}
			s.answer(more, merr)
			if more && merr == nil {
				break
			}
		}
	}
}

// space waits until the window may grow and returns where; nil after close.
func (s *stream) space() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return nil
		}
		if s.want == 0 {
			s.wait() // nothing is read before somebody asks
			continue
		}
		if s.look == 0 {
			s.look = lookLittle
			if l, ok := s.budget.TryAhead(lookAhead); ok {
				s.room, s.look = l, lookAhead
			}
		}
		s.drop()
		end := s.base + int64(s.hi-s.lo)
		if end < s.want || end < s.kept || s.hi-s.lo < s.look {
			break
		}
		s.wait()
	}
	if len(s.buf)-s.hi < chunk {
		switch {
		case s.lo < chunk || s.hi-s.lo > len(s.buf)/2:
			s.resize()
		case s.roomy > 0 && s.oversized():
			s.resize()
		default:
			if s.roomy = 0; s.oversized() {
				s.roomy = 1 // the next record may be as large as the last one was
			}
			s.hi = copy(s.buf, s.buf[s.lo:s.hi])
			s.lo = 0
		}
	}
	return s.buf[s.hi : s.hi+chunk]
}

// resize makes a buffer for the window as it is and some more; mu is held.
func (s *stream) resize() {
	buf := make([]byte, (s.hi-s.lo)*3/2+s.look+chunk)
	s.hi = copy(buf, s.buf[s.lo:s.hi])
	s.buf, s.lo, s.roomy = buf, 0, 0
}

// oversized reports whether the buffer is much larger than the window, since a large
// record went through it; mu is held.
func (s *stream) oversized() bool { return len(s.buf) > mostKept+2*(s.hi-s.lo+s.look+chunk) }

// drop forgets what was released. mu is held.
func (s *stream) drop() {
	n := int(min(s.kept-s.base, int64(s.hi-s.lo)))
	if n <= 0 {
		return
	}
	s.before += int64(bytes.Count(s.buf[s.lo:s.lo+n], []byte{'\n'}))
	s.base += int64(n)
	s.lo += n
}

// got takes n bytes into the window, and returns why no more may follow.
func (s *stream) got(n int, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hi += n
	s.err = err
	if err == nil && int64(s.hi-s.lo) > s.most {
		s.err = &connectors.Error{
			Class: connectors.ClassData,
			Err:   fmt.Errorf("the record at byte %d of the content goes on for more than %d bytes, of which a file that cannot be read twice keeps no more", s.kept, s.most),
			Hint:  "is the separator or the delimiter right? max_record_bytes sets the limit",
		}
	}
	s.tell()
	return s.err
}

// question waits until somebody asks for more; false after close.
func (s *stream) question() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.Release()
	s.look = 0
	if s.drop(); s.oversized() {
		s.resize()
	}
	for s.asked == s.told && !s.closed {
		s.wait()
	}
	return !s.closed
}

func (s *stream) answer(more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = s.asked
	switch {
	case err != nil:
		s.err = err
	case more:
		s.err = nil
	}
	s.tell()
}

// tell wakes everybody who waits; mu is held.
func (s *stream) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait lets go of mu until something has changed.
func (s *stream) wait() {
	c := s.changed
	s.mu.Unlock()
	<-c
	s.mu.Lock()
}

// readAt implements content. An error of the feed comes once everything before
// it was handed over; readers see it by broken.
func (s *stream) readAt(ctx context.Context, p []byte, offset int64) (int, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset < s.base {
		return 0, false, fmt.Errorf("byte %d of the content was let go of", offset)
	}
	want := offset + int64(len(p))
	if s.live {
		want = offset + 1
	}
	asked := 0
	for {
		have := int64(s.hi-s.lo) - (offset - s.base)
		n := max(0, min(have, int64(len(p))))
		settled := s.err != nil && (s.live || asked > 0 && s.told >= asked || !s.soft())
		if n == int64(len(p)) || s.live && n > 0 || settled {
			if n > 0 {
				from := s.lo + int(offset-s.base)
				copy(p, s.buf[from:from+int(n)])
			}
			return int(n), n < int64(len(p)) && settled, nil
		}
		switch {
		case s.closed:
			return 0, false, context.Canceled
		case s.err != nil && asked == 0:
			s.asked++
			asked = s.asked
			s.tell()
		case s.err == nil && want > s.want:
			s.want = want
			s.tell()
		}
		c := s.changed
		s.mu.Unlock()
		select {
		case <-c:
		case <-ctx.Done():
			s.mu.Lock()
			return 0, false, ctx.Err()
		}
		s.mu.Lock()
	}
}

// soft reports whether what is at the end may be cured by more bytes; mu is held.
func (s *stream) soft() bool { return errors.Is(s.err, io.EOF) || errors.Is(s.err, errTorn) }

func (s *stream) size() (int64, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base + int64(s.hi-s.lo), s.err != nil, nil
}

func (s *stream) lines(offset int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(0, min(int(offset-s.base), s.hi-s.lo))
	return s.before + int64(bytes.Count(s.buf[s.lo:s.lo+n], []byte{'\n'})), nil
}

func (s *stream) left(int64) int64 { return s.feed.left() }

func (s *stream) release(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset > s.kept {
		s.kept = offset
		s.tell()
	}
}

func (s *stream) broken(final bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || errors.Is(s.err, io.EOF) || errors.Is(s.err, errTorn) && !final && !s.live {
		return nil
	}
	return s.err
}

func (s *stream) close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.tell()
	s.mu.Unlock()
	s.feed.stop()
	<-s.ended
	s.feed.close()
	s.room.Release()
}
