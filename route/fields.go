package route

import (
	"cmp"
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// field is one key of a config struct, read from the tags of its Go field:
//
//	yaml      the key; fields without one are not part of the configuration
//	alias     another key for the same field (a dialect's spelling)
//	doc       one sentence for docs/configuration.md
//	default   the value when the key is absent
//	required  "true": the key must be there
//	enum      "a|b|c": the values allowed
//	later     "d|e": values of the dialect that are refused as not supported yet
//	min, max  bounds of numbers, sizes and durations
//	secret    "true": the value is masked wherever a route is shown
//	scalar    "true": a list that may be written as its only entry
type field struct {
	name, alias string
	index       []int
	typ         reflect.Type
	doc         string
	def         string
	hasDefault  bool
	required    bool
	secret      bool
	scalar      bool
	enum, later []string
	min, max    string
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	endpointType = reflect.TypeFor[Endpoint]() // the endpoint of a dlq
)

// fieldsOf lists the fields of a struct in the order they are declared; an
// anonymous struct field lends its own.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			for _, sub := range fieldsOf(f.Type) {
				sub.index = append([]int{i}, sub.index...)
				out = append(out, sub)
			}
			continue
		}
		if name == "" || name == "-" {
			continue
		}
		def, hasDefault := f.Tag.Lookup("default")
		x := field{
			name: name, alias: f.Tag.Get("alias"), index: []int{i}, typ: f.Type,
			doc: f.Tag.Get("doc"), def: def, hasDefault: hasDefault,
			required: f.Tag.Get("required") == "true", secret: f.Tag.Get("secret") == "true", scalar: f.Tag.Get("scalar") == "true",
			min: f.Tag.Get("min"), max: f.Tag.Get("max"),
		}
		if e := f.Tag.Get("enum"); e != "" {
			x.enum = strings.Split(e, "|")
		}
		if e := f.Tag.Get("later"); e != "" {
			x.later = strings.Split(e, "|")
		}
		out = append(out, x)
	}
	return out
}

// SetDefaults fills a config struct (given by pointer) with the defaults of its
// tags, nested structs included. A default that its own field refuses is a
// mistake in the program and panics.
func SetDefaults(config any) {
	setDefaults(reflect.ValueOf(config).Elem())
}

func setDefaults(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.index)
		if f.hasDefault {
			if err := setDefault(fv, f); err != nil {
				panic(fmt.Sprintf("route: default of %s.%s: %v", v.Type(), f.name, err))
			}
		} else if fv.Kind() == reflect.Struct && !fv.Addr().Type().Implements(textType) {
			setDefaults(fv)
		}
	}
}

func setDefault(fv reflect.Value, f field) *ConfigError {
	if fv.Kind() == reflect.Slice && fv.Type().Elem().Kind() == reflect.String {
		parts := strings.Split(f.def, ",")
		fv.Set(reflect.MakeSlice(fv.Type(), len(parts), len(parts)))
		for i, p := range parts {
			fv.Index(i).SetString(p)
		}
		return nil
	}
	if fv.Kind() == reflect.Pointer {
		fv.Set(reflect.New(fv.Type().Elem()))
		fv = fv.Elem()
	}
	return setScalar(fv, f.name, &node{kind: scalarNode, text: f.def, replaced: true})
}

// decodeStruct decodes a mapping into v and reports to d what does not fit.
// reserved are keys of the dialect that are refused as not supported yet,
// elsewhere are keys that the caller handled (for suggestions only).
func (d *decoder) decodeStruct(n *node, v reflect.Value, path string, reserved, elsewhere []string) {
	fields := fieldsOf(v.Type())
	keys := append([]string(nil), elsewhere...)
	byKey := make(map[string]int, len(fields))
	for i, f := range fields {
		keys = append(keys, f.name)
		byKey[f.name] = i
		if f.alias != "" {
			byKey[f.alias] = i
		}
	}
	given := make(map[int]*entry, len(n.entries))
	for i := range n.entries {
		e := &n.entries[i]
		at, known := byKey[e.key]
		if !known {
			d.unknownKey(e, path, reserved, keys)
			continue
		}
		if first := given[at]; first != nil {
			d.failAt(e.line, e.col, join(path, e.key), fmt.Sprintf("says the same as %q in %s", first.key, d.source(first.line)), "keep one of them")
			continue
		}
		given[at] = e
		f := fields[at]
		if e.value.kind == nullNode && !f.required {
			continue // "key:" with nothing behind it: the default
		}
		if f.scalar && e.value.kind == scalarNode && e.value.line >= 0 {
			e.value = &node{kind: sequenceNode, items: []*node{e.value}, line: e.value.line, col: e.value.col}
		}
		before := len(d.errs)
		e.value.secret = f.secret
		d.decodeValue(e.value, v.FieldByIndex(f.index), join(path, e.key), e.key)
		if len(d.errs) == before {
			d.checkField(e.value, v.FieldByIndex(f.index), f, join(path, e.key))
		}
	}
	for i, f := range fields {
		if f.required && given[i] == nil {
			d.fail(n, join(path, f.name), "is required", f.doc)
		}
	}
	// Canonical order for Normalized: as declared, whatever the file's order was.
	sortEntries(n, func(key string) int { return byKey[key] })
}

func (d *decoder) unknownKey(e *entry, path string, reserved, keys []string) {
	for _, r := range reserved {
		if r == e.key {
			d.failAt(e.line, e.col, join(path, e.key), "is not supported yet", "remove the key")
			return
		}
	}
	hint := didYouMean(e.key, keys)
	if hint == "" && len(keys) > 0 && len(keys) <= 12 {
		hint = "known keys: " + strings.Join(keys, ", ")
	}
	d.failAt(e.line, e.col, join(path, e.key), "unknown key", hint)
}

// decodeValue decodes n into v. key is the last key of path; it decides the
// unit of a duration.
func (d *decoder) decodeValue(n *node, v reflect.Value, path, key string) {
	if v.CanAddr() && v.Addr().Type().Implements(textType) {
		if n.kind != scalarNode {
			d.fail(n, path, "must be a single value, not "+n.kind.String(), "")
			return
		}
		n.quoted = true
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.text)); err != nil {
			d.fail(n, path, err.Error(), "")
		}
		return
	}
	if v.Type() == endpointType {
		v.Set(reflect.ValueOf(d.decodeEndpoint(n, Output, path)))
		return
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array, reflect.Interface:
		d.structure(n)
	}
	if v.Type() == orderedType {
		if n.kind != mappingNode {
			d.fail(n, path, "must be a mapping, not "+n.kind.String(), "")
			return
		}
		d.checkPlain(n, path)
		v.Set(reflect.ValueOf(n.ordered()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		if p.Elem().Kind() == reflect.Struct {
			setDefaults(p.Elem())
		}
		d.decodeValue(n, p.Elem(), path, key)
		v.Set(p)
	case reflect.Struct:
		if n.kind != mappingNode {
			d.fail(n, path, "must be a mapping, not "+n.kind.String(), "")
			return
		}
		d.decodeStruct(n, v, path, nil, nil)
	case reflect.Map:
		if n.kind != mappingNode {
			d.fail(n, path, "must be a mapping, not "+n.kind.String(), "")
			return
		}
		m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
		for i := range n.entries {
			e := &n.entries[i]
			x := reflect.New(v.Type().Elem()).Elem()
			e.value.secret = n.secret || secretName(e.key)
			d.decodeValue(e.value, x, join(path, e.key), e.key)
			m.SetMapIndex(reflect.ValueOf(e.key).Convert(v.Type().Key()), x)
		}
		sortEntries(n, nil)
		v.Set(m)
	case reflect.Slice, reflect.Array:
		d.decodeList(n, v, path, key)
	case reflect.Interface:
		d.checkPlain(n, path)
		if x := n.plain(); x != nil { // there is no reflect.Value of nil
			v.Set(reflect.ValueOf(x))
		}
	default:
		if n.kind != scalarNode {
			d.fail(n, path, fmt.Sprintf("must be %s, not %s", kindName(v.Type(), key), n.kind), "")
			return
		}
		if err := setScalar(v, key, n); err != nil {
			d.fail(n, path, err.Msg, err.Hint)
		}
	}
}

func (d *decoder) decodeList(n *node, v reflect.Value, path, key string) {
	if n.kind == scalarNode && n.line < 0 && v.Type().Elem().Kind() == reflect.String {
		// From outside the file, words need no brackets: a,b
		for word := range strings.SplitSeq(n.text, ",") {
			n.items = append(n.items, &node{kind: scalarNode, text: word, replaced: true, line: n.line})
		}
		n.kind, n.text = sequenceNode, ""
	}
	if n.kind != sequenceNode {
		d.fail(n, path, "must be a list, not "+n.kind.String(), "")
		return
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	} else if len(n.items) != v.Len() {
		d.fail(n, path, fmt.Sprintf("must have %d entries, not %d", v.Len(), len(n.items)), "")
		return
	}
	// A pair [name, value] is a mapping in disguise (consumer_options).
	if len(n.items) == 2 && n.items[0].kind == scalarNode && secretName(n.items[0].text) {
		n.items[1].secret = true
	}
	for i, item := range n.items {
		item.secret = item.secret || n.secret
		d.decodeValue(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i), key)
	}
}

// setScalar sets v from the text of n. Its error has no place yet.
func setScalar(v reflect.Value, key string, n *node) *ConfigError {
	text := n.text
	wrong := func(hint string) *ConfigError {
		shown := strconv.Quote(text)
		if n.secret || n.replaced || len(text) > 100 {
			shown = "this value" // it is a secret, or comes from a variable that may be
		}
		return &ConfigError{Msg: fmt.Sprintf("must be %s, not %s", kindName(v.Type(), key), shown), Hint: hint}
	}
	switch v.Type() {
	case durationType:
		unit := durationUnit(key)
		if unit == 0 {
			x, err := time.ParseDuration(text)
			if err != nil {
				return wrong("with a unit: 500ms, 5s, 1m30s")
			}
			n.quoted = true
			v.SetInt(int64(x))
			return nil
		}
		x, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n.quoted && !n.replaced || x > math.MaxInt64/int64(unit) || x < math.MinInt64/int64(unit) {
			return wrong("")
		}
		n.quoted = false
		v.SetInt(x * int64(unit))
		return nil
	case bytesType:
		x, err := ParseBytes(text)
		if err != nil {
			return wrong("a number of bytes, or with a unit: 64MiB, 1MB")
		}
		v.SetInt(int64(x))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		if !n.quoted && !n.replaced && looksTyped(text) {
			return wrong("put it in quotes")
		}
		n.quoted = true
		v.SetString(text)
		return nil
	case reflect.Bool:
		if n.quoted && !n.replaced || text != "true" && text != "false" {
			return wrong("true or false, without quotes")
		}
		n.quoted = false
		v.SetBool(text == "true")
		return nil
	}
	if n.quoted && !n.replaced {
		return wrong("without quotes")
	}
	number := strings.ReplaceAll(text, "_", "")
	switch {
	case v.CanInt():
		x, err := strconv.ParseInt(number, 0, v.Type().Bits())
		if err != nil {
			return wrong("")
		}
		v.SetInt(x)
	case v.CanUint():
		x, err := strconv.ParseUint(number, 0, v.Type().Bits())
		if err != nil {
			return wrong("")
		}
		v.SetUint(x)
	case v.CanFloat():
		x, err := strconv.ParseFloat(number, v.Type().Bits())
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return wrong("")
		}
		v.SetFloat(x)
	default:
		panic(fmt.Sprintf("route: a config field of type %s cannot be decoded", v.Type()))
	}
	n.quoted = false
	return nil
}

func durationUnit(key string) time.Duration {
	switch {
	case strings.HasSuffix(key, "_ms"):
		return time.Millisecond
	case strings.HasSuffix(key, "_secs"), strings.HasSuffix(key, "_seconds"):
		return time.Second
	}
	return 0
}

// kindName says in words what a field takes, for errors and documentation.
func kindName(t reflect.Type, key string) string {
	switch t {
	case durationType:
		switch durationUnit(key) {
		case time.Millisecond:
			return "a number of milliseconds"
		case time.Second:
			return "a number of seconds"
		}
		return "a duration"
	case bytesType:
		return "a size"
	case endpointType:
		return "an output"
	case orderedType:
		return "a mapping"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kindName(t.Elem(), key)
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Struct, reflect.Map:
		if reflect.PointerTo(t).Implements(textType) {
			return "a string"
		}
		return "a mapping"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Interface:
		return "any value"
	}
	return "an integer"
}

// looksTyped reports whether YAML takes an unquoted text for something else
// than a string.
func looksTyped(s string) bool {
	if s == "true" || s == "false" {
		return true
	}
	n := strings.ReplaceAll(s, "_", "")
	if _, err := strconv.ParseInt(n, 0, 64); err == nil {
		return true
	}
	_, err := strconv.ParseFloat(n, 64)
	return err == nil
}

func (d *decoder) checkField(n *node, v reflect.Value, f field, path string) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if f.enum != nil && v.Kind() == reflect.String {
		if slices.Contains(f.enum, v.String()) {
			return
		}
		if slices.Contains(f.later, v.String()) {
			d.fail(n, path, fmt.Sprintf("%q is not supported yet", v.String()), "one of "+strings.Join(f.enum, ", "))
			return
		}
		shown := strconv.Quote(v.String())
		if n.replaced || f.secret {
			shown = "this value"
		}
		d.fail(n, path, fmt.Sprintf("%s is not one of %s", shown, strings.Join(f.enum, ", ")), didYouMean(v.String(), f.enum))
		return
	}
	if f.required && v.Kind() == reflect.String && v.Len() == 0 {
		d.fail(n, path, "must not be empty", f.doc)
		return
	}
	if f.min != "" && compareBound(v, f.min) < 0 {
		d.fail(n, path, "must be at least "+f.min, "")
	}
	if f.max != "" && compareBound(v, f.max) > 0 {
		d.fail(n, path, "must be at most "+f.max, "")
	}
}

// compareBound compares a number with a bound written as in a configuration.
func compareBound(v reflect.Value, bound string) int {
	b := reflect.New(v.Type()).Elem()
	if err := setScalar(b, "", &node{kind: scalarNode, text: bound, replaced: true}); err != nil {
		panic(fmt.Sprintf("route: bound %q of a %s: %v", bound, v.Type(), err))
	}
	switch {
	case v.CanInt():
		return cmp.Compare(v.Int(), b.Int())
	case v.CanUint():
		return cmp.Compare(v.Uint(), b.Uint())
	case v.CanFloat():
		return cmp.Compare(v.Float(), b.Float())
	}
	panic(fmt.Sprintf("route: a %s has no bounds", v.Type()))
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
