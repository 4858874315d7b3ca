package route

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// OverridePrefix begins the names of the variables that override a configuration:
// MQB__ROUTE__PATH, the path's keys joined by two underscores, entries of lists by
// their index from 0: MQB__ORDERS__OUTPUT__MIDDLEWARES__0__RETRY__MAX_ATTEMPTS.
// Letters match in either case, and an underscore stands for any sign that a
// variable cannot have in its name.
const OverridePrefix = "MQB__"

// Override sets one value of a configuration from a variable. The value has the
// type of its field; lists and mappings are written as JSON.
type Override struct {
	Name, Value string
}

// OverridesFrom picks the overrides out of an environment ("NAME=value"), in the
// order of their names.
func OverridesFrom(environ []string) []Override {
	var out []Override
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, OverridePrefix) {
			out = append(out, Override{Name: name, Value: value})
		}
	}
	slices.SortFunc(out, func(a, b Override) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// origin makes a line number that stands for something outside the file: an error
// there is placed at name. See placeOf.
func (d *decoder) origin(name string) (line int) {
	d.origins = append(d.origins, name)
	return -len(d.origins)
}

// placeOf resolves a line that origin made.
func (d *decoder) placeOf(line, col int) (file string, l, c int) {
	if line < 0 {
		return d.origins[-line-1], 0, 0
	}
	return d.file, line, col
}

// source says in words where a line is.
func (d *decoder) source(line int) string {
	if line < 0 {
		return d.origins[-line-1]
	}
	return fmt.Sprintf("line %d", line)
}

// override applies the overrides to a parsed file. One that finds no place is an
// error: a setting that somebody believes in must not be ignored.
func (d *decoder) override(root *node, overrides []Override) {
	if root.kind != mappingNode {
		return
	}
	for _, o := range overrides {
		at := d.origin(o.Name)
		path := strings.Split(strings.TrimPrefix(o.Name, OverridePrefix), "__")
		if slices.Contains(path, "") {
			d.failAt(at, 0, "", "has an empty part in its path", "two underscores stand between two keys: "+OverridePrefix+"ROUTE__BATCH_SIZE")
			continue
		}
		if !utf8.ValidString(o.Value) {
			d.failAt(at, 0, "", "is not UTF-8", "")
			continue
		}
		routes, bare := d.routesOf(root)
		e, n := matching(routes, path)
		switch {
		case n == 0:
			d.failAt(at, 0, "", "names no route of this file", overrideHint(path[0], routes))
			continue
		case len(path) == n && bare:
			d.failAt(at, 0, "", "names a route and no key of it", OverridePrefix+path[0]+"__KEY")
			continue
		}
		value := &node{kind: scalarNode, text: o.Value, replaced: true, line: at}
		if o.Value == "" {
			value.kind, value.text = nullNode, "null"
		}
		d.route = e.key
		d.setPath(e.value, path[n:], value, "")
		d.route = ""
	}
}

// routesOf lists the routes of a file of any shape.
func (d *decoder) routesOf(root *node) (routes []*entry, bare bool) {
	if root.find("routes") == nil && (root.find("input") != nil || root.find("output") != nil) {
		return []*entry{{key: d.bareName(), value: root}}, true
	}
	from, nested := root, false
	if e := root.find("routes"); e != nil {
		from, nested = e.value, true
	}
	for i := range from.entries {
		if e := &from.entries[i]; nested || !slices.Contains(applicationKeys, e.key) {
			routes = append(routes, e)
		}
	}
	return routes, false
}

func overrideHint(part string, entries []*entry) string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.ToLower(variableName(e.key))
	}
	if n := nearest(strings.ToLower(part), names); n != "" {
		return fmt.Sprintf("did you mean %s%s?", OverridePrefix, strings.ToUpper(n))
	}
	if len(names) > 0 && len(names) <= 12 {
		return "routes: " + strings.Join(names, ", ")
	}
	return ""
}

// variableName writes a key as a part of a variable's name.
func variableName(key string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z' {
			return r
		}
		return '_'
	}, key)
}

// matching finds the entry that a path begins with, and how many of its parts the
// entry's key takes: a key may have two underscores itself. The longest one wins.
func matching(entries []*entry, path []string) (found *entry, parts int) {
	for n := len(path); n > 0; n-- {
		name := strings.Join(path[:n], "__")
		for _, e := range entries {
			if strings.EqualFold(variableName(e.key), name) {
				return e, n
			}
		}
	}
	return nil, 0
}

// setPath puts value at a path below n, making what is not there: whether a key
// exists is decided by the type it is decoded into.
func (d *decoder) setPath(n *node, path []string, value *node, field string) {
	if len(path) == 0 {
		if n.line < 0 && n.kind != nullNode {
			d.failAt(value.line, 0, field, "sets what "+d.origins[-n.line-1]+" sets already", "keep one of them")
			return
		}
		*n = *value
		return
	}
	part := path[0]
	index, numeric := -1, false
	if i, err := strconv.Atoi(part); err == nil && i >= 0 {
		index, numeric = i, true
	}
	d.structure(n)
	switch n.kind {
	case nullNode:
		*n = node{kind: mappingNode, line: value.line}
		if numeric {
			n.kind = sequenceNode
		}
	case scalarNode:
		if !strings.EqualFold(variableName(n.text), part) {
			d.failAt(value.line, 0, field, fmt.Sprintf("there is a single value, which has no %s", strings.ToLower(part)), "")
			return
		}
		// A bare name of an endpoint or of a middleware: it gets keys now.
		n.entries = []entry{{key: n.text, line: n.line, col: n.col, value: &node{line: n.line, col: n.col}}}
		n.kind, n.text = mappingNode, ""
	}
	if n.kind == sequenceNode {
		switch {
		case !numeric:
			d.failAt(value.line, 0, field, fmt.Sprintf("%s is no index of a list", strings.ToLower(part)), "0 is the first entry")
			return
		case index > len(n.items):
			d.failAt(value.line, 0, field, fmt.Sprintf("the list has %d entries and no entry %d", len(n.items), index), "0 is the first entry; the number of entries appends one")
			return
		case index == len(n.items):
			n.items = append(n.items, &node{line: value.line})
		}
		d.setPath(n.items[index], path[1:], value, fmt.Sprintf("%s[%d]", field, index))
		return
	}
	entries := make([]*entry, len(n.entries))
	for i := range n.entries {
		entries[i] = &n.entries[i]
	}
	e, parts := matching(entries, path)
	if e == nil {
		parts = 1
		n.entries = append(n.entries, entry{key: strings.ToLower(part), line: value.line, value: &node{line: value.line}})
		e = &n.entries[len(n.entries)-1]
	}
	d.setPath(e.value, path[parts:], value, join(field, e.key))
}

// structure parses a value that came as text from outside the file where its field
// takes a list or a mapping: it is written as JSON (or as YAML in one line).
func (d *decoder) structure(n *node) {
	if n.kind != scalarNode || n.line >= 0 || !strings.HasPrefix(n.text, "{") && !strings.HasPrefix(n.text, "[") {
		return
	}
	inner := decoder{file: d.origins[-n.line-1]}
	parsed := inner.parseYAML([]byte(n.text))
	if len(inner.errs) > 0 || parsed == nil {
		return // it stays text, which its field refuses
	}
	line, secret := n.line, n.secret
	*n = *parsed
	n.secret = secret
	n.outside(line)
}

// outside marks a parsed value as coming from outside the file.
func (n *node) outside(line int) {
	n.line, n.col, n.replaced = line, 0, true
	for i := range n.entries {
		n.entries[i].line, n.entries[i].col = line, 0
		n.entries[i].value.outside(line)
	}
	for _, x := range n.items {
		x.outside(line)
	}
}
