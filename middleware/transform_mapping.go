package middleware

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// mapping makes a new payload of templates and constants. Immutable; its
// mappingState is not.
type mapping struct {
	root mapNode
	// payload: some template looks into the payload, which must then be JSON.
	payload bool
	// fields numbers the members of the payload that are copied as they stand.
	fields map[string]int
}

// mappingState is what one worker needs to apply a mapping. Not safe for
// concurrent use.
type mappingState struct {
	*mapping
	names   names
	found   []span
	scratch []byte // text that is yet to be quoted

	// The message at hand.
	b   *message.Batch
	i   int
	src []byte
}

func newMappingState(m *mapping) *mappingState {
	return &mappingState{mapping: m, names: names{byName: m.fields}, found: make([]span, len(m.fields))}
}

// mapNode is one value of a mapping; exactly one of its forms is set.
type mapNode struct {
	constant []byte // JSON
	template *route.Template
	bare     bool        // the template is one field of the payload, which keeps its type
	field    int         // if bare: its number if it is a member of the payload itself, else -1
	members  []mapMember // an object, if object
	object   bool
	items    []mapNode // a list, if list
	list     bool
}

type mapMember struct {
	key   []byte // `"name":`
	value mapNode
}

// compileMapping compiles what the configuration says; path names the place of an
// error in it.
func compileMapping(fields route.Ordered) (*mapping, error) {
	m := &mapping{fields: map[string]int{}}
	root, err := m.compile(fields, "mapping")
	if err != nil {
		return nil, err
	}
	m.root = root
	return m, nil
}

func (m *mapping) compile(v any, path string) (n mapNode, err error) {
	switch v := v.(type) {
	case route.Ordered:
		n.object = true
		for _, e := range v {
			value, err := m.compile(e.Value, path+"."+e.Key)
			if err != nil {
				return n, err
			}
			key := append(jsontext.AppendString(nil, []byte(e.Key)), ':')
			n.members = append(n.members, mapMember{key, value})
		}
		return n, nil
	case []any:
		n.list = true
		for i, x := range v {
			item, err := m.compile(x, fmt.Sprintf("%s.%d", path, i))
			if err != nil {
				return n, err
			}
			n.items = append(n.items, item)
		}
		return n, nil
	case string:
		if selector, ok := strings.CutPrefix(v, "$."); ok {
			v = "${payload:" + selector + "}" // the dialect's other way to say it
		}
		t, err := route.CompileTemplate(v)
		if err != nil {
			return n, &route.ConfigError{Field: path, Msg: err.Error()}
		}
		for _, token := range t.Tokens() {
			switch token.Namespace {
			case "payload":
				m.payload = true
			case "message":
				return n, &route.ConfigError{Field: path, Msg: "${message:id} is not known to a middleware", Hint: "${metadata:mqb.id} is the id that the middleware id sets"}
			}
		}
		if len(t.Tokens()) > 0 {
			namespace, selector, single := t.Single()
			n.template, n.bare, n.field = t, single && namespace == "payload", -1
			if n.bare && !strings.ContainsAny(selector, `.\`) {
				at, known := m.fields[selector]
				if !known {
					at = len(m.fields)
					m.fields[selector] = at
				}
				n.field = at
			}
			return n, nil
		}
		text, _ := t.Append(nil, nil, 0, route.RenderOptions{})
		n.constant = jsontext.AppendString(nil, text)
		return n, nil
	}
	if n.constant, err = json.Marshal(v); err != nil {
		return n, &route.ConfigError{Field: path, Msg: "cannot be written as JSON"}
	}
	return n, nil
}

// append appends the new payload of message i of b to dst.
func (m *mappingState) append(dst []byte, b *message.Batch, i int) ([]byte, error) {
	m.b, m.i, m.src = b, i, b.Payload(i)
	if m.payload {
		if err := m.names.members(m.src, m.found); err != nil {
			return dst, err
		}
	}
	dst, _ = m.node(dst, &m.root)
	return dst, nil
}

// node appends one value; ok is false where nothing is there, and nothing is then
// appended: a field that is absent stays absent, and a text is never half filled
// in. A field that is null stays null.
func (m *mappingState) node(dst []byte, n *mapNode) (_ []byte, ok bool) {
	switch {
	case n.object:
		dst = append(dst, '{')
		first := true
		for at := range n.members {
			x := &n.members[at]
			mark := len(dst)
			if !first {
				dst = append(dst, ',')
			}
			dst = append(dst, x.key...)
			if dst, ok = m.node(dst, &x.value); !ok {
				dst = dst[:mark]
				continue
			}
			first = false
		}
		return append(dst, '}'), true
	case n.list:
		dst = append(dst, '[')
		for at := range n.items {
			if at > 0 {
				dst = append(dst, ',')
			}
			if dst, ok = m.node(dst, &n.items[at]); !ok {
				dst = append(dst, "null"...) // the others keep their places
			}
		}
		return append(dst, ']'), true
	case n.template == nil:
		return append(dst, n.constant...), true
	case n.bare:
		if n.field >= 0 {
			at := m.found[n.field]
			return append(dst, m.src[at.start:at.end]...), at.end > 0
		}
		v, _ := n.template.Value(m.b, m.i, "")
		return append(dst, v.Raw...), v.Exists() // as it stands there
	}
	text, ok := n.template.Append(m.scratch[:0], m.b, m.i, route.RenderOptions{})
	m.scratch = text
	if !ok {
		return dst, false
	}
	return jsontext.AppendString(dst, text), true
}
