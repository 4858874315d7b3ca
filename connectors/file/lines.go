package file

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// lineFormat is how the formats in which a record is a line are read.
//
// normal and json are envelopes. They drop a carriage return before the line feed,
// and a line without anything in it is nothing to them; to raw, whose lines may be
// binary, both are data. A json line that is not one valid value is a bad record.
type lineFormat struct {
	delimiter byte
	trimCR    bool
	skipBlank bool
	asJSON    bool  // json
	envelope  bool  // normal, json
	most      int   // messages in a batch
	largest   int64 // bytes in a record
}

// lineBlock is how far a block of lines was taken apart.
type lineBlock struct {
	bytes   []byte
	i       int   // next byte to look at
	w       int   // where the next payload goes, at or before i; not with envelopes
	base    int64 // offset of the block in the content
	ordinal int64 // of the next record
}

// stop says why scan ended.
type stop uint8

const (
	stopEnd   stop = iota // no line end in what is left
	stopFull              // the batch is full
	stopLarge             // the record at i is too large
	stopBad               // the record at i is no valid value
)

// scan appends the whole lines of p to b. With stopBad it says where and why.
func (f *lineFormat) scan(b *message.Batch, p *lineBlock) (why stop, at int, problem jsontext.Problem) {
	for b.Read < f.most { // bad records count, see csvRecords.fill
		k := bytes.IndexByte(p.bytes[p.i:], f.delimiter)
		if k < 0 {
			return stopEnd, 0, jsontext.OK
		}
		if int64(k) > f.largest {
			return stopLarge, 0, jsontext.OK
		}
		if at, problem := f.take(b, p, p.i+k, p.i+k+1); problem != jsontext.OK {
			return stopBad, at, problem
		}
	}
	return stopFull, 0, jsontext.OK
}

// trim is the line at i that ends before end.
func (f *lineFormat) trim(p *lineBlock, end int) []byte {
	line := p.bytes[p.i:end]
	if k := len(line); f.trimCR && k > 0 && line[k-1] == '\r' {
		line = line[:k-1]
	}
	return line
}

// take appends the line at p.i, which ends before end and is followed by what is
// at next.
func (f *lineFormat) take(b *message.Batch, p *lineBlock, end, next int) (at int, problem jsontext.Problem) {
	line := f.trim(p, end)
	if f.skipBlank && blank(line) {
		p.i = next
		return 0, jsontext.OK
	}
	if f.envelope {
		// What unwrap takes apart it has checked.
		was := unwrap(b, line, p.ordinal, p.base+int64(next), f.asJSON)
		if was != unwrapped && f.asJSON {
			if at, problem := jsontext.Check(line); problem != jsontext.OK {
				return at, problem
			}
		}
		switch was {
		case bare:
			b.Append(line, p.ordinal, p.base+int64(next))
		case undecided:
			addEnvelope(b, line, p.ordinal, p.base+int64(next), f.asJSON)
		}
	} else {
		if p.w != p.i {
			copy(p.bytes[p.w:], line)
		}
		off := p.w
		p.w += len(line)
		if p.w == len(p.bytes) {
			p.bytes = append(p.bytes, '\n')
			b.Arena = p.bytes
		}
		p.bytes[p.w] = '\n'
		p.w++
		b.Add(off, len(line), p.ordinal, p.base+int64(next))
	}
	b.Read++
	p.i = next
	p.ordinal++
	return 0, jsontext.OK
}

// lines reads them. Blocks are read straight into the batch's arena and the
// payloads stay where they are; envelopes are taken apart, from a block of the
// reader.
type lines struct {
	*reader
	lineFormat
	scratch []byte // envelopes only
}

func newLines(r *reader) *lines {
	f := r.src.cfg.format()
	enveloped := f != formatRaw
	d := r.src.cfg.delimiter()
	return &lines{reader: r, lineFormat: lineFormat{
		delimiter: d, trimCR: enveloped && d == '\n', skipBlank: enveloped,
		asJSON: f == formatJSON, envelope: enveloped, most: r.batch, largest: r.maxRec,
	}}
}

func (*lines) prepare(context.Context, bool) (bool, error) { return true, nil }

func (l *lines) fill(ctx context.Context, b *message.Batch, final bool) error {
	want := min(cap(b.Arena), blockBytes) // the room that was taken: a middleware may have left a larger arena
	if l.perRecord > 0 {
		want = min(want, int(l.perRecord*float64(l.batch))*9/8+4<<10)
	}
	if l.until > 0 {
		want = min(want, int(l.until-l.at.Offset))
	}
	p := lineBlock{base: l.at.Offset, ordinal: l.at.Record}
	if l.envelope {
		if l.scratch == nil {
			l.scratch = make([]byte, blockBytes)
		}
		// The arena may have grown with a large record; the block has not.
		p.bytes = l.scratch[:want]
	} else {
		p.bytes = b.Arena[:want]
		b.Arena = p.bytes
	}
	block := p.bytes
	n, eof, err := l.readAt(ctx, block, p.base)
	if err != nil {
		return err
	}
	p.bytes = block[:n]
	defer func() {
		if !l.envelope {
			b.Arena = b.Arena[:p.w]
			b.MarkFramed()
		}
	}()
	for {
		why, at, problem := l.scan(b, &p)
		l.at.Offset, l.at.Record = p.base+int64(p.i), p.ordinal
		if p.i > 0 {
			l.at.Open = false
		}
		end, next := n, n // of the record at i
		switch {
		case why == stopFull:
			return nil
		case why == stopLarge, why == stopEnd && int64(n-p.i) > l.maxRec:
			seen := p.bytes[p.i:]
			if why == stopLarge {
				seen = seen[:bytes.IndexByte(seen, l.delimiter)]
			}
			return l.skipTooLarge(ctx, b, seen, final)
		case why == stopBad:
			end = p.i + bytes.IndexByte(p.bytes[p.i:], l.delimiter)
			next = end + 1
		case eof && final && p.i < n:
			if at, problem = l.take(b, &p, n, n); problem == jsontext.OK {
				l.at = place{Offset: p.base + int64(n), Record: p.ordinal, Open: p.ordinal > l.at.Record}
				return nil
			}
		case eof, b.Read > 0:
			return nil // what is left is read again with the next batch
		default:
			// A record larger than the block: more of it.
			if n == len(block) {
				block = append(make([]byte, 0, min(2*len(block), p.i+int(l.maxRec)+2)), block...)
				block = block[:cap(block)]
				if !l.envelope {
					b.Arena = block
				}
			}
			var more int
			if more, eof, err = l.readAt(ctx, block[n:], p.base+int64(n)); err != nil {
				return err
			}
			n += more
			p.bytes = block[:n]
			continue
		}
		// A bad record.
		if err := l.reject(ctx, b, l.at.Offset+int64(at), l.trim(&p, end), fmt.Errorf("not a JSON value: %v", problem)); err != nil {
			return err
		}
		p.i = next
		p.ordinal++
		l.at = place{Offset: p.base + int64(next), Record: p.ordinal, Open: end == next}
	}
}

// skipTooLarge rejects the record at l.at, which has more than max_record_bytes,
// and goes on behind its line end.
func (l *lines) skipTooLarge(ctx context.Context, b *message.Batch, seen []byte, final bool) error {
	end, found, err := l.lineEnd(ctx, l.at.Offset, l.delimiter)
	if err != nil || !found && !final {
		return err // unfinished: it is judged when it is whole
	}
	if err := l.reject(ctx, b, l.at.Offset, seen, l.tooLarge()); err != nil {
		return err
	}
	l.at = place{Offset: end, Record: l.at.Record + 1, Open: !found}
	return nil
}

func blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}

// blocks implements filler.
func (l *lines) blocks() blockDecoder { return &lineBlocks{l.lineFormat} }

// lineBlocks decodes blocks of lines away from the reader.
type lineBlocks struct{ lineFormat }

func (d *lineBlocks) inPlace() bool { return !d.envelope }

func (d *lineBlocks) cut(block []byte) int { return bytes.LastIndexByte(block, d.delimiter) + 1 }

func (d *lineBlocks) decode(b *message.Batch, block []byte, base int64) int {
	p := lineBlock{bytes: block, base: base}
	d.scan(b, &p)
	if !d.envelope {
		b.Arena = b.Arena[:p.w]
		b.MarkFramed()
	}
	return p.i
}
