package route

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/message"
)

// Template is a text with ${namespace:selector} tokens, compiled once:
//
//	${payload:a.b.0}  a field of a JSON payload; a number indexes an array
//	${metadata:key}   a metadata value
//	${message:id}     the business id (metadata mqb.id), else MessageID
//	${env:NAME}       a variable of this process, read when the template is compiled
//
// "| raw" before the brace splices a value into a JSON body without escapes,
// $${…} stands for ${…}, and an unknown namespace is left as it is written.
// A Template is immutable and safe for concurrent use.
type Template struct {
	parts  []templatePart
	tokens []Token
}

// templatePart is a literal, or the token at index token.
type templatePart struct {
	text  string
	token int // -1: literal
}

// RenderOptions say how a template is rendered.
type RenderOptions struct {
	// JSON: the template is a JSON body, so values are escaped as the inside of
	// a JSON string unless their token says raw.
	JSON bool
	// Identity goes into made ids, see Token.Value.
	Identity string
}

// CompileTemplate compiles a template.
func CompileTemplate(s string) (*Template, error) { return CompileTemplateEnv(s, osEnv) }

// CompileTemplateEnv is CompileTemplate with the environment of ${env:NAME}.
func CompileTemplateEnv(s string, env LookupEnv) (*Template, error) {
	t := &Template{}
	literal := func(text string) {
		if n := len(t.parts); n > 0 && t.parts[n-1].token < 0 {
			t.parts[n-1].text += text
		} else if text != "" {
			t.parts = append(t.parts, templatePart{text: text, token: -1})
		}
	}
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			literal(s)
			return t, nil
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 0 {
			if inner, _, _ := strings.Cut(s[i+2:], ":"); isNamespace(inner) {
				return nil, fmt.Errorf("template: %s is never closed", s[i:])
			}
			literal(s)
			return t, nil
		}
		end += i
		if i > 0 && s[i-1] == '$' {
			literal(s[:i-1])
			literal(s[i : end+1])
			s = s[end+1:]
			continue
		}
		literal(s[:i])
		token, err := compileToken(s[i+2:end], env)
		switch {
		case errors.Is(err, errNotToken):
			literal("${")
			s = s[i+2:]
			continue
		case err != nil:
			return nil, fmt.Errorf("template: %w", err)
		case token.Namespace == "env":
			literal(token.constant)
		default:
			t.parts = append(t.parts, templatePart{token: len(t.tokens)})
			t.tokens = append(t.tokens, token)
		}
		s = s[end+1:]
	}
}

// Tokens are the template's tokens in order; env tokens are text by now.
func (t *Template) Tokens() []Token { return t.tokens }

// Single returns the token of a template that consists of exactly one, so that
// its value can keep its type.
func (t *Template) Single() (ns, selector string, ok bool) {
	if len(t.parts) != 1 || len(t.tokens) != 1 {
		return "", "", false
	}
	return t.tokens[0].Namespace, t.tokens[0].Selector, true
}

// Append renders the template for message i of b. A token that finds nothing is
// rendered as nothing and makes ok false; the rest is rendered all the same.
func (t *Template) Append(dst []byte, b *message.Batch, i int, o RenderOptions) (out []byte, ok bool) {
	ok = true
	for _, p := range t.parts {
		if p.token < 0 {
			dst = append(dst, p.text...)
			continue
		}
		var found bool
		dst, found = t.tokens[p.token].appendText(dst, b, i, o)
		ok = ok && found
	}
	return dst, ok
}

// Value is the typed value of a Single template, see Token.Value; any other
// template gives its text.
func (t *Template) Value(b *message.Batch, i int, identity string) (v gjson.Result, ok bool) {
	if _, _, single := t.Single(); single {
		return t.tokens[0].Value(b, i, identity)
	}
	text, ok := t.Append(nil, b, i, RenderOptions{Identity: identity})
	return gjson.Result{Type: gjson.String, Str: string(text)}, ok
}
