package file

import (
	"bytes"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// mostPairs is how many metadata pairs unwrap keeps track of.
const mostPairs = 16

func (s span) of(line []byte) []byte { return line[s.from:s.to] }

// wrapping is what unwrap found out about a line.
type wrapping uint8

const (
	undecided wrapping = iota // addEnvelope has to look at it
	unwrapped                 // an envelope: its message was added
	bare                      // no envelope, maybe no JSON either
)

// unwrap is addEnvelope for the lines that programs write: envelopes with known
// keys, each once and spelt as they are, without arrays of bytes; and objects with
// other keys. It allocates nothing, and adds nothing but what it has unwrapped.
func unwrap(b *message.Batch, line []byte, ordinal, next int64, asJSON bool) wrapping {
	arena := len(b.Arena)
	w := unwrapper{line: line, asJSON: asJSON}
	if w.object(b) {
		b.Add(arena, len(b.Arena)-arena, ordinal, next)
		w.addMeta(b)
		return unwrapped
	}
	b.Arena = b.Arena[:arena]
	if w.bare {
		return bare
	}
	return undecided
}

type unwrapper struct {
	line    []byte
	asJSON  bool
	bare    bool // no envelope for sure
	array   bool // the payload is one
	i       int
	id      span
	payload bool
	meta    bool
	pairs   [mostPairs]struct{ key, value span }
	n       int
}

// object reads the envelope and appends its payload to the arena.
func (w *unwrapper) object(b *message.Batch) bool {
	if !w.open() {
		w.bare = true
		return false
	}
	for {
		key, ok := w.plain()
		if !ok || !w.take(':') {
			return false
		}
		w.i = jsontext.SkipSpace(w.line, w.i)
		if w.i == len(w.line) {
			return false
		}
		switch string(key.of(w.line)) {
		case "message_id":
			if w.id.to > 0 || !w.identity() {
				return false
			}
		case "payload":
			if w.payload || !w.value(b) {
				return false
			}
			w.payload = true
		case "payload_base64":
			if w.payload || !w.binary(b) {
				return false
			}
			w.payload = true
		case "metadata":
			if w.meta || !w.metadata() {
				return false
			}
			w.meta = true
		default:
			w.bare = !likeKnown(key.of(w.line))
			return false
		}
		if w.take(',') {
			continue
		}
		if !w.take('}') || !w.payload || w.id.to == 0 || w.array && w.marked() {
			return false
		}
		return jsontext.SkipSpace(w.line, w.i) == len(w.line)
	}
}

// take passes c, behind white space, if that is next.
func (w *unwrapper) take(c byte) bool {
	i := jsontext.SkipSpace(w.line, w.i)
	if i == len(w.line) || w.line[i] != c {
		return false
	}
	w.i = i + 1
	return true
}

func (w *unwrapper) open() bool { return w.take('{') }

// plain passes a string without escapes and returns what it holds.
func (w *unwrapper) plain() (s span, ok bool) {
	if !w.take('"') {
		return s, false
	}
	end, p := jsontext.SkipString(w.line, w.i-1)
	if p != jsontext.OK {
		return s, false
	}
	s = span{w.i, end - 1}
	w.i = end
	return s, bytes.IndexByte(s.of(w.line), '\\') < 0
}

func (w *unwrapper) identity() bool {
	if w.line[w.i] == '"' {
		var ok bool
		w.id, ok = w.plain()
		return ok
	}
	end, p := jsontext.Skip(w.line, w.i)
	w.id = span{w.i, end}
	w.i = end
	return p == jsontext.OK && jsontext.IsNumber(w.id.of(w.line))
}

func (w *unwrapper) value(b *message.Batch) bool {
	var p jsontext.Problem
	from := w.i
	switch c := w.line[from]; {
	case c == '"' && !w.asJSON:
		b.Arena, w.i, p = jsontext.AppendContent(b.Arena, w.line, from)
		return p == jsontext.OK
	case c == '[' && !w.asJSON:
		return false // may be bytes
	case c == '[':
		w.array = true
	}
	w.i, p = jsontext.Skip(w.line, from)
	b.Arena = append(b.Arena, w.line[from:w.i]...)
	return p == jsontext.OK
}

func (w *unwrapper) binary(b *message.Batch) bool {
	s, ok := w.plain()
	if !ok {
		return false
	}
	var err error
	b.Arena, err = base64.StdEncoding.AppendDecode(b.Arena, s.of(w.line))
	return err == nil
}

func (w *unwrapper) metadata() bool {
	if !w.open() {
		return false
	}
	if w.take('}') {
		return true
	}
	for {
		key, ok := w.plain()
		if !ok || w.n == mostPairs || !w.take(':') || !w.take('"') {
			return false
		}
		end, p := jsontext.SkipString(w.line, w.i-1)
		if p != jsontext.OK {
			return false
		}
		// In order and each once, as addEnvelope has them.
		at := w.n
		for ; at > 0; at-- {
			order := bytes.Compare(w.pairs[at-1].key.of(w.line), key.of(w.line))
			if order == 0 {
				return false
			}
			if order < 0 {
				break
			}
			w.pairs[at] = w.pairs[at-1]
		}
		w.pairs[at].key, w.pairs[at].value = key, span{w.i, end - 1}
		w.n++
		w.i = end
		if w.take(',') {
			continue
		}
		return w.take('}')
	}
}

// marked reports whether a payload that is an array is, or may be, one of bytes.
func (w *unwrapper) marked() bool {
	for _, p := range w.pairs[:w.n] {
		if string(p.key.of(w.line)) == metaBytes {
			return true
		}
	}
	return false
}

// likeKnown reports whether encoding/json may take key for one of an envelope.
func likeKnown(key []byte) bool {
	for _, c := range key {
		if c >= utf8.RuneSelf {
			return true // may be the same in another case
		}
	}
	for _, known := range []string{"message_id", "payload", "payload_base64", "metadata"} {
		if len(key) == len(known) && strings.EqualFold(string(key), known) {
			return true
		}
	}
	return false
}

// addMeta adds the metadata to the message that was added last.
func (w *unwrapper) addMeta(b *message.Batch) {
	own := false
	var room [256]byte
	for _, p := range w.pairs[:w.n] {
		key := p.key.of(w.line)
		if bytes.HasPrefix(key, []byte("mqb.src.")) {
			continue // where a message came from is for this hop's source to say
		}
		own = own || string(key) == metaID
		value := p.value.of(w.line)
		if bytes.IndexByte(value, '\\') >= 0 {
			value = jsontext.AppendUnescaped(room[:0], value)
		}
		b.AddMeta(string(key), value)
	}
	if !own {
		b.AddMeta(metaID, w.id.of(w.line))
	}
}
