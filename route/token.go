package route

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
	"github.com/zeebo/xxh3"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// IDKey is the metadata key of a message's business id.
const IDKey = "mqb.id"

// Token is one compiled ${namespace:selector}.
type Token struct {
	Namespace string // payload, metadata, message or env
	Selector  string
	// Raw: "| raw" was given, so a JSON body gets the value without escapes.
	Raw bool

	path     string // gjson's form of a payload selector
	constant string // what an env token was resolved to
}

// errNotToken: a namespace that is not ours; templates leave such text alone.
var errNotToken = errors.New("not a token")

// compileToken compiles what stands between "${" and "}".
func compileToken(s string, env LookupEnv) (Token, error) {
	ns, selector, ok := strings.Cut(s, ":")
	if !ok || !isNamespace(ns) {
		return Token{}, errNotToken
	}
	t := Token{Namespace: ns, Selector: strings.TrimSpace(selector)}
	if name, filter, piped := strings.Cut(selector, "|"); piped {
		if strings.TrimSpace(filter) != "raw" {
			return Token{}, fmt.Errorf("${%s}: the only thing behind a | is raw", s)
		}
		t.Selector, t.Raw = strings.TrimSpace(name), true
	}
	if t.Selector == "" {
		return Token{}, fmt.Errorf("${%s}: names nothing", s)
	}
	switch ns {
	case "payload":
		path, err := payloadPath(t.Selector)
		if err != nil {
			return Token{}, fmt.Errorf("${%s}: %w", s, err)
		}
		t.path = path
	case "message":
		if t.Selector != "id" {
			return Token{}, fmt.Errorf("${%s}: a message has only an id", s)
		}
	case "env":
		value, ok := env(t.Selector)
		if !ok {
			return Token{}, fmt.Errorf("${%s}: the variable is not set", s)
		}
		t.constant = value
	case "gen":
		return Token{}, fmt.Errorf("${%s}: generated values are not supported yet", s)
	}
	return t, nil
}

// payloadPath turns a.b.0 into a path of gjson that means exactly these keys. A
// backslash takes the meaning from the character behind it: a\.b is one key.
func payloadPath(selector string) (string, error) {
	var parts []string
	var part strings.Builder
	end := func() error {
		if part.Len() == 0 {
			return errors.New("a part of the path is empty")
		}
		parts = append(parts, gjson.Escape(part.String()))
		part.Reset()
		return nil
	}
	for i := 0; i < len(selector); i++ {
		switch c := selector[i]; {
		case c == '.':
			if err := end(); err != nil {
				return "", err
			}
		case c == '\\':
			if i++; i == len(selector) {
				return "", errors.New("the path ends in a backslash")
			}
			part.WriteByte(selector[i])
		default:
			part.WriteByte(c)
		}
	}
	if err := end(); err != nil {
		return "", err
	}
	return strings.Join(parts, "."), nil
}

// Value looks the token up in message i of b. ok is false where nothing is
// there: no such field, no such metadata, no JSON, or a JSON null. The result is
// typed as the JSON is; metadata and ids are strings. It shares the batch's
// memory and is valid as long as the batch is.
//
// identity goes into ids that are made here: what is the same whenever this
// record is read again and different for every other partition of every other
// source (Kafka: cluster, topic and partition).
func (t *Token) Value(b *message.Batch, i int, identity string) (v gjson.Result, ok bool) {
	switch t.Namespace {
	case "payload":
		v = gjson.Get(view(b.Payload(i)), t.path)
		return v, v.Type != gjson.Null
	case "metadata":
		m, ok := b.Meta(i, t.Selector)
		return gjson.Result{Type: gjson.String, Str: view(m)}, ok
	case "message":
		if m, ok := b.Meta(i, IDKey); ok {
			return gjson.Result{Type: gjson.String, Str: view(m)}, true
		}
		id := MessageID(identity, b.Msg(i).Ordinal)
		return gjson.Result{Type: gjson.String, Str: string(id[:])}, true
	}
	return gjson.Result{Type: gjson.String, Str: t.constant}, true
}

// appendText appends the value as text; ok as in Value. It does not allocate,
// save for JSON strings that hold escapes.
func (t *Token) appendText(dst []byte, b *message.Batch, i int, o RenderOptions) ([]byte, bool) {
	if t.Namespace == "message" {
		if _, own := b.Meta(i, IDKey); !own {
			id := MessageID(o.Identity, b.Msg(i).Ordinal)
			return append(dst, id[:]...), true
		}
	}
	v, ok := t.Value(b, i, o.Identity)
	if !ok {
		return dst, false
	}
	s := v.Raw
	if v.Type == gjson.String {
		s = v.Str
	}
	if o.JSON && !t.Raw {
		return appendEscaped(dst, s), true
	}
	return append(dst, s...), true
}

// MessageID is the id of a message that has no business id: 128 bits over
// identity and ordinal as 32 hex digits, the same whenever the record is read.
func MessageID(identity string, ordinal int64) (id [32]byte) {
	var buf [256]byte
	b := append(buf[:0], identity...)
	b = binary.BigEndian.AppendUint64(b, uint64(ordinal))
	sum := xxh3.Hash128(b).Bytes()
	hex.Encode(id[:], sum[:])
	return id
}

// view is b as a string without a copy: it changes when b does.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf is s as bytes without a copy, to be read only.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// appendEscaped appends s as the inside of a JSON string; bytes that are no UTF-8,
// which metadata may hold, become U+FFFD.
func appendEscaped(dst []byte, s string) []byte {
	return jsontext.AppendEscaped(dst, bytesOf(s))
}

func osEnv(name string) (string, bool) { return os.LookupEnv(name) }
