package route

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Copy is a route as it is written on a command line, one URI for each side:
//
//	orders.csv                              a file; - is standard input or output
//	kafka://broker:9092/topic?group_id=g    the scheme picks the endpoint
//	postgres://u:p@h/db?table=t&sslmode=require
//	sqlx:?url=postgres://…                  a whole driver URL
//	….csv|filter?a > 1|limiter?messages_per_second=10
//
// Keys of the query that the endpoint has go to its configuration, "a.b=x" reaches
// into a mapping, lists and mappings may be JSON. What is left stays in the URL
// where that is a driver's own, and is an error elsewhere. Values are
// percent-decoded ("+" is a plus), then ${VAR} is replaced.
type Copy struct {
	Name                string
	Source, Destination string
	// Filter is an expression for a filter at the end of the input, "" for none.
	Filter string
	// DeadLetters is where records go that cannot be handled, written as a
	// destination is; "" for nowhere. Where its name does not say how a file is
	// written, letters are JSON objects that hold the reason beside the record.
	DeadLetters string
	// Keys of the route beside input and output.
	Keys map[string]string
	// LookupEnv replaces ${VAR} and ${VAR:-default}; nil leaves them.
	LookupEnv LookupEnv
}

// The names that errors of a Copy begin with instead of a file's.
const (
	sourceName      = "source"
	destinationName = "destination"
	lettersName     = "--dlq"
)

// Spec builds and decodes the route. The error is an Errors.
func (c Copy) Spec(types Types) (*Spec, error) {
	d := &decoder{file: "copy", types: types, opts: Options{LookupEnv: c.LookupEnv}}
	source, destination := d.origin(sourceName), d.origin(destinationName)
	flags := d.origin("copy")
	text := func(s string) *node { return &node{kind: scalarNode, text: s, replaced: true, line: flags} }
	input, output := d.uri(c.Source, Input, source), d.uri(c.Destination, Output, destination)
	if c.Filter != "" {
		f := &node{kind: mappingNode, line: d.origin("--filter")}
		f.entries = []entry{{key: "filter", line: f.line, value: &node{kind: scalarNode, text: c.Filter, replaced: true, line: f.line}}}
		list := input.find("middlewares")
		if list == nil {
			input.entries = append(input.entries, entry{key: "middlewares", line: f.line, value: &node{kind: sequenceNode, line: f.line}})
			list = input.find("middlewares")
		}
		list.value.items = append(list.value.items, f)
	}
	if c.DeadLetters != "" {
		d.deadLetters(output, c.DeadLetters)
	}
	if len(d.errs) == 0 {
		root := &node{kind: mappingNode, line: flags, entries: []entry{
			{key: "input", line: source, value: input}, {key: "output", line: destination, value: output},
		}}
		for k, v := range c.Keys {
			root.entries = append(root.entries, entry{key: k, line: flags, value: text(v)})
		}
		d.decodeRoute(c.Name, root)
	}
	if len(d.errs) > 0 {
		for _, e := range d.errs {
			e.Route = "" // nobody gave it a name
		}
		return nil, d.errs
	}
	return d.routes[0], nil
}

// deadLetters puts a dlq before the other middlewares of an output.
func (d *decoder) deadLetters(output *node, uri string) {
	line := d.origin(lettersName)
	endpoint := d.uri(uri, Output, line)
	if e := endpoint.find("file"); e != nil && !strings.Contains(uri, "format=") {
		if f := e.value.find("format"); f != nil && f.value.text == "raw" {
			f.value.text = "json"
		}
	}
	dlq := &node{kind: mappingNode, line: line, entries: []entry{{key: "endpoint", line: line, value: endpoint}}}
	stage := &node{kind: mappingNode, line: line, entries: []entry{{key: "dlq", line: line, value: dlq}}}
	if list := output.find("middlewares"); list != nil {
		list.value.items = append([]*node{stage}, list.value.items...)
		return
	}
	output.entries = append(output.entries, entry{key: "middlewares", line: line, value: &node{kind: sequenceNode, line: line, items: []*node{stage}}})
}

// scheme is how the part of a URI between scheme and query is read.
type scheme struct {
	endpoint string
	// driver: the URI is the driver's own, and so are the keys that the endpoint
	// does not have.
	driver bool
	// place sets the keys that stand before the query.
	place func(set func(key, value string), authority, path string)
}

// schemes of the URI grammar. Those of endpoints that this binary does not have
// are refused by name when the route is decoded.
var schemes = map[string]scheme{
	"file": {endpoint: "file", place: func(set func(key, value string), authority, path string) {
		set("path", authority+path)
	}},
	"kafka": {endpoint: "kafka", place: func(set func(key, value string), authority, path string) {
		set("url", authority)
		set("topic", strings.TrimPrefix(path, "/"))
	}},
	"memory": {endpoint: "memory", place: func(set func(key, value string), authority, path string) {
		set("topic", authority+path)
	}},
	"static": {endpoint: "static", place: func(set func(key, value string), authority, path string) {
		set("body", authority+path)
	}},
	"null":       {endpoint: "null"},
	"sqlx":       {endpoint: "sqlx", driver: true},
	"postgres":   {endpoint: "sqlx", driver: true},
	"postgresql": {endpoint: "sqlx", driver: true},
	"mysql":      {endpoint: "sqlx", driver: true},
	"mariadb":    {endpoint: "sqlx", driver: true},
	"sqlite":     {endpoint: "sqlx", driver: true},

	"amqp": {endpoint: "amqp", driver: true}, "amqps": {endpoint: "amqp", driver: true},
	"cdc": {endpoint: "postgres_cdc", driver: true}, "postgres-cdc": {endpoint: "postgres_cdc", driver: true},
	"clickhouse": {endpoint: "clickhouse", driver: true},
	"http":       {endpoint: "http", driver: true}, "https": {endpoint: "http", driver: true},
	"mongodb": {endpoint: "mongodb", driver: true}, "mongodb+srv": {endpoint: "mongodb", driver: true},
	"mqtt": {endpoint: "mqtt"}, "mqtts": {endpoint: "mqtt"},
	"redis": {endpoint: "redis_streams", driver: true}, "rediss": {endpoint: "redis_streams", driver: true},
	"s3": {endpoint: "object_store"}, "gs": {endpoint: "object_store"}, "az": {endpoint: "object_store"},
	"ws": {endpoint: "websocket", driver: true}, "wss": {endpoint: "websocket", driver: true},
}

// nested are endpoints made of other endpoints.
var nested = []string{"fanout", "reader", "ref", "request", "response", "sequence", "switch"}

var (
	schemePattern = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+._-]*):`)
	// A bar begins a middleware only where a name and its end follow, so that
	// expressions may have bars.
	middlewarePattern = regexp.MustCompile(`\|([a-z_]+)(\?|\||$)`)
)

// uri makes the node of an endpoint with its middlewares.
func (d *decoder) uri(text string, side Side, line int) *node {
	out := &node{kind: mappingNode, line: line}
	if !utf8.ValidString(text) {
		d.failAt(line, 0, "", "is not UTF-8", "")
		return out
	}
	text, stages := splitMiddlewares(text)
	if e, ok := d.uriEndpoint(text, side, line); ok {
		out.entries = append(out.entries, e)
	}
	if len(stages) > 0 {
		list := &node{kind: sequenceNode, line: line}
		for _, s := range stages {
			list.items = append(list.items, d.uriMiddleware(s, line))
		}
		out.entries = append(out.entries, entry{key: "middlewares", line: line, value: list})
	}
	return out
}

func splitMiddlewares(text string) (endpoint string, stages []string) {
	for {
		m := middlewarePattern.FindStringIndex(text)
		if m == nil {
			return text, nil
		}
		rest := text[m[0]+1:]
		text = text[:m[0]]
		for {
			m := middlewarePattern.FindStringIndex(rest)
			if m == nil {
				return text, append(stages, rest)
			}
			stages = append(stages, rest[:m[0]])
			rest = rest[m[0]+1:]
		}
	}
}

func (d *decoder) uriMiddleware(text string, line int) *node {
	name, query, _ := strings.Cut(text, "?")
	config := &node{line: line}
	switch {
	case query == "":
	case d.takesText(name, query):
		config.kind, config.text, config.replaced = scalarNode, d.uriValue(query, line), true
	default:
		config.kind = mappingNode
		for key, value := range parameters(query) {
			d.parameter(config, key, value, line)
		}
	}
	return &node{kind: mappingNode, line: line, entries: []entry{{key: name, line: line, value: config}}}
}

// takesText reports whether what follows a middleware's name is its bare expression
// or template, and not a list of its keys.
func (d *decoder) takesText(name, query string) bool {
	t, known := d.types.Middleware(name)
	if !known {
		return false
	}
	config := t.NewConfig()
	if _, ok := config.(scalarConfig); !ok {
		return false
	}
	typ := reflect.TypeOf(config).Elem()
	key, _, _ := strings.Cut(query, "=")
	return typ.Kind() != reflect.Struct || !slices.Contains(keysOf(typ), key)
}

// keysOf lists the keys of a config, aliases too.
func keysOf(t reflect.Type) (keys []string) {
	for _, f := range fieldsOf(t) {
		keys = append(keys, f.name)
		if f.alias != "" {
			keys = append(keys, f.alias)
		}
	}
	return keys
}

func (d *decoder) uriEndpoint(text string, side Side, line int) (entry, bool) {
	refuse := func(msg, hint string) (entry, bool) {
		d.failAt(line, 0, "", msg, hint)
		return entry{}, false
	}
	if text == "" {
		return refuse("is empty", "a path or a URI, see mqbctl help copy")
	}
	config := &node{kind: mappingNode, line: line}
	set := func(key, value string) {
		if value != "" {
			d.parameter(config, key, value, line)
		}
	}
	m := schemePattern.FindStringSubmatch(text)
	if m == nil {
		// A path as it stands, up to a query. A glob's ? is written %3F, as file:.
		path, query, _ := strings.Cut(text, "?")
		for key, value := range parameters(query) {
			d.parameter(config, key, value, line)
		}
		config.entries = append(config.entries, entry{key: "path", line: line, value: &node{kind: scalarNode, text: d.interpolated(path, line), replaced: true, line: line}})
		d.guessFormat(config, side, line)
		return entry{key: "file", line: line, value: config}, true
	}
	name := strings.ToLower(m[1])
	rest, query, _ := strings.Cut(text[len(m[0]):], "?")
	authority, path := "", rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		i := strings.IndexByte(after+"/", '/')
		authority, path = after[:i], after[i:]
	}
	s, ok := schemes[name]
	t, known := d.types.Endpoint(cmp.Or(s.endpoint, name))
	switch {
	case slices.Contains(nested, name):
		return refuse(fmt.Sprintf("a nested endpoint (%s) is not supported yet", name), "")
	case !ok && known:
		s = scheme{endpoint: name} // name:?key=value
	case !ok && slices.Contains(dialectEndpoints, name):
		return refuse(fmt.Sprintf("endpoint %q is not supported yet", name), "")
	case !ok:
		names := slices.Sorted(func(yield func(string) bool) {
			for k, v := range schemes {
				if _, have := d.types.Endpoint(v.endpoint); have && !yield(k) {
					return
				}
			}
		})
		return refuse(fmt.Sprintf("unknown scheme %q", name), cmp.Or(didYouMean(name, names), "a file with a colon in its name is written with ./ before it"))
	case !known:
		return refuse(fmt.Sprintf("endpoint %q is not supported yet", s.endpoint), "")
	}
	if s.driver && rest != "" {
		query = d.driverURL(config, t, text[:len(m[0])]+rest, query, line)
	} else if s.place != nil {
		s.place(set, authority, path)
	} else if rest != "" {
		return refuse(fmt.Sprintf("%s: takes nothing before its query", name), name+":?key=value")
	}
	for key, value := range parameters(query) {
		d.parameter(config, key, value, line)
	}
	if s.endpoint == "file" {
		d.guessFormat(config, side, line)
	}
	return entry{key: s.endpoint, line: line, value: config}, true
}

// driverURL sets url to a driver's own URL, with the keys that the endpoint does
// not have, and returns the others. One that is nearly a key of the endpoint is
// refused: the driver would take it for an option of its own.
func (d *decoder) driverURL(config *node, t EndpointType, base, query string, line int) (ours string) {
	var own []string
	if typ := reflect.TypeOf(t.NewConfig()).Elem(); typ.Kind() == reflect.Struct {
		own = keysOf(typ)
	}
	var mine, theirs []string
	for pair := range strings.SplitSeq(query, "&") {
		key, _, _ := strings.Cut(pair, "=")
		first, _, _ := strings.Cut(key, ".")
		switch {
		case pair == "":
		case slices.Contains(own, first), slices.Contains(t.Reserved, key):
			mine = append(mine, pair)
		case nearest(key, own) != "":
			d.failAt(line, 0, "", fmt.Sprintf("unknown key %q", key), didYouMean(key, own))
		default:
			theirs = append(theirs, pair)
		}
	}
	if len(theirs) > 0 {
		base += "?" + strings.Join(theirs, "&")
	}
	config.entries = append(config.entries, entry{key: "url", line: line, value: &node{kind: scalarNode, text: d.interpolated(base, line), replaced: true, line: line}})
	return strings.Join(mine, "&")
}

// parameters yields the pairs of a query in their order; a key alone is true.
func parameters(query string) func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		for pair := range strings.SplitSeq(query, "&") {
			if pair == "" {
				continue
			}
			key, value, ok := strings.Cut(pair, "=")
			if !ok {
				value = "true"
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

// parameter sets one key of a config; dots lead into mappings.
func (d *decoder) parameter(config *node, key, value string, line int) {
	v := &node{kind: scalarNode, text: d.uriValue(value, line), replaced: true, line: line}
	if first, rest, dotted := strings.Cut(key, "."); dotted {
		if config.find(first) == nil {
			config.entries = append(config.entries, entry{key: first, line: line, value: &node{kind: mappingNode, line: line}})
		}
		e := config.find(first)
		d.structure(e.value)
		if e.value.kind == mappingNode {
			config, key = e.value, rest
		}
	}
	if config.find(key) != nil {
		d.failAt(line, 0, key, "is there twice", "keep one of them")
		return
	}
	config.entries = append(config.entries, entry{key: key, line: line, value: v})
}

// uriValue decodes a part of a URI.
func (d *decoder) uriValue(s string, line int) string {
	out, err := url.PathUnescape(s)
	if err != nil {
		// A percent sign that escapes nothing stands for itself.
		out = s
	}
	return d.interpolated(out, line)
}

func (d *decoder) interpolated(s string, line int) string {
	out, _, err := interpolate(s, d.opts.LookupEnv)
	if err != nil {
		d.failAt(line, 0, "", err.Error(), interpolationHint(err))
	}
	if !utf8.ValidString(out) {
		d.failAt(line, 0, "", "is not UTF-8", "")
	}
	return out
}

// compressed are the endings of paths from which the file endpoint takes how they
// are compressed.
var compressed = []string{".gz", ".zst", ".lz4"}

// guessFormat fills in what the ending of a path says, where the URI does not: csv
// for .csv and .tsv, else raw, since copies move records as they stand. A
// destination that ends in a slash is a directory of parts.
func (d *decoder) guessFormat(config *node, side Side, line int) {
	e := config.find("path")
	if e == nil {
		return
	}
	set := func(key, value string) {
		if config.find(key) == nil {
			d.parameter(config, key, value, line)
		}
	}
	name := strings.ToLower(e.value.text)
	if slices.Contains(compressed, path.Ext(name)) {
		name = strings.TrimSuffix(name, path.Ext(name))
	}
	switch ext := path.Ext(name); {
	case config.find("format") != nil:
	case ext == ".csv" || ext == ".tsv":
		set("format", "csv")
		if csv := config.find("csv"); ext == ".tsv" && (csv == nil || csv.value.kind == mappingNode && csv.value.find("separator") == nil) {
			d.parameter(config, "csv.separator", "tab", line)
		}
	default:
		set("format", "raw")
	}
	if side == Output && strings.HasSuffix(name, "/") {
		set("name_by", "source_position")
	}
}
