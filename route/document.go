package route

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Summarizer is implemented by a config that has more to say in the
// documentation than its fields do: a paragraph of Markdown.
type Summarizer interface{ Summary() string }

// Document writes docs/configuration.md from the types themselves: every key
// with its type, default and meaning, so that the page cannot differ from what
// the decoder does.
func Document(types Types) string {
	var p page
	p.text(documentHead)
	p.text("## Route keys\n\n| Key | Takes | Default | Meaning |\n|---|---|---|---|")
	p.row("`input`", "an endpoint", "required", "Where records come from.")
	p.row("`output`", "an endpoint", "`null`", "Where they go. Without one they are discarded.")
	p.fields(reflect.TypeFor[routeKeys](), "")
	p.text("\nRefused as not supported yet: " + codeList(unsupportedRouteKeys) + ".")
	p.text("\n" + storesDocument())

	p.text("\n## Endpoints")
	for _, name := range types.EndpointNames() {
		t, _ := types.Endpoint(name)
		p.text(fmt.Sprintf("\n### `%s`\n\n%s", name, sides(t.Source != nil, t.Sink != nil)))
		p.config(t.NewConfig(), t.Reserved)
	}
	p.text("\nRefused as not supported yet: " + codeList(missing(dialectEndpoints, types.EndpointNames())) + ".")

	p.text("\n## Middlewares\n\nOn an input the first one listed is the outermost, on an output the last one. So a message passes the last one listed first on an input, and on an output as well.")
	for _, name := range types.MiddlewareNames() {
		t, _ := types.Middleware(name)
		p.text(fmt.Sprintf("\n### `%s`\n\n%s", name, sides(t.Input, t.Output)))
		p.config(t.NewConfig(), t.Reserved)
	}
	p.text("\nRefused as not supported yet: " + codeList(missing(dialectMiddlewares, types.MiddlewareNames())) + ".")
	return p.b.String()
}

const documentHead = `# Configuration

<!-- Generated from the Go types; see route.Document. -->

A file is a mapping of routes by name under ` + "`routes:`" + `, or the same mapping at top level, or one bare route (named after the file):

` + "```yaml" + `
routes:
  orders:
    input:
      kafka: {url: "broker:9092", topic: orders}
      middlewares:
        - filter: country == "DE" && amount > 100
    output:
      file: {path: /data/orders, name_by: source_position, format: raw}
` + "```" + `

An endpoint is one name with its keys, and maybe ` + "`middlewares`" + ` beside it. Unknown keys, wrong types, keys that stand twice and keys that are not supported yet are errors with file, line and column; all of them are reported at once. A file may have 4 MiB.

**Variables** are replaced while the file is loaded: ` + "`${NAME}`" + ` must be set, ` + "`${NAME:-default}`" + ` need not be and also covers an empty one.

**Overrides** are variables that set one key each, over what the file says, wherever ` + "`mqbctl` or `mqbd`" + ` reads one: ` + "`MQB__ORDERS__BATCH_SIZE=100`, `MQB__ORDERS__INPUT__KAFKA__URL=other:9092`" + `. After ` + "`MQB__`" + ` stand the route's name and the keys, two underscores between them, in capitals or not; another sign than letters, digits and underscores is written as an underscore; an entry of a list is its index from 0. The value has the type of its key: plain words for a list are separated by commas, other lists and mappings are JSON. An override that finds no place is an error with its name, and so is a value that does not fit.

**Editors** complete and check a file with the schema that ` + "`mqbctl schema > mqb.schema.json`" + ` writes, named in the file's first line: ` + "`# yaml-language-server: $schema=./mqb.schema.json`" + `.

**Templates** are filled in for each message: ` + "`${payload:a.b.0}`" + `, ` + "`${metadata:key}`" + `, ` + "`${message:id}`" + `, and ` + "`${env:NAME}`" + ` once at start. ` + "`${payload:a | raw}`" + ` splices a value into a JSON body without escapes, ` + "`$${…}`" + ` stands for ` + "`${…}`" + `. A dot that belongs to a name is written ` + "`\\.`" + `.

**Durations** have a unit (` + "`500ms`, `5s`, `1m30s`" + `), save for keys that end in ` + "`_ms`" + `: those take a whole number. **Sizes** are numbers of bytes or have a unit (` + "`64MiB`, `1MB`" + `).
`

type page struct{ b strings.Builder }

func (p *page) text(s string) { p.b.WriteString(s + "\n") }

func (p *page) row(cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	p.text("| " + strings.Join(cells, " | ") + " |")
}

func (p *page) config(config any, reserved []string) {
	if s, ok := config.(Summarizer); ok {
		p.text("\n" + s.Summary())
	}
	t := reflect.TypeOf(config).Elem()
	if t.Kind() == reflect.Struct && len(fieldsOf(t)) > 0 {
		if _, ok := config.(scalarConfig); ok {
			p.text("\nMay be written as a single value.")
		}
		p.text("\n| Key | Takes | Default | Meaning |\n|---|---|---|---|")
		p.fields(t, "")
	}
	if len(reserved) > 0 {
		p.text("\nRefused as not supported yet: " + codeList(reserved) + ".")
	}
}

func (p *page) fields(t reflect.Type, prefix string) {
	for _, f := range fieldsOf(t) {
		inner := f.typ
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		key := prefix + f.name
		if inner.Kind() == reflect.Struct && !reflect.PointerTo(inner).Implements(textType) && len(fieldsOf(inner)) > 0 {
			if f.doc != "" {
				p.row("`"+key+"`", "a mapping", "", sentence(f.doc))
			}
			p.fields(inner, key+".")
			continue
		}
		takes := kindName(f.typ, f.name)
		if f.enum != nil {
			takes = codeList(f.enum)
		}
		takes += bounds(f)
		doc := sentence(f.doc)
		if f.alias != "" {
			doc += fmt.Sprintf(" Also written as `%s`.", f.alias)
		}
		if f.later != nil {
			doc += " Not supported yet: " + codeList(f.later) + "."
		}
		if f.secret {
			doc += " Masked wherever it is shown."
		}
		p.row("`"+key+"`", takes, defaultText(f), strings.TrimSpace(doc))
	}
}

func defaultText(f field) string {
	switch {
	case f.required:
		return "required"
	case !f.hasDefault || f.def == "":
		return ""
	}
	return "`" + f.def + "`"
}

func bounds(f field) string {
	show := func(s string) string {
		if f.typ == durationType {
			if d, err := time.ParseDuration(s); err == nil && durationUnit(f.name) == time.Millisecond {
				return fmt.Sprint(d.Milliseconds())
			}
		}
		return s
	}
	switch {
	case f.min != "" && f.max != "":
		return fmt.Sprintf(", %s to %s", show(f.min), show(f.max))
	case f.min != "":
		return ", at least " + show(f.min)
	case f.max != "":
		return ", at most " + show(f.max)
	}
	return ""
}

// sentence ends a doc tag as a sentence does. Its beginning stays: it may be the
// name of a value.
func sentence(s string) string {
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

func sides(input, output bool) string {
	switch {
	case input && output:
		return "Input and output."
	case input:
		return "Input only."
	}
	return "Output only."
}

func codeList(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return "`" + strings.Join(names, "`, `") + "`"
}

// missing lists the names of all that are not in have.
func missing(all, have []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(have, name) })
}
