package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// blockBytes is the size of a read and of a batch's arena: large enough that
// system calls cost nothing per record, small enough to stay in the cache.
const blockBytes = 256 << 10

// mostKept is how large a buffer of a reader may stay when nothing needs it.
const mostKept = 4 * blockBytes

// bom is what some editors put in front of UTF-8; it is no part of the data.
var bom = []byte("\xef\xbb\xbf")

// filler appends records to a batch from r.at on and moves r.at behind what it
// took. It stops at the end of the file, or when the batch is full. With final
// the end of the file ends a record. An error means that the record at r.at
// cannot be handed on; what is in the batch by then is good.
type filler interface {
	fill(ctx context.Context, b *message.Batch, final bool) error
	// prepare reads what stands before all records; false while it is not there.
	prepare(ctx context.Context, final bool) (bool, error)
	// blocks is how blocks behind r.at are decoded early, nil while they cannot be.
	blocks() blockDecoder
}

// reader reads one file for one run.
type reader struct {
	f       *os.File
	content content
	live    bool // a pipe: its content comes when it comes, and once
	src     *source
	claim   connectors.Claim
	budget  *message.Budget
	pool    *message.Pool
	filler  filler
	id      identity // as recorded; its zero value when nothing is
	batch   int      // most messages in a batch
	maxRec  int64    // most bytes in a record
	at      place    // the next record
	checked bool     // a record begins at the place where this run began
	ended   bool     // the last Read came to the end of the file
	held    error    // what the record behind the last batch is, for the next Read
	exit    bool     // exit_on_empty: the end of the file is the end of the input
	lag     atomic.Int64
	ends    ends

	ahead     *ahead // nil while nothing is read ahead
	head      *job   // taken from it, but not handed out yet
	until     int64  // the filler stops here, where the next block begins; 0: nowhere
	notBefore int64  // reading ahead does not start before this offset
	block     atomic.Int64
	// What measure has learned: bytes a record, bytes of arena for each of them,
	// and how much of the block that should fit does.
	perRecord, growth, fit float64

	// life ends with Close, and a Read that waits with it.
	life context.Context
	end  context.CancelFunc
}

func (s *source) newReader(f *os.File, claim connectors.Claim, at place) (*reader, error) {
	budget := claim.Budget
	if budget == nil {
		budget = s.env.Budget
	}
	spec := claim.Spec
	if spec == nil {
		spec = s.spec
	}
	r := &reader{
		f: f, live: s.pipe, src: s, claim: claim, at: at,
		budget: budget,
		pool:   message.NewPool(budget, blockBytes),
		batch:  max(spec.BatchSize, 1),
		maxRec: spec.MaxRecordBytes,
		exit:   spec.ExitOnEmpty,
	}
	r.life, r.end = context.WithCancel(context.Background())
	if r.maxRec <= 0 {
		r.maxRec = 16 << 20
	}
	if claim.Record.Source != "" {
		id, err := parseIdentity(claim.Record.Source)
		if err != nil {
			return nil, err
		}
		if err := verify(f, id, s.shared); err != nil {
			return nil, err
		}
		r.id = id
	}
	var err error
	if r.content, err = s.content(f, r.live, budget, r.maxRec); err != nil {
		return nil, err
	}
	r.lag.Store(r.content.left(at.Offset))
	if s.cfg.format() == formatCSV {
		r.filler, err = newCSV(r)
	} else {
		r.filler = newLines(r)
		r.content.release(at.Offset - 1)
	}
	if err != nil {
		r.content.close()
	}
	return r, err
}

// content makes the content of an open file.
func (s *source) content(f *os.File, live bool, budget *message.Budget, maxRecord int64) (content, error) {
	codec, err := codecOf(s.cfg.Compression, f.Name())
	switch {
	case err != nil:
		return nil, connectors.Permanent(err, "")
	case live:
		p, err := newPipe(f, codec)
		if err != nil {
			return nil, err
		}
		return newStream(p, true, budget, maxRecord), nil
	case codec != codecNone:
		return newStream(newMembers(f, codec), false, budget, maxRecord), nil
	}
	return &plain{f: f}, nil
}

// idle reports whether a batch that has records already should not wait for what
// comes at offset.
func (r *reader) idle(b *message.Batch, offset int64) bool {
	if !r.live || b.Read == 0 {
		return false
	}
	size, exact, _ := r.content.size()
	return size <= offset && !exact
}

// Read implements connectors.Reader.
func (r *reader) Read(ctx context.Context) (*message.Batch, error) {
	if err := r.held; err != nil {
		// Once; a caller that reads on meets the record again.
		r.held = nil
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	for {
		b, err := r.next(ctx, false)
		if b != nil || err != nil {
			return b, err
		}
		// The end of the file, or an unfinished record before it.
		if err := r.content.broken(false); err != nil {
			return nil, r.failed("read", err)
		}
		size, exact, err := r.content.size()
		if err != nil {
			return nil, r.failed("stat", err)
		}
		rest := size - r.at.Offset
		torn := r.content.broken(true) != nil
		if rest > 0 && r.live && exact || (rest > 0 || torn) && r.exit && !r.live {
			more, err := r.growing(ctx)
			if err != nil {
				return nil, err
			}
			if more {
				continue
			}
			if err := r.content.broken(true); err != nil {
				return nil, r.failed("read", err)
			}
			before := r.at.Offset
			b, err := r.next(ctx, true)
			if b != nil || err != nil {
				return b, err
			}
			if r.at.Offset != before {
				continue // blank lines only
			}
		}
		if err := r.atNewEnd(); err != nil {
			return nil, err
		}
		if rest == 0 && !r.live {
			r.at.End = true
			if err := r.replaced(); err != nil {
				return nil, err
			}
			r.atEnd(!torn) // the rest of a member is still to come
		}
		return nil, connectors.ErrEndOfInput
	}
}

// growing waits for a little while and reports whether the file has changed.
func (r *reader) growing(ctx context.Context) (bool, error) {
	if r.live {
		return false, nil // its end is one
	}
	before, err := r.f.Stat()
	if err != nil {
		return false, r.failed("stat", err)
	}
	if err := pause(ctx, r.src.quiet); err != nil {
		return false, err
	}
	after, err := r.f.Stat()
	if err != nil {
		return false, r.failed("stat", err)
	}
	if after.Size() != before.Size() {
		return true, nil
	}
	size, _, err := r.content.size()
	if err != nil {
		return false, r.failed("stat", err)
	}
	// What has grown meanwhile may not have been looked at yet.
	n, _, err := r.readAt(ctx, make([]byte, 1), size)
	return n > 0, err
}

// next reads one batch; nil without an error at the end of the file.
func (r *reader) next(ctx context.Context, final bool) (*message.Batch, error) {
	for {
		from := r.at
		b, err := r.takeAhead(ctx)
		if b != nil {
			return r.finish(b, from)
		}
		if err != nil {
			return nil, err
		}
		if b, err = r.room(ctx); err != nil {
			return nil, err
		}
		from = r.at
		ok, err := r.filler.prepare(ctx, final)
		if err == nil {
			err = r.begin(ctx)
		}
		if err == nil && ok {
			err = r.filler.fill(ctx, b, final)
		}
		if b.Read > 0 {
			r.held = err
			return r.finish(b, from)
		}
		b.Release()
		if err != nil || r.until == 0 || r.at.Offset < r.until {
			return nil, err
		}
		// The rest of the block was blank.
	}
}

// room gets the batch for the filler. It waits for the budget, and must not hold
// some of it for later records meanwhile: nobody would give way.
func (r *reader) room(ctx context.Context) (*message.Batch, error) {
	if r.ahead != nil {
		if b, ok := r.pool.TryGet(); ok {
			return b, nil
		}
		r.stopAhead()
	}
	return r.pool.Get(ctx)
}

// finish completes a batch that was read from from to r.at.
func (r *reader) finish(b *message.Batch, from place) (*message.Batch, error) {
	size, exact, err := r.content.size()
	if err != nil {
		b.Release()
		return nil, r.failed("stat", err)
	}
	if size < r.at.Offset {
		b.Release()
		return nil, r.truncated(size)
	}
	if !exact && size == r.at.Offset && !r.live {
		// Whether it was the last record is worth knowing: the file may be gone
		// when the next run begins. An error comes again with the next Read.
		n, end, err := r.content.readAt(r.life, make([]byte, 1), size)
		exact = err == nil && n == 0 && end
	}
	r.at.End = exact && size == r.at.Offset
	r.lag.Store(r.content.left(r.at.Offset))
	r.content.release(r.at.Offset)
	r.measure(b, from.Offset)
	b.From, b.End, b.Positions = from.position(), r.at.position(), positioner{}
	return b, nil
}

func (r *reader) truncated(size int64) error {
	return gap(fmt.Errorf("%s was truncated to %d bytes; the position is record %d at byte %d", r.f.Name(), size, r.at.Record, r.at.Offset))
}

// begin does what comes before a record: it looks whether the file is still the
// one it was, and steps over a byte order mark or the late line end of a record
// that was handed on without one.
func (r *reader) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	size, exact, err := r.content.size()
	if err != nil {
		return r.failed("stat", err)
	}
	if exact && size < r.at.Offset {
		return r.truncated(size)
	}
	if exact && size == r.at.Offset {
		n, _, err := r.readAt(ctx, make([]byte, 1), size)
		if n == 0 || err != nil {
			return err
		}
	}
	if !r.checked && r.at.Record > 0 && !r.at.Open {
		var b [1]byte
		n, end, err := r.readAt(ctx, b[:], r.at.Offset-1)
		switch {
		case err != nil:
			return err
		case n == 0 && end:
			if err := r.content.broken(true); err != nil {
				return r.failed("read", err)
			}
			size, _, err := r.content.size()
			if err != nil {
				return r.failed("stat", err)
			}
			return r.truncated(size)
		case b[0] != r.src.cfg.delimiter():
			return gap(fmt.Errorf("%s has changed: no record begins at the position, record %d at byte %d", r.f.Name(), r.at.Record, r.at.Offset))
		}
	}
	r.checked = true
	r.at.End = false
	if r.ended {
		r.atEnd(false)
	}
	if r.ended && r.id.inode != "" {
		// It has grown since its end was seen: by appending, or emptied and
		// filled again?
		if err := verify(r.f, r.id, r.src.shared); err != nil {
			return err
		}
	}
	r.ended = false
	if r.at.Open {
		var b [2]byte
		n, _, err := r.readAt(ctx, b[:], r.at.Offset)
		if err != nil {
			return err
		}
		d := r.src.cfg.delimiter()
		switch {
		case b[0] == d:
			r.at.Offset++
		case n == 2 && b[0] == '\r' && b[1] == '\n' && d == '\n':
			r.at.Offset += 2
		default:
			return gap(fmt.Errorf("%s has grown inside record %d (byte %d), which was taken for finished because exit_on_empty was set and it had not changed for %v",
				r.f.Name(), r.at.Record-1, r.at.Offset, r.src.quiet))
		}
		r.at.Open = false
	}
	if r.at.Offset == 0 {
		// A pipe may hand it over in pieces.
		var b [3]byte
		n := 0
		for end := false; !end && n < len(b) && bytes.HasPrefix(bom, b[:n]); {
			var more int
			if more, end, err = r.readAt(ctx, b[n:], int64(n)); err != nil {
				return err
			}
			n += more
		}
		if bytes.Equal(b[:n], bom) {
			r.at.Offset = int64(n)
		}
	}
	return nil
}

// reject hands a bad record to the route's rule. nil: it is counted, go on.
func (r *reader) reject(ctx context.Context, b *message.Batch, place int64, payload []byte, cause error) error {
	line, err := r.line(place)
	if err != nil {
		return err
	}
	bad := connectors.BadRecord{
		Ordinal: r.at.Record,
		Place:   fmt.Sprintf("%s:%d (byte %d)", r.f.Name(), line, place),
		Err:     cause,
		// No more than always has been read when a record is found to be too large,
		// so that it is the same whenever it is read.
		Payload: payload[:min(int64(len(payload)), r.maxRec)],
	}
	if r.claim.Reject == nil {
		return &connectors.Error{Class: connectors.ClassData, Err: fmt.Errorf("%s: %w", bad.Place, bad.Err)}
	}
	if err := r.claim.Reject(ctx, bad); err != nil {
		return err
	}
	b.Read++
	b.Dropped++
	return nil
}

func (r *reader) tooLarge() error {
	return fmt.Errorf("the record has more than %d bytes (max_record_bytes)", r.maxRec)
}

// readAt fills p from offset as far as there is content, and says whether it
// ends there, for now.
func (r *reader) readAt(ctx context.Context, p []byte, offset int64) (n int, end bool, err error) {
	if n, end, err = r.content.readAt(ctx, p, offset); err != nil {
		return n, end, r.failed("read", err)
	}
	return n, end, nil
}

// line is the number of the line at offset, from 1.
func (r *reader) line(offset int64) (int64, error) {
	n, err := r.content.lines(offset)
	if err != nil {
		return 0, r.failed("read", err)
	}
	return n + 1, nil
}

// lineEnd finds the first delimiter at or after offset and returns the offset
// behind it; ok is false, and end the file's end, when there is none.
func (r *reader) lineEnd(ctx context.Context, offset int64, delimiter byte) (end int64, ok bool, err error) {
	buf := make([]byte, blockBytes)
	for {
		n, eof, err := r.readAt(ctx, buf, offset)
		if err != nil {
			return offset, false, err
		}
		if i := bytes.IndexByte(buf[:n], delimiter); i >= 0 {
			return offset + int64(i) + 1, true, nil
		}
		offset += int64(n)
		if eof {
			return offset, false, nil
		}
	}
}

func (r *reader) failed(op string, err error) error {
	return classify(fmt.Errorf("file source: %s partition %s: %w", op, r.claim.Partition.ID, err))
}

// Lag implements connectors.Reader, in bytes.
func (r *reader) Lag() int64 { return max(r.lag.Load(), 0) }

// Close implements connectors.Reader.
func (r *reader) Close() error {
	r.end()
	r.stopAhead()
	r.content.close()
	return r.f.Close()
}
