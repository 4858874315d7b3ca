package route

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SchemaDialect is what Schema is written in.
const SchemaDialect = "https://json-schema.org/draft/2020-12/schema"

// Schema describes configuration files as a JSON schema (draft 2020-12), made from
// the same types and tags as the decoder and the documentation: what the decoder
// accepts is valid, and what it refuses for its keys, types, names and bounds is
// not. Rules that span keys, and bounds of texts with a unit, are the decoder's
// alone. The result is made of what encoding/json makes: it can be encoded as it is.
func Schema(types Types) map[string]any {
	s := schemaMaker{types: types, defs: map[string]any{}}
	s.defs["variable"] = object{
		"type": "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*(:-|\})`,
		"description": "A variable of the environment, ${NAME} or ${NAME:-default}, filled in when the file is loaded.",
	}
	s.defs["input"], s.defs["output"] = s.endpoint(Input), s.endpoint(Output)
	route := s.fields(reflect.TypeFor[routeKeys]())
	properties := route["properties"].(object)
	properties["input"] = object{"$ref": "#/$defs/input", "description": "Where records come from."}
	properties["output"] = object{"$ref": "#/$defs/output", "description": "Where they go. Without one they are discarded."}
	route["required"] = []any{"input"}
	s.defs["route"] = route
	s.defs["routes"] = object{
		"type": "object", "minProperties": 1, "additionalProperties": object{"$ref": "#/$defs/route"},
		"propertyNames": object{"minLength": 1, "maxLength": MaxNameBytes},
	}
	looksLikeRoute := object{"type": "object", "anyOf": []any{object{"required": []any{"input"}}, object{"required": []any{"output"}}}}
	application := object{}
	for _, key := range applicationKeys {
		application[key] = true
	}
	named := object{
		"properties": application, "additionalProperties": object{"$ref": "#/$defs/route"},
		"propertyNames": object{"minLength": 1, "maxLength": MaxNameBytes},
		"not":           object{"propertyNames": object{"enum": list(applicationKeys)}},
	}
	under := object{
		"properties":           merged(application, object{"routes": object{"$ref": "#/$defs/routes"}}),
		"additionalProperties": object{"not": looksLikeRoute},
	}
	return object{
		"$schema": SchemaDialect, "title": "mqb", "description": "Routes of mqb: a map under routes:, the same map at top level, or one bare route.",
		"$defs": s.defs, "type": "object",
		"if": object{"required": []any{"routes"}}, "then": under,
		"else": object{"if": looksLikeRoute, "then": object{"$ref": "#/$defs/route"}, "else": named},
	}
}

type object = map[string]any

func list(words []string) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = w
	}
	return out
}

func merged(a, b object) object {
	out := make(object, len(a)+len(b))
	for _, m := range []object{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

type schemaMaker struct {
	types Types
	defs  object
}

// text is what a config that is a single value may be.
var text = object{"type": []any{"string", "number", "boolean"}}

// endpoint describes one side of a route.
func (s schemaMaker) endpoint(side Side) object {
	properties := object{"middlewares": s.middlewares(side)}
	var one, bare []any
	for _, name := range s.types.EndpointNames() {
		t, _ := s.types.Endpoint(name)
		if side == Input && t.Source == nil || side == Output && t.Sink == nil {
			continue
		}
		def := string(side) + "." + name
		config, empty := s.config(t.NewConfig())
		if side == Input {
			s.liftStore(config)
		}
		s.defs[def] = config
		properties[name] = object{"$ref": "#/$defs/" + def}
		one = append(one, object{"required": []any{name}})
		if empty {
			bare = append(bare, name)
		}
	}
	forms := []any{object{"type": "object", "properties": properties, "additionalProperties": false, "oneOf": one}}
	if len(bare) > 0 {
		forms = append(forms, object{"enum": bare})
	}
	if side == Output {
		forms = append(forms, object{"type": "null"})
	}
	return object{"anyOf": forms}
}

// liftStore allows an input's own checkpoint_store, which is read as the route's.
func (s schemaMaker) liftStore(config object) {
	forms := []any{config}
	if any, ok := config["anyOf"].([]any); ok {
		forms = any
	}
	for _, f := range forms {
		if p, ok := f.(object)["properties"].(object); ok && p["checkpoint_store"] == nil {
			p["checkpoint_store"] = object{"type": []any{"string", "null"}, "description": "The route's checkpoint_store."}
		}
	}
}

func (s schemaMaker) middlewares(side Side) object {
	properties := object{}
	var bare []any
	for _, name := range s.types.MiddlewareNames() {
		t, _ := s.types.Middleware(name)
		if side == Input && !t.Input || side == Output && !t.Output {
			continue
		}
		config, empty := s.config(t.NewConfig())
		s.defs["middleware."+name] = config
		properties[name] = object{"$ref": "#/$defs/middleware." + name}
		if empty {
			bare = append(bare, name)
		}
	}
	forms := []any{object{"type": "object", "properties": properties, "additionalProperties": false, "minProperties": 1, "maxProperties": 1}}
	if len(bare) > 0 {
		forms = append(forms, object{"enum": bare})
	}
	return object{"type": []any{"array", "null"}, "items": object{"anyOf": forms}}
}

// config describes what stands behind a name; empty: nothing may.
func (s schemaMaker) config(config any) (schema object, empty bool) {
	t := reflect.TypeOf(config).Elem()
	_, scalar := config.(scalarConfig)
	if t.Kind() != reflect.Struct || scalar && len(fieldsOf(t)) == 0 {
		return merged(text, s.summary(config)), false
	}
	fields := s.fields(t)
	empty = fields["required"] == nil && fields["allOf"] == nil
	forms := []any{fields}
	if scalar {
		forms = append(forms, text)
	}
	if empty {
		forms = append(forms, object{"type": "null"})
	}
	if len(forms) == 1 {
		return merged(fields, s.summary(config)), empty
	}
	return merged(object{"anyOf": forms}, s.summary(config)), empty
}

func (schemaMaker) summary(config any) object {
	if d, ok := config.(Summarizer); ok {
		return object{"description": d.Summary()}
	}
	return object{}
}

// fields describes a mapping with the keys of a struct.
func (s schemaMaker) fields(t reflect.Type) object {
	properties := object{}
	var required, rules []any
	for _, f := range fieldsOf(t) {
		properties[f.name] = s.field(f, f.name)
		switch {
		case f.alias == "" && f.required:
			required = append(required, f.name)
		case f.alias != "":
			properties[f.alias] = s.field(f, f.alias)
			both := object{"required": []any{f.name, f.alias}}
			rules = append(rules, object{"not": both})
			if f.required {
				rules = append(rules, object{"anyOf": []any{object{"required": []any{f.name}}, object{"required": []any{f.alias}}}})
			}
		}
	}
	out := object{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	if rules != nil {
		out["allOf"] = rules
	}
	return out
}

// field describes the value of one key.
func (s schemaMaker) field(f field, key string) object {
	out := s.value(f.typ, key, f)
	if f.scalar {
		out = object{"anyOf": []any{out, out["items"]}}
	}
	if !f.required {
		out = orNull(out)
	}
	if f.doc != "" {
		out["description"] = sentence(f.doc)
	}
	if f.secret {
		out["writeOnly"] = true
	}
	if d, ok := defaultValue(f, key); ok {
		out["default"] = d
	}
	return out
}

func orNull(schema object) object {
	if forms, ok := schema["anyOf"].([]any); ok && len(schema) == 1 {
		return object{"anyOf": append(slices.Clone(forms), object{"type": "null"})}
	}
	if t, ok := schema["type"].(string); ok && schema["allOf"] == nil {
		return merged(schema, object{"type": []any{t, "null"}})
	}
	if len(schema) == 0 {
		return object{}
	}
	return object{"anyOf": []any{schema, object{"type": "null"}}}
}

// Texts with a unit, as far as a pattern goes.
const (
	durationPattern = `^[-+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	bytesPattern    = `^[0-9][0-9.,]* ?([kKmMgGtTpPeE]?[iI]?[bB]?)$`
)

// value describes a type. Of f, bounds and enum count.
func (s schemaMaker) value(t reflect.Type, key string, f field) object {
	if t.Kind() == reflect.Pointer {
		return s.value(t.Elem(), key, f)
	}
	orVariable := func(schema object) object {
		return object{"anyOf": []any{schema, object{"$ref": "#/$defs/variable"}}}
	}
	switch t {
	case durationType:
		unit := durationUnit(key)
		if unit == 0 {
			return orVariable(object{"type": "string", "pattern": durationPattern})
		}
		n := object{"type": "integer"}
		for name, bound := range map[string]string{"minimum": f.min, "maximum": f.max} {
			if d, err := time.ParseDuration(bound); err == nil {
				n[name] = float64(d) / float64(unit)
			}
		}
		return orVariable(n)
	case bytesType:
		n := object{"type": "number", "minimum": 0}
		for name, bound := range map[string]string{"minimum": f.min, "maximum": f.max} {
			if b, err := ParseBytes(bound); err == nil && bound != "" {
				n[name] = int64(b)
			}
		}
		return object{"anyOf": []any{n, object{"type": "string", "pattern": bytesPattern}, object{"$ref": "#/$defs/variable"}}}
	case endpointType:
		return object{"$ref": "#/$defs/output"}
	case orderedType:
		return object{"type": "object"}
	}
	if reflect.PointerTo(t).Implements(textType) {
		return merged(text, nil)
	}
	switch t.Kind() {
	case reflect.String:
		switch {
		case f.enum != nil:
			return orVariable(object{"enum": list(f.enum)})
		case f.required:
			return object{"type": "string", "minLength": 1}
		}
		return object{"type": "string"}
	case reflect.Bool:
		return orVariable(object{"type": "boolean"})
	case reflect.Float32, reflect.Float64:
		return orVariable(numberBounds(object{"type": "number"}, f))
	case reflect.Struct:
		return s.fields(t)
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.value(t.Elem(), "", field{})}
	case reflect.Slice:
		return object{"type": "array", "items": s.value(t.Elem(), key, field{})}
	case reflect.Array:
		return object{"type": "array", "items": s.value(t.Elem(), key, field{}), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Interface:
		return object{}
	}
	n := object{"type": "integer"}
	if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr {
		n["minimum"] = 0
	}
	return orVariable(numberBounds(n, f))
}

func numberBounds(schema object, f field) object {
	for name, bound := range map[string]string{"minimum": f.min, "maximum": f.max} {
		if x, err := strconv.ParseFloat(bound, 64); err == nil {
			schema[name] = x
		}
	}
	return schema
}

// defaultValue is the default of a field as a file would have it under key.
func defaultValue(f field, key string) (any, bool) {
	if !f.hasDefault {
		return nil, false
	}
	t := f.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == durationType {
		unit, written := durationUnit(key), durationUnit(f.name)
		if written == 0 {
			d, err := time.ParseDuration(f.def)
			if unit == 0 || err != nil {
				return f.def, true
			}
			return int64(d / unit), true
		}
		n, err := strconv.ParseInt(f.def, 10, 64)
		if unit == 0 {
			return (time.Duration(n) * written).String(), err == nil
		}
		return n * int64(written/unit), err == nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return f.def == "true", true
	case reflect.Slice:
		return list(strings.Split(f.def, ",")), true
	case reflect.String:
		return f.def, true
	}
	if n, err := strconv.ParseInt(f.def, 10, 64); err == nil {
		return n, true
	}
	if x, err := strconv.ParseFloat(f.def, 64); err == nil {
		return x, true
	}
	return f.def, true
}
