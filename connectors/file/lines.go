package file

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mqbridge/mqb/connectors/file/jsontext"
	"github.com/mqbridge/mqb/message"
)

// lines reads the formats in which a record is a line. Blocks are read straight
// into the batch's arena and the payloads stay where they are.
//
// text, json and normal drop a carriage return before the line feed, raw keeps
// it, since its lines may be binary. A line without anything in it is a record
// to raw and text, and nothing to json and normal. A json line that is not one
// valid value is a bad record.
type lines struct {
	*reader
	delimiter byte
	trimCR    bool
	skipBlank bool
	check     bool // json
	envelope  bool // normal
	// average is the size of a record so far, to read as much as a batch takes.
	average int
	scratch []byte // normal only
}

func newLines(r *reader) *lines {
	l := &lines{reader: r, delimiter: r.src.cfg.delimiter()}
	f := r.src.cfg.format()
	l.trimCR = f != formatRaw && l.delimiter == '\n'
	l.skipBlank = f == formatJSON || f == formatNormal
	l.check = f == formatJSON
	l.envelope = f == formatNormal
	return l
}

func (l *lines) fill(ctx context.Context, b *message.Batch, final bool) error {
	want := cap(b.Arena)
	if l.average > 0 {
		want = min(want, l.average*l.batch*9/8+4<<10)
	}
	block := b.Arena[:want]
	if l.envelope {
		// Envelopes are taken apart, so that the payloads cannot stay in place.
		if l.scratch == nil {
			l.scratch = make([]byte, blockBytes)
		}
		block = l.scratch[:want]
	} else {
		b.Arena = block
	}
	base := l.at.Offset
	n, err := l.readAt(block, base)
	if err != nil {
		return err
	}
	i, w := 0, 0 // next byte to look at; where the next payload goes, at or before i
	eof := n < len(block)
	defer func() {
		if !l.envelope {
			b.Arena = b.Arena[:w]
			b.MarkFramed()
		}
		if b.Read > 0 {
			l.average = int(l.at.Offset-base) / b.Read
		}
	}()
	for b.Len() < l.batch {
		k := bytes.IndexByte(block[i:n], l.delimiter)
		switch {
		case k >= 0 && int64(k) <= l.maxRec:
		case int64(n-i) > l.maxRec:
			if k < 0 {
				k = n - i
			}
			return l.skipTooLarge(ctx, b, block[i:i+k], final)
		case eof && final && i < n:
			k = n - i
		case eof, b.Read > 0:
			return nil // what is left is read again with the next batch
		default:
			// A record larger than the block: more of it.
			block = append(make([]byte, 0, min(2*len(block), i+int(l.maxRec)+2)), block[:n]...)
			block = block[:cap(block)]
			if !l.envelope {
				b.Arena = block
			}
			more, err := l.readAt(block[n:], base+int64(n))
			if err != nil {
				return err
			}
			n += more
			eof = n < len(block)
			continue
		}
		next := min(i+k+1, n)
		open := i+k == n
		line := block[i : i+k]
		if l.trimCR && k > 0 && line[k-1] == '\r' {
			line = line[:k-1]
		}
		end := base + int64(next)
		if l.skipBlank && blank(line) {
			i, l.at.Offset = next, end
			continue
		}
		if l.check {
			if at, p := jsontext.Check(line); p != jsontext.OK {
				if err := l.reject(ctx, b, l.at.Offset+int64(at), line, fmt.Errorf("not a JSON value: %v", p)); err != nil {
					return err
				}
				i, l.at = next, place{Offset: end, Record: l.at.Record + 1, Open: open}
				continue
			}
		}
		if l.envelope {
			addEnvelope(b, line, l.at.Record, end)
		} else {
			off := w
			if w != i {
				copy(block[w:], line)
			}
			w += len(line)
			if w == len(block) {
				block = append(block, '\n')
				b.Arena = block
			}
			block[w] = '\n'
			w++
			b.Add(off, len(line), l.at.Record, end)
		}
		b.Read++
		i, l.at = next, place{Offset: end, Record: l.at.Record + 1, Open: open}
	}
	return nil
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
