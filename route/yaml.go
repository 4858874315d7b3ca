package route

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a configuration file. Nobody writes such a file by hand; they keep
// one that was written against us from taking the process down.
const (
	// MaxFileBytes bounds the text of a file.
	MaxFileBytes = 4 << 20
	// maxTokens bounds what the text is cut into, each taking the parser about a
	// KiB: a thousand routes have about three quarters as many.
	maxTokens = 100_000
	// maxKeys bounds the keys of one mapping: the parser's time grows with their square.
	maxKeys = 5_000
	// maxNodes bounds what aliases expand to: ten lines of nested aliases make
	// billions.
	maxNodes = 200_000
	// maxDepth bounds nesting, because the parser below us recurses.
	maxDepth = 64
)

type nodeKind int

const (
	nullNode nodeKind = iota
	scalarNode
	mappingNode
	sequenceNode
)

func (k nodeKind) String() string {
	return [...]string{"nothing", "a single value", "a mapping", "a list"}[k]
}

// node is one value of a document, with aliases resolved, variables replaced
// and its place kept.
type node struct {
	kind      nodeKind
	line, col int

	text   string
	quoted bool // written in quotes or as a block: certainly a string
	// replaced: the text came from a variable, at least in part, so its type is
	// whatever the field wants, and its value is not repeated in errors.
	replaced bool
	// secret is set by the field it was decoded into; Masked hides it.
	secret bool

	entries []entry
	items   []*node
}

type entry struct {
	key       string
	line, col int
	value     *node
}

func (n *node) find(key string) *entry {
	for i := range n.entries {
		if n.entries[i].key == key {
			return &n.entries[i]
		}
	}
	return nil
}

// take removes an entry and returns it, nil if there is none.
func (n *node) take(key string) *entry {
	for i := range n.entries {
		if n.entries[i].key == key {
			e := n.entries[i]
			n.entries = append(n.entries[:i], n.entries[i+1:]...)
			return &e
		}
	}
	return nil
}

// parseYAML makes the tree of a file. Syntax errors end it at the first one;
// duplicate keys and unset variables are reported to d and go on.
func (d *decoder) parseYAML(data []byte) (root *node) {
	if len(data) > MaxFileBytes {
		d.errs = append(d.errs, &ConfigError{File: d.file, Msg: fmt.Sprintf("the file has %d bytes, more than %d", len(data), MaxFileBytes)})
		return nil
	}
	// The parser is young and this is outside input: its panic is a bad file,
	// not the end of a node that runs other routes (invariant 12).
	defer func() {
		if p := recover(); p != nil {
			d.errs = append(d.errs, &ConfigError{File: d.file, Msg: "the file cannot be parsed as YAML"})
			root = nil
		}
	}()
	if !utf8.Valid(data) {
		// It would come out as another text on its way to the nodes.
		e := &ConfigError{File: d.file, Msg: "the file is not UTF-8"}
		for at := data; len(at) > 0; {
			r, n := utf8.DecodeRune(at)
			if r == utf8.RuneError && n == 1 {
				before := data[:len(data)-len(at)]
				e.Line, e.Col = bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])+1
				break
			}
			at = at[n:]
		}
		d.errs = append(d.errs, e)
		return nil
	}
	// YAML reads CRLF as one line end; the lexer counts two behind a comment.
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	if tooBusy(data) {
		d.errs = append(d.errs, &ConfigError{File: d.file, Msg: fmt.Sprintf("more than %d lines and signs", 2*maxTokens)})
		return nil
	}
	tokens, tooMuch := tokenize(string(data))
	if tooMuch != nil {
		tooMuch.File = d.file
		d.errs = append(d.errs, tooMuch)
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		e := &ConfigError{File: d.file, Msg: "the file cannot be parsed as YAML"}
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			// Only the message: the parser's own text quotes the lines around.
			e.Msg = syntax.Message
			if syntax.Token != nil && syntax.Token.Position != nil {
				e.Line, e.Col = syntax.Token.Position.Line, syntax.Token.Position.Column
			}
		}
		d.errs = append(d.errs, e)
		return nil
	}
	c := converter{d: d, anchors: map[string]ast.Node{}}
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment {
			continue
		}
		n := c.convert(doc.Body, 0)
		if root != nil {
			d.fail(n, "", "a second document in one file", "put all routes under one routes: map")
			return nil
		}
		root = n
	}
	if c.stopped {
		return nil
	}
	if root == nil {
		root = &node{line: 1, col: 1}
	}
	return root
}

// tokenize cuts a text into tokens. It ends with an error where there are too
// many of them, or where they nest too deep to be parsed by recursion: brackets,
// and markers that open a level each on one line.
func tokenize(text string) (token.Tokens, *ConfigError) {
	var s scanner.Scanner
	s.Init(text)
	var tokens token.Tokens
	depth, line, onLine := 0, 0, 0
	keys := map[int]int{} // keys so far of the open mappings, by level
	for done := false; !done; {
		more, err := s.Scan()
		done = err != nil // io.EOF, or behind a token that the parser will refuse
		tokens.Add(more...)
		for _, tk := range more {
			switch tk.Type {
			case token.SequenceStartType, token.MappingStartType:
				depth++
			case token.SequenceEndType, token.MappingEndType:
				depth--
				maps.DeleteFunc(keys, func(at, _ int) bool { return at >= level(depth+1, 0) })
			case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
				if tk.Position.Line != line {
					line, onLine = tk.Position.Line, 0
				}
				onLine++
			}
			here := level(depth, tk.Position.IndentNum)
			if tk.Type == token.MappingValueType || tk.Type == token.MappingKeyType {
				maps.DeleteFunc(keys, func(at, _ int) bool { return at > here })
				keys[here]++
			}
			e := ConfigError{Line: tk.Position.Line, Col: tk.Position.Column}
			switch {
			case depth > maxDepth || onLine > maxDepth:
				e.Msg = fmt.Sprintf("nested deeper than %d", maxDepth)
				return nil, &e
			case keys[here] > maxKeys:
				e.Msg = fmt.Sprintf("more than %d keys in one mapping", maxKeys)
				return nil, &e
			case tk == more[len(more)-1] && len(tokens) > maxTokens:
				e.Msg = fmt.Sprintf("more than %d words and signs", maxTokens)
				return nil, &e
			}
		}
	}
	return tokens, nil
}

// level orders places in a text by how deep they are: in brackets, or else by
// indentation.
func level(depth, indent int) int { return depth<<32 | indent }

// tooBusy counts what most tokens have beside them, because the scanner may cut
// a whole text into tokens before it returns the first.
func tooBusy(data []byte) bool {
	n := 0
	for _, c := range data {
		switch c {
		case '\n', ',', ':', '[', ']', '{', '}':
			n++
		}
	}
	return n > 2*maxTokens
}

type converter struct {
	d       *decoder
	anchors map[string]ast.Node
	open    []string // aliases being expanded: one of them again is a cycle
	nodes   int
	stopped bool
}

func (c *converter) stop(n *node, msg string) {
	if !c.stopped {
		c.stopped = true
		c.d.fail(n, "", msg, "")
	}
}

func (c *converter) convert(a ast.Node, depth int) *node {
	n := &node{}
	if a == nil {
		return n
	}
	if p := a.GetToken(); p != nil && p.Position != nil {
		n.line, n.col = p.Position.Line, p.Position.Column
	}
	if c.nodes++; c.nodes > maxNodes {
		c.stop(n, fmt.Sprintf("more than %d values, aliases expanded", maxNodes))
	}
	if depth > maxDepth {
		c.stop(n, fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	if c.stopped {
		return n
	}
	switch a := a.(type) {
	case *ast.NullNode:
		n.kind, n.text = nullNode, "null"
	case *ast.StringNode:
		n.kind = scalarNode
		n.quoted = a.Token.Type == token.SingleQuoteType || a.Token.Type == token.DoubleQuoteType
		c.text(n, a.Value)
	case *ast.LiteralNode:
		n.kind, n.quoted = scalarNode, true
		c.text(n, a.Value.Value)
	case *ast.MappingNode:
		n.kind = mappingNode
		c.mapping(n, a.Values, depth)
		if len(n.entries) > 0 && !a.IsFlowStyle {
			n.line, n.col = n.entries[0].line, n.entries[0].col
		}
	case *ast.MappingValueNode:
		n.kind = mappingNode
		c.mapping(n, []*ast.MappingValueNode{a}, depth)
		if len(n.entries) > 0 {
			n.line, n.col = n.entries[0].line, n.entries[0].col
		}
	case *ast.SequenceNode:
		n.kind = sequenceNode
		for _, v := range a.Values {
			n.items = append(n.items, c.convert(v, depth+1))
		}
	case *ast.AnchorNode:
		c.anchors[a.Name.GetToken().Value] = a.Value
		return c.convert(a.Value, depth+1)
	case *ast.AliasNode:
		return c.alias(n, a, depth)
	case *ast.TagNode:
		return c.tag(n, a, depth)
	case ast.ScalarNode: // numbers, booleans, .inf, .nan, as they are written
		n.kind = scalarNode
		n.text = strings.TrimSpace(a.GetToken().Value)
	default:
		c.stop(n, "this YAML is not understood here")
	}
	return n
}

func (c *converter) text(n *node, s string) {
	out, used, err := interpolate(s, c.d.opts.LookupEnv)
	if err != nil {
		c.d.fail(n, "", err.Error(), interpolationHint(err))
	}
	n.text, n.replaced = out, used
	if used && !n.quoted && (out == "" || out == "~" || out == "null") {
		n.kind = nullNode
	}
}

func (c *converter) mapping(n *node, values []*ast.MappingValueNode, depth int) {
	var merged []entry
	seen := make(map[string]int, len(values))
	for _, v := range values {
		e := entry{}
		if p := v.Key.GetToken(); p != nil && p.Position != nil {
			e.line, e.col = p.Position.Line, p.Position.Column
		}
		if v.Key.IsMergeKey() {
			from := c.convert(v.Value, depth+1)
			list := []*node{from}
			if from.kind == sequenceNode {
				list = from.items
			}
			for _, m := range list {
				if m.kind != mappingNode {
					c.d.fail(from, "", "<< merges mappings only, not "+m.kind.String(), "")
					continue
				}
				merged = append(merged, m.entries...)
			}
			continue
		}
		var written ast.Node = v.Key
		if explicit, ok := v.Key.(*ast.MappingKeyNode); ok { // "? key"
			written = explicit.Value
		}
		key := c.convert(written, depth+1)
		if key.kind != scalarNode && key.kind != nullNode {
			c.d.fail(key, "", "a key must be a single value", "")
			continue
		}
		e.key = key.text
		if first, twice := seen[e.key]; twice {
			c.d.failAt(e.line, e.col, e.key, fmt.Sprintf("the key is there twice, first in line %d", first), "remove one of them")
			continue
		}
		seen[e.key] = e.line
		e.value = c.convert(v.Value, depth+1)
		n.entries = append(n.entries, e)
	}
	for _, e := range merged {
		if _, own := seen[e.key]; !own {
			seen[e.key] = e.line
			n.entries = append(n.entries, e)
		}
	}
}

func (c *converter) alias(n *node, a *ast.AliasNode, depth int) *node {
	name := a.Value.GetToken().Value
	target, ok := c.anchors[name]
	if !ok {
		c.stop(n, fmt.Sprintf("no anchor &%s before this alias", name))
		return n
	}
	for _, open := range c.open {
		if open == name {
			c.stop(n, fmt.Sprintf("alias *%s contains itself", name))
			return n
		}
	}
	c.open = append(c.open, name)
	out := c.convert(target, depth+1)
	c.open = c.open[:len(c.open)-1]
	return out
}

// tag knows !!str, which makes a string of what looks like a number; no other
// tag has a use in a configuration.
func (c *converter) tag(n *node, a *ast.TagNode, depth int) *node {
	out := c.convert(a.Value, depth+1)
	if a.Start.Value != "!!str" || out.kind != scalarNode {
		c.d.fail(n, "", fmt.Sprintf("tag %s is not supported", a.Start.Value), "")
		return out
	}
	out.quoted = true
	return out
}
