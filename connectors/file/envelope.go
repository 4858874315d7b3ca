package file

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// envelope is a message with its metadata as one JSON object a line: formats normal
// and json. To normal a payload that is a string is text, and an array of bytes is
// those bytes; to json any payload is the JSON value that it is, but for bytes that
// are marked as such. Bytes may also be in PayloadBase64, to both.
type envelope struct {
	MessageID     json.RawMessage   `json:"message_id"` // a string, or a number of 128 bits
	Payload       json.RawMessage   `json:"payload"`
	PayloadBase64 *string           `json:"payload_base64"`
	Metadata      map[string]string `json:"metadata"`
}

// metaID is the metadata key of a message's business id.
const metaID = "mqb.id"

// addEnvelope appends the message in line. A line that is no envelope is the
// payload of a message, as it stands; so is one that is not UTF-8, of which decoding
// would lose bytes.
func addEnvelope(b *message.Batch, line []byte, ordinal, next int64, asJSON bool) {
	var e envelope
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err == nil && utf8.Valid(line) && d.InputOffset() == int64(len(bytes.TrimRight(line, " \t\r"))) {
		payload, ok := []byte(nil), false
		switch {
		case e.Payload != nil && e.PayloadBase64 == nil:
			payload, ok = e.payload(asJSON)
		case e.Payload == nil && e.PayloadBase64 != nil:
			payload, err = base64.StdEncoding.DecodeString(*e.PayloadBase64)
			ok = err == nil
		}
		if id, known := e.id(); ok && known {
			b.Append(payload, ordinal, next)
			// In order, so that reading the line again gives the same message.
			for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
				// Where a message came from is for this hop's source to say.
				if !strings.HasPrefix(k, "mqb.src.") {
					b.AddMeta(k, []byte(e.Metadata[k]))
				}
			}
			if _, set := e.Metadata[metaID]; !set {
				b.AddMeta(metaID, id)
			}
			return
		}
	}
	b.Append(line, ordinal, next)
}

// id is the message's id; ok is false where there is none, so that it is no envelope.
func (e *envelope) id() (id []byte, ok bool) {
	if len(e.MessageID) == 0 || e.MessageID[0] != '"' {
		return e.MessageID, jsontext.IsNumber(e.MessageID)
	}
	var text string
	err := json.Unmarshal(e.MessageID, &text)
	return []byte(text), err == nil
}

// metaBytes marks a payload that is an array of bytes. The dialect writes such
// payloads; this package writes base64, which is a third as long and read by both.
const metaBytes = "mq_bridge.payload_bytes"

func (e *envelope) payload(asJSON bool) ([]byte, bool) {
	p := e.Payload
	switch {
	case p[0] == '"' && !asJSON:
		var text string
		err := json.Unmarshal(p, &text)
		return []byte(text), err == nil
	case p[0] != '[':
		return p, true
	}
	marked := e.Metadata[metaBytes] == "1"
	if marked {
		delete(e.Metadata, metaBytes)
	} else if asJSON {
		return p, true
	}
	var numbers []uint16
	if err := json.Unmarshal(p, &numbers); err != nil {
		return p, true
	}
	out := make([]byte, len(numbers))
	for i, n := range numbers {
		if n > 0xff {
			return p, true
		}
		out[i] = byte(n)
	}
	return out, true
}

// appendEnvelope writes message i of b as an envelope. id is used when the message
// has no id of its own. asJSON: a payload that is JSON stands in it as that value,
// and any other as base64; without it the payload is text where it can be.
func appendEnvelope(dst []byte, b *message.Batch, i int, id []byte, asJSON bool) []byte {
	dst = append(dst, `{"message_id":`...)
	if own, ok := b.Meta(i, metaID); ok {
		dst = jsontext.AppendString(dst, own)
	} else {
		dst = jsontext.AppendString(dst, id)
	}
	if p := b.Payload(i); asJSON && jsontext.Valid(p) {
		dst = append(dst, `,"payload":`...)
		dst = appendOneLine(dst, p)
	} else if !asJSON && utf8.Valid(p) {
		dst = append(dst, `,"payload":`...)
		dst = jsontext.AppendString(dst, p)
	} else {
		dst = append(dst, `,"payload_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, p)
		dst = append(dst, '"')
	}
	first := true
	for j := range b.MetaLen(i) {
		k, v := b.MetaAt(i, j)
		if string(k) == metaID || string(k) == metaBytes || bytes.HasPrefix(k, []byte("mqb.src.")) {
			continue
		}
		if first {
			dst = append(dst, `,"metadata":{`...)
		} else {
			dst = append(dst, ',')
		}
		first = false
		dst = jsontext.AppendString(dst, k)
		dst = append(dst, ':')
		dst = jsontext.AppendString(dst, v)
	}
	if !first {
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
