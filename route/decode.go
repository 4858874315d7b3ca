package route

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Options of Decode.
type Options struct {
	// LookupEnv replaces ${VAR} and ${VAR:-default}; nil leaves them as they
	// are. Programs pass os.LookupEnv.
	LookupEnv LookupEnv
	// Name of a bare route; "" takes the file's name without its extension.
	Name string
	// Overrides set values over those of the file.
	Overrides []Override
}

// File is a decoded configuration file.
type File struct {
	// Routes in the order of the file.
	Routes []*Spec
	// Warnings name what was left aside: keys of mq-bridge's own process.
	Warnings []string
}

// Decode reads a configuration in mq-bridge's YAML: a routes: map, route names
// at top level, or one bare route. Decoding is strict. The error is an Errors
// with everything that is wrong, sorted by position; file only names the text
// in messages.
func Decode(file string, data []byte, types Types, opts Options) (*File, error) {
	d := &decoder{file: file, types: types, opts: opts}
	if root := d.parseYAML(data); root != nil {
		d.override(root, opts.Overrides)
		d.shape(root)
	}
	if len(d.errs) > 0 {
		d.errs.sort()
		return nil, d.errs
	}
	return &File{Routes: d.routes, Warnings: d.warnings}, nil
}

// DecodeRoute reads one route from the text that Spec.Normalized gave. Variables
// are not replaced: that was done when the file was loaded.
func DecodeRoute(name string, text string, types Types) (*Spec, error) {
	d := &decoder{types: types, file: "route " + name}
	if root := d.parseYAML([]byte(text)); root != nil {
		d.decodeRoute(name, root)
	}
	if len(d.errs) > 0 {
		d.errs.sort()
		return nil, d.errs
	}
	return d.routes[0], nil
}

// decoder is the state of one Decode.
type decoder struct {
	file     string
	types    Types
	opts     Options
	route    string // the route being decoded, for errors
	routes   []*Spec
	warnings []string
	errs     Errors
	// origins name what is outside the file and has values in it, see origin.
	origins []string
}

func (d *decoder) fail(n *node, field, msg, hint string) {
	d.failAt(n.line, n.col, field, msg, hint)
}

func (d *decoder) failAt(line, col int, field, msg, hint string) {
	file, line, col := d.placeOf(line, col)
	d.errs = append(d.errs, &ConfigError{File: file, Line: line, Col: col, Route: d.route, Field: field, Msg: msg, Hint: hint})
}

func (d *decoder) warnAt(e *entry, msg string) {
	d.warnings = append(d.warnings, fmt.Sprintf("%s:%d:%d: %s: %s", d.file, e.line, e.col, e.key, msg))
}

// shape finds out which of the three forms a file has.
func (d *decoder) shape(root *node) {
	if root.kind != mappingNode {
		d.fail(root, "", "a configuration is a mapping with routes, not "+root.kind.String(), "routes: {name: {input: …, output: …}}")
		return
	}
	if routes := root.take("routes"); routes != nil {
		for i := range root.entries {
			d.besideRoutes(&root.entries[i])
		}
		d.routeMap(routes.value)
		return
	}
	if root.find("input") != nil || root.find("output") != nil {
		d.decodeRoute(d.bareName(), root)
		return
	}
	var routes []entry
	for i := range root.entries {
		e := root.entries[i]
		switch {
		case slices.Contains(applicationKeys, e.key):
			d.warnAt(&e, "belongs to mq-bridge's own process and has no effect")
		case looksLikeRoutes(e.value) && nearest(e.key, []string{"routes"}) != "":
			d.failAt(e.line, e.col, e.key, "unknown key", `did you mean "routes"?`)
		default:
			routes = append(routes, e)
		}
	}
	if len(routes) == 0 {
		if len(d.errs) == 0 {
			d.fail(root, "", "no routes", "routes: {name: {input: …, output: …}}")
		}
		return
	}
	d.routeMap(&node{kind: mappingNode, line: root.line, col: root.col, entries: routes})
}

// bareName names a route that stands alone in its file.
func (d *decoder) bareName() string {
	return cmp.Or(d.opts.Name, strings.TrimSuffix(filepath.Base(d.file), filepath.Ext(d.file)))
}

// besideRoutes judges a top-level key next to routes:. The dialect warns about
// unknown ones (people keep anchors there); what looks like a route is refused,
// since it would silently not run.
func (d *decoder) besideRoutes(e *entry) {
	switch {
	case slices.Contains(applicationKeys, e.key):
		d.warnAt(e, "belongs to mq-bridge's own process and has no effect")
	case looksLikeRoute(e.value) || looksLikeRoutes(e.value):
		d.failAt(e.line, e.col, e.key, "a route beside routes:", "move it under routes:")
	default:
		d.warnAt(e, "unknown key, it has no effect")
	}
}

func looksLikeRoute(n *node) bool {
	return n.kind == mappingNode && (n.find("input") != nil || n.find("output") != nil)
}

func looksLikeRoutes(n *node) bool {
	return n.kind == mappingNode && slices.ContainsFunc(n.entries, func(e entry) bool { return looksLikeRoute(e.value) })
}

func (d *decoder) routeMap(n *node) {
	if n.kind != mappingNode {
		d.fail(n, "routes", "must be a mapping of routes by name, not "+n.kind.String(), "")
		return
	}
	if len(n.entries) == 0 {
		d.fail(n, "routes", "no routes", "")
	}
	for _, e := range n.entries {
		if err := checkName(e.key); err != nil {
			d.failAt(e.line, e.col, e.key, err.Error(), "")
			continue
		}
		if e.value.kind == nullNode {
			e.value.line, e.value.col = e.line, e.col
		}
		d.decodeRoute(e.key, e.value)
	}
}

// MaxNameBytes bounds the name of a route: it becomes part of keys, object
// names and metric labels.
const MaxNameBytes = 200

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a route needs a name")
	case len(name) > MaxNameBytes:
		return fmt.Errorf("the name of a route has more than %d bytes", MaxNameBytes)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
		return errors.New("the name of a route has characters that cannot be shown")
	}
	return nil
}

func (d *decoder) decodeRoute(name string, n *node) {
	d.route = name
	defer func() { d.route = "" }()
	if n.kind != mappingNode {
		d.fail(n, "", "a route is a mapping with input and output, not "+n.kind.String(), "")
		return
	}
	before := len(d.errs)
	input, output := n.take("input"), n.take("output")

	var in, out Endpoint
	if input == nil {
		d.fail(n, "input", "is required", "")
	} else {
		d.liftCheckpointStore(n, input.value)
		in = d.decodeEndpoint(input.value, Input, "input")
	}
	if output == nil {
		// The dialect's default output discards.
		output = &entry{key: "output", line: n.line, col: n.col, value: &node{kind: nullNode, line: n.line, col: n.col, text: "null"}}
	}
	out = d.decodeEndpoint(output.value, Output, "output")

	var keys routeKeys
	SetDefaults(&keys)
	d.decodeStruct(n, reflect.ValueOf(&keys).Elem(), "", unsupportedRouteKeys, []string{"input", "output"})
	d.checkRoute(n, &keys)

	spec := keys.spec()
	spec.Name, spec.Input, spec.Output = name, in, out
	sides := []entry{*output}
	if input != nil {
		sides = []entry{*input, *output}
	}
	n.entries = append(sides, n.entries...)
	spec.source = n
	d.routes = append(d.routes, spec)
	d.badRecordRule(n, spec)
	if len(d.errs) == before {
		if t, ok := d.types.Endpoint(spec.Output.Type); ok && t.Sink != nil && t.Sink(spec.Output.Config).Tier == TierTransactional &&
			(spec.Commit == CommitSeparate || spec.CheckpointStore != "") {
			d.failAt(output.line, output.col, "output", spec.Output.Type+" keeps the record in its own transaction: commit: separate and checkpoint_store beside it are not supported yet", "")
		}
		d.warnIdle(spec)
		d.circle(spec, output)
		d.takesLetters(spec, output)
		for _, conflict := range Infer(spec, d.types).Conflicts {
			d.failAt(output.line, output.col, "output", conflict, "")
		}
	}
}

// badRecordRule fills in on_error: a dlq says it all, and contradicts what says
// otherwise.
func (d *decoder) badRecordRule(n *node, spec *Spec) {
	place := n
	if e := n.find("on_error"); e != nil {
		place = e.value
	}
	switch dlq := spec.DeadLetters(); {
	case dlq == nil && spec.OnError == OnErrorDLQ:
		d.fail(place, "on_error", "dlq needs a dlq", "output: {…, middlewares: [{dlq: {endpoint: {file: {path: dead.jsonl}}}}]}")
	case dlq != nil && spec.OnError != OnErrorDLQ && spec.OnError != "":
		d.fail(place, "on_error", fmt.Sprintf("%s contradicts the dlq of the output", spec.OnError), "remove one of them")
	case dlq != nil:
		spec.OnError = OnErrorDLQ
	case spec.OnError == "":
		spec.OnError = OnErrorStop
	}
}

// circle refuses a route that reads what it writes itself, until the disk is full.
func (d *decoder) circle(spec *Spec, output *entry) {
	in, ok := spec.Input.Config.(reader)
	if !ok {
		return
	}
	const hint = "name another file, or a pattern of the input that leaves it out"
	if in.Reads(spec.Output.Config) {
		d.failAt(output.line, output.col, "output", "the input would read what is written here, again and again", hint)
	}
	if dlq := spec.DeadLetters(); dlq != nil && in.Reads(dlq.Config) {
		d.failAt(output.line, output.col, "output", "the input would read its own dead letters", hint)
	}
}

// takesLetters refuses a dlq that could not take the first letter: the route would run
// until there is one, and stop at night.
func (d *decoder) takesLetters(spec *Spec, output *entry) {
	dlq := spec.DeadLetters()
	if dlq == nil {
		return
	}
	if c, ok := dlq.Config.(letterTaker); ok {
		if err := c.TakesLetters(spec.Output.Config); err != nil {
			d.failAt(output.line, output.col, join("output.dlq", err.Field), err.Msg, err.Hint)
		}
	}
}

// warnIdle names middlewares that have no effect on this output.
func (d *decoder) warnIdle(spec *Spec) {
	t, ok := d.types.Endpoint(spec.Output.Type)
	if !ok || t.Sink == nil {
		return
	}
	if c := t.Sink(spec.Output.Config); c.Tier != TierTransactional && !c.Parts {
		return
	}
	for _, m := range spec.Output.Middlewares {
		if t, ok := d.types.Middleware(m.Type); ok && t.Capabilities(m.Config).PlainWrites {
			d.warnings = append(d.warnings, fmt.Sprintf("%s: route %s: %s has no effect on this output, whose transactions or parts the route begins again as a whole", m.Where, spec.Name, m.Type))
		}
	}
}

// liftCheckpointStore reads an input's own checkpoint_store as the route's.
func (d *decoder) liftCheckpointStore(route, input *node) {
	if input.kind != mappingNode {
		return
	}
	for _, e := range input.entries {
		if e.key == "middlewares" || e.value.kind != mappingNode {
			continue
		}
		own := e.value.take("checkpoint_store")
		if own == nil || own.value.kind == nullNode {
			continue
		}
		theirs := route.find("checkpoint_store")
		if theirs == nil {
			route.entries = append(route.entries, *own)
		} else if theirs.value.text != own.value.text {
			d.failAt(own.line, own.col, join("input."+e.key, "checkpoint_store"),
				"differs from the route's own in "+d.source(theirs.line), "a route has one checkpoint store; keep one of them")
		}
	}
}

func (d *decoder) checkRoute(n *node, k *routeKeys) {
	place := func(key string) *node {
		if e := n.find(key); e != nil {
			return e.value
		}
		return n
	}
	if k.CheckpointStore != "" {
		if err := checkStore(k.CheckpointStore); err != nil {
			d.fail(place("checkpoint_store"), "checkpoint_store", err.Msg, err.Hint)
		} else if k.Commit == CommitTransactional {
			d.fail(place("checkpoint_store"), "checkpoint_store", "commit: transactional keeps the position in the sink", "remove checkpoint_store, or use commit: separate")
		}
	}
}

// decodeEndpoint decodes one side of a route: a mapping with one endpoint name
// and maybe middlewares, or a bare name.
func (d *decoder) decodeEndpoint(n *node, side Side, path string) Endpoint {
	d.structure(n)
	switch n.kind {
	case nullNode:
		if side == Input {
			d.fail(n, path, "is required", "")
			return Endpoint{}
		}
		return d.endpointConfig(&entry{key: "null", line: n.line, col: n.col, value: n}, side, path)
	case scalarNode:
		return d.endpointConfig(&entry{key: n.text, line: n.line, col: n.col, value: &node{kind: nullNode, line: n.line, col: n.col}}, side, path)
	case sequenceNode:
		d.fail(n, path, "must be an endpoint, not a list", "")
		return Endpoint{}
	}
	middlewares := n.find("middlewares")
	var ep *entry
	for i := range n.entries {
		e := &n.entries[i]
		if e == middlewares {
			continue
		}
		_, known := d.types.Endpoint(e.key)
		known = known || slices.Contains(dialectEndpoints, e.key)
		switch {
		case ep == nil && (known || len(n.entries) == 1 || middlewares != nil && len(n.entries) == 2):
			ep = e
		case ep == nil:
			d.failAt(e.line, e.col, join(path, e.key), "unknown endpoint", didYouMean(e.key, append(d.endpointNames(side), "middlewares")))
		case known:
			d.failAt(e.line, e.col, join(path, e.key), fmt.Sprintf("a second endpoint beside %q", ep.key), "an endpoint is one name, with middlewares beside it")
		default:
			d.failAt(e.line, e.col, join(path, e.key), "unknown key beside an endpoint", cmp.Or(didYouMean(e.key, []string{"middlewares"}), fmt.Sprintf("should it stand under %s:?", ep.key)))
		}
	}
	var out Endpoint
	if ep == nil {
		if len(n.entries) == 0 || middlewares != nil && len(n.entries) == 1 {
			d.fail(n, path, "names no endpoint", "one of "+strings.Join(d.endpointNames(side), ", "))
		}
	} else {
		out = d.endpointConfig(ep, side, path)
	}
	if middlewares != nil {
		out.Middlewares = d.decodeMiddlewares(middlewares.value, side, join(path, "middlewares"))
	}
	// The endpoint stands before its middlewares in Normalized.
	sortEntries(n, func(key string) int {
		if key == "middlewares" {
			return 1
		}
		return 0
	})
	return out
}

// endpointNames lists the types that can stand on a side.
func (d *decoder) endpointNames(side Side) []string {
	return slices.DeleteFunc(slices.Clone(d.types.EndpointNames()), func(name string) bool {
		t, _ := d.types.Endpoint(name)
		return side == Input && t.Source == nil || side == Output && t.Sink == nil
	})
}

func (d *decoder) endpointConfig(e *entry, side Side, path string) Endpoint {
	out := Endpoint{Type: e.key, Where: d.where(e)}
	path = join(path, e.key)
	t, ok := d.types.Endpoint(e.key)
	switch {
	case !ok && slices.Contains(dialectEndpoints, e.key):
		d.failAt(e.line, e.col, path, fmt.Sprintf("endpoint %q is not supported yet", e.key), "")
		return out
	case !ok:
		names := d.endpointNames(side)
		d.failAt(e.line, e.col, path, "unknown endpoint", cmp.Or(didYouMean(e.key, append(names, dialectEndpoints...)), "one of "+strings.Join(names, ", ")))
		return out
	case side == Input && t.Source == nil, side == Output && t.Sink == nil:
		msg := fmt.Sprintf("%q cannot be an %s", e.key, side)
		if only, ok := oneSided[e.key]; slices.Contains(dialectEndpoints, e.key) && (!ok || only == side) {
			msg = fmt.Sprintf("%q as an %s is not supported yet", e.key, side)
		}
		d.failAt(e.line, e.col, path, msg, "one of "+strings.Join(d.endpointNames(side), ", "))
		return out
	}
	out.Config = t.NewConfig()
	d.decodeConfig(e, out.Config, side, path, t.Reserved)
	return out
}

func (d *decoder) decodeMiddlewares(n *node, side Side, path string) []Middleware {
	d.structure(n)
	if n.kind == nullNode {
		return nil
	}
	if n.kind != sequenceNode {
		d.fail(n, path, "must be a list, not "+n.kind.String(), `- filter: "…"`)
		return nil
	}
	var out []Middleware
	for i, item := range n.items {
		path := fmt.Sprintf("%s[%d]", path, i)
		var e *entry
		switch {
		case item.kind == scalarNode:
			e = &entry{key: item.text, line: item.line, col: item.col, value: &node{kind: nullNode, line: item.line, col: item.col}}
		case item.kind == mappingNode && len(item.entries) == 1:
			e = &item.entries[0]
		case item.kind == mappingNode && len(item.entries) > 1:
			second := item.entries[1]
			d.failAt(second.line, second.col, join(path, second.key), fmt.Sprintf("a second name beside %q", item.entries[0].key),
				"each middleware is its own list item; its keys stand one level deeper")
			continue
		default:
			d.fail(item, path, "must be a mapping with one middleware name", "")
			continue
		}
		if m, ok := d.middlewareConfig(e, side, join(path, e.key)); ok {
			out = append(out, m)
		}
	}
	return out
}

func (d *decoder) middlewareConfig(e *entry, side Side, path string) (Middleware, bool) {
	t, ok := d.types.Middleware(e.key)
	switch {
	case !ok && slices.Contains(dialectMiddlewares, e.key):
		d.failAt(e.line, e.col, path, fmt.Sprintf("middleware %q is not supported yet", e.key), "")
		return Middleware{}, false
	case !ok:
		d.failAt(e.line, e.col, path, "unknown middleware", cmp.Or(didYouMean(e.key, append(d.types.MiddlewareNames(), dialectMiddlewares...)),
			"one of "+strings.Join(d.types.MiddlewareNames(), ", ")))
		return Middleware{}, false
	case side == Input && !t.Input, side == Output && !t.Output:
		other := Input
		if side == Input {
			other = Output
		}
		d.failAt(e.line, e.col, path, fmt.Sprintf("middleware %q cannot stand on an %s", e.key, side), fmt.Sprintf("move it to the %s", other))
		return Middleware{}, false
	}
	m := Middleware{Type: e.key, Config: t.NewConfig(), Where: d.where(e)}
	d.decodeConfig(e, m.Config, side, path, t.Reserved)
	return m, true
}

// scalarConfig is a config that may be written as a single value.
type scalarConfig interface{ FromScalar(string) error }

// validator is a config with rules beyond its tags.
type validator interface{ Validate(side Side) []error }

// remarker is a config that has been given what has no effect here. Each remark names
// it and says why; it becomes a warning.
type remarker interface{ Remarks(side Side) []string }

// reader is the config of an input that may take in what an output writes.
type reader interface{ Reads(output any) bool }

// letterTaker is the config of an output that cannot be any route's dlq.
type letterTaker interface{ TakesLetters(output any) *ConfigError }

// decodeConfig decodes what stands behind an endpoint's or a middleware's name.
func (d *decoder) decodeConfig(e *entry, config any, side Side, path string, reserved []string) {
	before := len(d.errs)
	v := reflect.ValueOf(config).Elem()
	if v.Kind() == reflect.Struct {
		setDefaults(v)
	}
	if _, scalar := config.(scalarConfig); !scalar {
		d.structure(e.value)
	}
	switch e.value.kind {
	case mappingNode, nullNode:
		n := e.value
		if n.kind == nullNode {
			n = &node{kind: mappingNode, line: e.line, col: e.col}
		}
		if v.Kind() == reflect.Struct {
			d.decodeStruct(n, v, path, reserved, nil)
		} else if n.kind == mappingNode && len(n.entries) > 0 {
			d.fail(n, path, "must be a single value, not a mapping", "")
		}
	case scalarNode:
		s, ok := config.(scalarConfig)
		if !ok {
			d.fail(e.value, path, "must be a mapping, not a single value", "")
			break
		}
		e.value.quoted = true // whatever it looks like, the type takes text
		if err := s.FromScalar(e.value.text); err != nil {
			at := *e
			if e.value.line < 0 {
				at.line, at.col = e.value.line, 0 // a variable's, not the key's
			}
			d.configError(&at, path, err)
		}
	default:
		d.fail(e.value, path, "must be a mapping, not "+e.value.kind.String(), "")
	}
	// Rules that span fields see a config whose fields are right.
	if val, ok := config.(validator); ok && len(d.errs) == before {
		for _, err := range val.Validate(side) {
			d.configError(e, path, err)
		}
	}
	if r, ok := config.(remarker); ok && len(d.errs) == before {
		for _, msg := range r.Remarks(side) {
			d.warnAt(e, msg)
		}
	}
}

// configError places what a type's own check returned: at the field it names,
// else at the name of the type.
func (d *decoder) configError(e *entry, path string, err error) {
	var c *ConfigError
	if !errors.As(err, &c) {
		d.failAt(e.line, e.col, path, err.Error(), "")
		return
	}
	line, col := e.line, e.col
	n := e.value
	for _, key := range strings.Split(c.Field, ".") {
		if n == nil || n.kind != mappingNode {
			break
		}
		found := n.find(key)
		if found == nil {
			break
		}
		line, col, n = found.value.line, found.value.col, found.value
	}
	if c.Field != "" {
		path = join(path, c.Field)
	}
	d.failAt(line, col, path, c.Msg, c.Hint)
}

func (d *decoder) where(e *entry) string {
	file, line, col := d.placeOf(e.line, e.col)
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d:%d", file, line, col)
}
