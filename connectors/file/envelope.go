package file

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mqbridge/mqb/connectors/file/jsontext"
	"github.com/mqbridge/mqb/message"
)

// envelope is a message with its metadata as one JSON object a line: formats normal
// and envelope_json. Payload is a string, which is text, or any other JSON value,
// which is that value; bytes that are no text are in PayloadBase64.
type envelope struct {
	MessageID     json.RawMessage   `json:"message_id"` // a string, or a number of 128 bits
	Payload       json.RawMessage   `json:"payload"`
	PayloadBase64 *string           `json:"payload_base64"`
	Metadata      map[string]string `json:"metadata"`
}

// metaID is the metadata key of a message's business id.
const metaID = "mqb.id"

// addEnvelope appends the message in line. A line that is no envelope is the
// payload of a message, as it stands.
func addEnvelope(b *message.Batch, line []byte, ordinal, next int64) {
	var e envelope
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err == nil && d.InputOffset() == int64(len(bytes.TrimRight(line, " \t\r"))) {
		payload, ok := []byte(nil), false
		switch {
		case e.Payload != nil && e.PayloadBase64 == nil:
			payload, ok = e.payload()
		case e.Payload == nil && e.PayloadBase64 != nil:
			payload, err = base64.StdEncoding.DecodeString(*e.PayloadBase64)
			ok = err == nil
		}
		if ok && len(e.MessageID) > 0 {
			b.Append(payload, ordinal, next)
			// In order, so that reading the line again gives the same message.
			for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
				// Where a message came from is for this hop's source to say.
				if !strings.HasPrefix(k, "mqb.src.") {
					b.AddMeta(k, []byte(e.Metadata[k]))
				}
			}
			if _, set := e.Metadata[metaID]; !set {
				b.AddMeta(metaID, bytes.Trim(e.MessageID, `"`))
			}
			return
		}
	}
	b.Append(line, ordinal, next)
}

// metaBytes marks, in the dialect, a payload that is an array of bytes.
const metaBytes = "mq_bridge.payload_bytes"

func (e *envelope) payload() ([]byte, bool) {
	switch p := e.Payload; {
	case p[0] == '"':
		var text string
		err := json.Unmarshal(p, &text)
		return []byte(text), err == nil
	case p[0] == '[' && e.Metadata[metaBytes] == "1":
		var numbers []uint16
		if err := json.Unmarshal(p, &numbers); err != nil {
			return nil, false
		}
		out := make([]byte, len(numbers))
		for i, n := range numbers {
			if n > 0xff {
				return nil, false
			}
			out[i] = byte(n)
		}
		delete(e.Metadata, metaBytes)
		return out, true
	default:
		return p, true
	}
}

// appendEnvelope writes message i of b as an envelope. id is used when the message
// has no id of its own. asJSON: a payload that is a JSON value other than a string
// stands in it as that value; a string is always text.
func appendEnvelope(dst []byte, b *message.Batch, i int, id []byte, asJSON bool) []byte {
	dst = append(dst, `{"message_id":`...)
	if own, ok := b.Meta(i, metaID); ok {
		dst = jsontext.AppendString(dst, own)
	} else {
		dst = jsontext.AppendString(dst, id)
	}
	if p := b.Payload(i); asJSON && isValue(p) {
		dst = append(dst, `,"payload":`...)
		dst = appendOneLine(dst, p)
	} else if utf8.Valid(p) {
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
		if string(k) == metaID || bytes.HasPrefix(k, []byte("mqb.src.")) {
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

// isValue reports whether p is a JSON value other than a string.
func isValue(p []byte) bool {
	at := jsontext.SkipSpace(p, 0)
	return at < len(p) && p[at] != '"' && jsontext.Valid(p)
}
