package file

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file/csvjson"
	"github.com/mqbridge/mqb/message"
)

// csvRecords reads csv. Blocks go through a buffer of the reader and come out as
// JSON objects in the batch's arena.
//
// A record with a quote error ends at the first line end behind the offending
// byte. A record that is larger than max_record_bytes, or whose quote is still
// open at the end of an ended input, is given up as its first line: the quote
// may have been opened by mistake, and must not take the rest of the file with
// it. Reading goes on behind that line end.
type csvRecords struct {
	*reader
	cfg     *CSVConfig
	scan    *csvjson.Scanner // nil until the header was read
	in      []byte
	base    int64 // offset of in[0] in the file
	lo, hi  int   // what of in is still to be read
	eof     bool  // the file ended at hi when it was read last
	roomy   int   // reads in a row that needed no large buffer
	largest int   // size of the largest object so far
	warned  atomic.Bool
}

func newCSV(r *reader) (*csvRecords, error) {
	c := &csvRecords{reader: r, cfg: &r.src.cfg.CSV, in: make([]byte, blockBytes), largest: 1 << 10}
	if !c.cfg.Header {
		sep, err := c.cfg.separator()
		if err == nil && sep == auto {
			err = fmt.Errorf("csv.separator: auto needs a header")
		}
		if err == nil {
			err = c.columns(sep, c.cfg.Columns)
		}
		if err != nil {
			return nil, connectors.Permanent(err, "")
		}
	}
	return c, nil
}

func (c *csvRecords) columns(sep byte, names []string) error {
	quote, err := c.cfg.quote()
	if err != nil {
		return err
	}
	scan, err := csvjson.New(sep, quote)
	if err != nil {
		return err
	}
	scan.SetColumns(names)
	c.scan = scan
	return nil
}

// header reads the names of the columns from the file's beginning; ok is false
// while they are not complete.
func (c *csvRecords) header(ctx context.Context, final bool) (ok bool, err error) {
	sep, err := c.cfg.separator()
	if err != nil {
		return false, err
	}
	quote, err := c.cfg.quote()
	if err != nil {
		return false, err
	}
	head := make([]byte, 64<<10)
	n, ended, err := c.readAt(ctx, head, 0)
	if err != nil {
		return false, err
	}
	for {
		start := 0
		if bytes.HasPrefix(head[:n], bom) {
			start = len(bom)
		}
		for start < n && (head[start] == '\n' || head[start] == '\r') {
			start++
		}
		if start == n && ended {
			return false, nil
		}
		if sep == auto {
			// Of a line that has not all come yet it could be taken for another one.
			line, whole := headLine(head[start:n], quote)
			switch {
			case whole || final && ended:
				sep = sniff(line, quote)
			case ended:
				return false, nil
			case int64(n) > c.maxRec:
				return false, c.badHeader(start, c.tooLarge())
			default:
				if head, n, ended, err = c.moreHead(ctx, head, n); err != nil {
					return false, err
				}
				continue
			}
		}
		s, err := csvjson.New(sep, quote)
		if err != nil {
			return false, connectors.Permanent(err, "")
		}
		names, res := s.Fields(head[start:n], final && ended)
		switch res.Status {
		case csvjson.Record:
			if len(c.cfg.Columns) > 0 {
				names = c.cfg.Columns
			}
			end := int64(start + res.N)
			if c.at.Offset < end {
				c.at.Offset = end
				c.at.Open = head[end-1] != '\n'
			}
			return true, c.columns(sep, names)
		case csvjson.More:
			if ended {
				return false, nil
			}
			if int64(n) > c.maxRec {
				return false, c.badHeader(start, c.tooLarge())
			}
			if head, n, ended, err = c.moreHead(ctx, head, n); err != nil {
				return false, err
			}
		default:
			return false, c.badHeader(start+res.N, quoteError(res.Status))
		}
	}
}

func (c *csvRecords) badHeader(at int, err error) error {
	line, lerr := c.line(int64(at))
	if lerr != nil {
		return lerr
	}
	return &connectors.Error{
		Class: connectors.ClassData,
		Err:   fmt.Errorf("%s:%d (byte %d): the header cannot be read: %w", c.f.Name(), line, at, err),
		Hint:  "is the file csv with this separator and quote?",
	}
}

// moreHead reads on behind the first n bytes of the file, which head holds.
func (c *csvRecords) moreHead(ctx context.Context, head []byte, n int) ([]byte, int, bool, error) {
	if n == len(head) {
		head = append(head, make([]byte, len(head))...)
	}
	more, ended, err := c.readAt(ctx, head[n:], int64(n))
	return head, n + more, ended, err
}

// sniffed are the separators that are told from a header.
const sniffed = ",;\t|"

// quoting says of each byte of csv whether it stands inside of a quoted field. A quote
// opens one at its beginning only; elsewhere it is an error of the record, and what
// follows would be taken for quoted up to the end of the file.
type quoting struct {
	quote  byte
	seps   string // any of them may be the separator
	inside bool
	begun  bool // the field has begun without a quote
}

func (q *quoting) pass(b byte) (inside bool) {
	switch {
	case b == q.quote && !q.begun:
		q.inside = !q.inside // a doubled one closes and opens
	case !q.inside:
		q.begun = b != '\n' && strings.IndexByte(q.seps, b) < 0
	}
	return q.inside
}

// headLine is head up to the first line end outside quotes; whole, that there is one.
func headLine(head []byte, quote byte) (line []byte, whole bool) {
	q := quoting{quote: quote, seps: sniffed}
	for i, b := range head {
		if !q.pass(b) && b == '\n' {
			return head[:i], true
		}
	}
	return head, false
}

// sniff picks the separator that occurs most often in a line, outside quotes; a
// comma if none does.
func sniff(line []byte, quote byte) byte {
	var count [256]int
	q := quoting{quote: quote, seps: sniffed}
	for _, b := range line {
		if !q.pass(b) {
			count[b]++
		}
	}
	best := sniffed[0]
	for _, b := range []byte(sniffed) {
		if count[b] > count[best] {
			best = b
		}
	}
	return best
}

func quoteError(s csvjson.Status) error {
	switch s {
	case csvjson.BareQuote:
		return fmt.Errorf("a quote inside an unquoted field")
	case csvjson.AfterQuote:
		return fmt.Errorf("text behind a closing quote")
	}
	return fmt.Errorf("the quote that is opened here is never closed")
}

func (c *csvRecords) prepare(ctx context.Context, final bool) (bool, error) {
	if c.scan != nil {
		return true, nil
	}
	ok, err := c.header(ctx, final)
	if ok {
		c.content.release(c.at.Offset - 1)
	}
	return ok, err
}

func (c *csvRecords) fill(ctx context.Context, b *message.Batch, final bool) error {
	if c.base+int64(c.lo) != c.at.Offset {
		c.seek(c.at.Offset)
	}
	c.eof = false
	room := min(cap(b.Arena), blockBytes) // see lines.fill
	defer b.MarkFramed()
	// Bad records count: a file of nothing else must come to an end of its batches,
	// since what becomes of them waits for that.
	for b.Read < c.batch && (b.Read == 0 || len(b.Arena)+c.largest <= room) && (c.until == 0 || c.at.Offset < c.until) {
		if c.lo == c.hi {
			if c.idle(b, c.base+int64(c.hi)) {
				return nil
			}
			if more, err := c.more(ctx); !more || err != nil {
				return err
			}
		}
		before := len(b.Arena)
		out, res := c.scan.Next(b.Arena, c.in[c.lo:c.hi], final && c.eof)
		b.Arena = out
		var err error
		switch {
		case res.Status == csvjson.Blank:
			c.skip(c.at.Offset+int64(res.N), 0)
			continue
		case int64(c.taken(res)) > c.maxRec:
			// Judged the same whether or not the block happens to hold all of it, so
			// that records have the same numbers when they are read again.
			b.Arena = b.Arena[:before]
			var whole bool
			if whole, err = c.giveUp(ctx, b, 0, 0, c.tooLarge(), final); !whole || err != nil {
				return err
			}
			continue
		case res.Status == csvjson.More:
			if c.idle(b, c.base+int64(c.hi)) {
				return nil
			}
			more, err := c.more(ctx)
			if err != nil || !more && !final {
				return err
			}
			continue // with final, the end of the file now ends the record
		case res.Status == csvjson.OpenQuote:
			if _, err = c.giveUp(ctx, b, res.N, 0, quoteError(res.Status), final); err != nil {
				return err
			}
			continue
		case res.Status == csvjson.BareQuote, res.Status == csvjson.AfterQuote:
			cause := fmt.Errorf("%w, in the record that begins at byte %d", quoteError(res.Status), c.at.Offset)
			var whole bool
			if whole, err = c.giveUp(ctx, b, res.N, res.N, cause, final); !whole || err != nil {
				return err
			}
			continue
		case res.Status == csvjson.Count:
			err = c.mismatch(res.Fields)
		}
		raw := c.in[c.lo : c.lo+res.N]
		if err != nil {
			b.Arena = b.Arena[:before]
			if err := c.reject(ctx, b, c.at.Offset, raw, err); err != nil {
				return err
			}
		} else {
			size := len(b.Arena) - before
			c.largest = max(c.largest, min(size, blockBytes/4))
			b.Add(before, size-1, c.at.Record, c.at.Offset+int64(res.N))
			b.Read++
		}
		c.at.Open = raw[res.N-1] != '\n'
		c.skip(c.at.Offset+int64(res.N), 1)
	}
	return nil
}

// taken is how many bytes of the buffer a step looked at.
func (c *csvRecords) taken(res csvjson.Result) int {
	if res.Status == csvjson.More || res.Status == csvjson.OpenQuote {
		return c.hi - c.lo
	}
	return res.N
}

// mismatch decides on a record with another number of fields than columns.
func (c *csvRecords) mismatch(fields int) error {
	if c.cfg.OnMismatch == "fail" {
		return fmt.Errorf("the record has %d fields, there are %d columns", fields, c.scan.Columns())
	}
	if !c.warned.Load() && c.claim.Log != nil {
		line, err := c.line(c.at.Offset)
		if err != nil {
			return err
		}
		c.claim.Log.Warn("csv record with another number of fields than columns: missing ones are empty, extra ones left out; said once a run",
			"place", fmt.Sprintf("%s:%d", c.f.Name(), line), "fields", fields, "columns", c.scan.Columns())
	}
	c.warned.Store(true)
	return nil
}

// giveUp rejects the record at c.at for what is wrong at its byte at, up to the
// first line end at or behind its byte from. whole is false, and nothing is
// rejected, while that line end is still to be written.
func (c *csvRecords) giveUp(ctx context.Context, b *message.Batch, at, from int, cause error, final bool) (whole bool, err error) {
	var end int64
	open := false
	if k := bytes.IndexByte(c.in[c.lo+from:c.hi], '\n'); k >= 0 {
		end = c.at.Offset + int64(from+k+1)
	} else {
		var found bool
		end, found, err = c.lineEnd(ctx, c.base+int64(c.hi), '\n')
		if err != nil || !found && !final {
			return false, err
		}
		open = !found
	}
	raw := c.in[c.lo:min(c.hi, int(end-c.base))]
	if err := c.reject(ctx, b, c.at.Offset+int64(at), raw, cause); err != nil {
		return true, err
	}
	c.at.Open = open
	c.skip(end, 1)
	return true, nil
}

// skip moves to the record at offset, which is n records further.
func (c *csvRecords) skip(offset int64, n int64) {
	c.at.Offset, c.at.Record = offset, c.at.Record+n
	if i := offset - c.base; i <= int64(c.hi) {
		c.lo = int(i)
		return
	}
	c.seek(offset)
}

func (c *csvRecords) seek(offset int64) { c.base, c.lo, c.hi = offset, 0, 0 }

// more reads on; false at the end of the file.
func (c *csvRecords) more(ctx context.Context) (bool, error) {
	size := len(c.in)
	switch {
	case c.hi-c.lo == size:
		size *= 2
		c.roomy = 0
	case c.oversized():
		// What a large record needed is kept for the next one, if that comes soon.
		if c.roomy++; c.roomy > 1 {
			size = blockBytes
		}
	default:
		c.roomy = 0
	}
	c.move(size)
	n, end, err := c.readAt(ctx, c.in[c.hi:], c.base+int64(c.hi))
	c.hi += n
	if c.eof = end; end && c.oversized() {
		c.move(blockBytes)
	}
	return n > 0, err
}

// oversized reports whether the buffer is much larger than what is in it, since a
// large record went through it.
func (c *csvRecords) oversized() bool { return len(c.in) > mostKept && c.hi-c.lo < blockBytes }

// move takes what is still to be read to the beginning of the buffer, of which size
// bytes are to be had.
func (c *csvRecords) move(size int) {
	to := c.in
	if size != len(c.in) {
		to, c.roomy = make([]byte, size), 0
	}
	c.base += int64(c.lo)
	c.lo, c.hi = 0, copy(to, c.in[c.lo:c.hi])
	c.in = to
}

// blocks implements filler.
func (c *csvRecords) blocks() blockDecoder {
	if c.scan == nil {
		return nil
	}
	quote, _ := c.cfg.quote()
	return &csvBlocks{scan: c.scan, quote: []byte{quote}, most: c.batch, maxRec: c.maxRec, warned: &c.warned, strict: c.cfg.OnMismatch == "fail"}
}

// csvBlocks decodes blocks of csv away from the reader.
type csvBlocks struct {
	scan   *csvjson.Scanner
	quote  []byte
	most   int
	maxRec int64
	warned *atomic.Bool // a mismatch was reported: further ones are taken as they are
	strict bool
}

func (*csvBlocks) inPlace() bool { return false }

// cut ends the block behind the last line end outside quotes, which is one with
// an even number of quotes before it.
func (d *csvBlocks) cut(block []byte) int {
	end := len(block)
	odd := bytes.Count(block, d.quote)&1 == 1
	for end > len(block)/2 {
		k := bytes.LastIndexByte(block[:end], '\n')
		if k < 0 {
			break
		}
		if bytes.Count(block[k:end], d.quote)&1 == 1 {
			odd = !odd
		}
		if !odd {
			return k + 1
		}
		end = k
	}
	return 0
}

func (d *csvBlocks) decode(b *message.Batch, block []byte, base int64) int {
	defer b.MarkFramed()
	at, largest, room := 0, 1<<10, min(cap(b.Arena), blockBytes)
	for at < len(block) && b.Len() < d.most && len(b.Arena)+largest <= room {
		before := len(b.Arena)
		out, res := d.scan.Next(b.Arena, block[at:], false)
		switch {
		case res.Status == csvjson.Blank:
			at += res.N
			continue
		case int64(res.N) > d.maxRec:
			return at
		case res.Status == csvjson.Record, res.Status == csvjson.Count && !d.strict && d.warned.Load():
		default:
			return at
		}
		b.Arena = out
		largest = max(largest, min(len(out)-before, blockBytes/4))
		at += res.N
		b.Add(before, len(out)-before-1, int64(b.Len()), base+int64(at))
	}
	return at
}
