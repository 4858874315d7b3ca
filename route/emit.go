package route

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mqbridge/mqb/jsontext"
)

// Normalized is the route's own YAML: variables replaced, aliases expanded, keys
// in the order of the documentation, no comments. DecodeRoute reads it back to
// an equal Spec. It holds secrets in the clear: it is for the coordinator.
func (s *Spec) Normalized() string { return s.emit(false) }

// Masked is Normalized for people: secrets, and passwords in URLs, are masked
// (invariant 11).
func (s *Spec) Masked() string { return s.emit(true) }

func (s *Spec) emit(mask bool) string {
	if s.source == nil {
		return ""
	}
	e := emitter{mask: mask}
	e.node(s.source, 0)
	return e.b.String()
}

type emitter struct {
	b    bytes.Buffer
	mask bool
}

// node writes n at the given depth; the line so far ends before the value.
func (e *emitter) node(n *node, depth int) {
	switch {
	case n.secret && e.mask && n.kind != nullNode:
		e.b.WriteString(" " + strconv.Quote(Mask) + "\n")
	case n.kind == mappingNode && len(n.entries) > 0:
		if depth > 0 {
			e.b.WriteByte('\n')
		}
		for _, x := range n.entries {
			e.indent(depth)
			e.b.WriteString(scalarText(x.key, true))
			e.b.WriteByte(':')
			e.node(x.value, depth+1)
		}
	case n.kind == sequenceNode && len(n.items) > 0:
		e.b.WriteByte('\n')
		for _, x := range n.items {
			e.indent(depth)
			e.b.WriteByte('-')
			e.node(x, depth+1)
		}
	case n.kind == mappingNode:
		e.b.WriteString(" {}\n")
	case n.kind == sequenceNode:
		e.b.WriteString(" []\n")
	case n.kind == nullNode:
		e.b.WriteString(" null\n")
	default:
		text := n.text
		if e.mask {
			text = MaskURL(text)
		}
		e.b.WriteString(" " + scalarText(text, n.quoted || text != n.text) + "\n")
	}
}

func (e *emitter) indent(depth int) {
	for range depth {
		e.b.WriteString("  ")
	}
}

// plainText is what YAML reads as a string without quotes, whatever parser it is.
var plainText = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

func scalarText(s string, isString bool) string {
	if !isString {
		return s
	}
	if plainText.MatchString(s) && !looksTyped(s) { // _2 and nan are numbers to some
		switch strings.ToLower(s) {
		case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		default:
			return s
		}
	}
	// A JSON string is a YAML string.
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// plain converts a node to what a field of type any holds: a number as int64 where it
// is one, else as json.Number, since a float would change its digits.
func (n *node) plain() any {
	switch n.kind {
	case mappingNode:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			m[e.key] = e.value.plain()
		}
		return m
	case sequenceNode:
		l := make([]any, len(n.items))
		for i, x := range n.items {
			l[i] = x.plain()
		}
		return l
	case nullNode:
		return nil
	}
	if !n.quoted {
		switch {
		case n.text == "true":
			return true
		case n.text == "false":
			return false
		}
		if number, ok := numberText(n.text); ok {
			if i, err := strconv.ParseInt(number, 10, 64); err == nil && number != "-0" {
				return i
			}
			return json.Number(number)
		}
	}
	n.quoted = true
	return n.text
}

// numberText is the JSON form of a scalar that is the same number to every reader of
// YAML: those of JSON, +5, .5, 5. and 0x1F.
func numberText(text string) (number string, ok bool) {
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		i, err := strconv.ParseUint(hex, 16, 64)
		return strconv.FormatUint(i, 10), err == nil
	}
	sign, digits := "", text
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		sign, digits = "-", rest
	} else if rest, ok := strings.CutPrefix(text, "+"); ok && !strings.HasPrefix(rest, "-") {
		digits = rest
	}
	if strings.HasPrefix(digits, ".") {
		digits = "0" + digits
	} else if i := strings.IndexByte(digits, '.'); i >= 0 && (i+1 == len(digits) || digits[i+1] == 'e' || digits[i+1] == 'E') {
		digits = digits[:i] + digits[i+1:]
	}
	number = sign + digits
	return number, jsontext.IsNumber([]byte(number))
}

// checkPlain refuses what is a number to some readers of YAML, which do not agree on
// its value, and a text to others: 0123, 1_000, 0o17, nan.
func (d *decoder) checkPlain(n *node, path string) {
	for _, e := range n.entries {
		d.checkPlain(e.value, join(path, e.key))
	}
	for i, x := range n.items {
		d.checkPlain(x, fmt.Sprintf("%s[%d]", path, i))
	}
	if n.kind == scalarNode && !n.quoted && !n.replaced && n.text != "true" && n.text != "false" && looksTyped(n.text) {
		if _, ok := numberText(n.text); ok {
			return
		}
		d.fail(n, path, fmt.Sprintf("%q is a number to some and a text to others", n.text), "put it in quotes, or write the number as JSON does")
	}
}

// sortEntries orders a mapping by rank, or by name if rank is nil.
func sortEntries(n *node, rank func(key string) int) {
	slices.SortStableFunc(n.entries, func(a, b entry) int {
		if rank == nil {
			return strings.Compare(a.key, b.key)
		}
		return rank(a.key) - rank(b.key)
	})
}
