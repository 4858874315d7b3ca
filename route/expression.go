package route

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/jsontext"
	"github.com/mqbridge/mqb/message"
)

// Expression is a compiled expression that makes a JSON object of a message:
//
//	{id: number(id), name: upper(first_name), tier: attributes.tier ?? "none", tags: [country, meta.kind]}
//
// Fields, metadata, comparisons and what is absent follow the rules of Filter. A
// field that is passed on keeps its text, so no digit of a number changes. On top
// of a filter's forms there are objects, lists, condition ? a : b, a ?? b (b where
// a is null or absent) and the functions
//
//	number(x) string(x) json(x) len(x) lower(x) upper(x) trim(x)
//	replace(x, old, new) concat(a, b, …) abs(x) floor(x) ceil(x) round(x)
//
// which give null where x is not of their kind. Arithmetic of whole numbers with a
// whole result is exact in 64 bits; other arithmetic is done in floating point.
// Immutable and safe for concurrent use.
type Expression struct {
	emit    emitFunc
	payload bool
}

// emitFunc appends the JSON text of a value.
type emitFunc func(dst []byte, in evalInput) ([]byte, error)

// CompileExpression compiles an expression.
func CompileExpression(expression string) (*Expression, error) {
	root, err := parseExpression(expression)
	if err != nil {
		return nil, err
	}
	c := filterCompiler{rich: true}
	switch root.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.BoolNode, *ast.NilNode, *ast.ArrayNode, *ast.UnaryNode:
		c.fail(root, "must make an object: {name: …}")
	}
	emit := c.emit(root)
	if c.err != nil {
		return nil, c.err
	}
	return &Expression{emit: emit, payload: c.payload}, nil
}

// UsesPayload reports whether the expression names a field of the payload; one
// that does not never looks at it.
func (x *Expression) UsesPayload() bool { return x.payload }

// Append appends the object that the expression makes of message i of b, whose
// payload is taken to be payload: valid JSON where UsesPayload. The error says
// what is wrong with this message; dst is then undefined behind its old length.
func (x *Expression) Append(dst, payload []byte, b *message.Batch, i int) ([]byte, error) {
	in := evalInput{b: b, i: i}
	if x.payload {
		in.payload = strings.TrimSpace(view(payload))
		if len(in.payload) < 2 || in.payload[0] != '{' {
			return dst, errNotObject
		}
	}
	mark := len(dst)
	dst, err := x.emit(dst, in)
	if err == nil && dst[mark] != '{' {
		err = fmt.Errorf("the expression made %s, not an object", gjson.ParseBytes(dst[mark:]).Type)
	}
	return dst, err
}

// emit compiles a node to its JSON text.
func (c *filterCompiler) emit(n ast.Node) emitFunc {
	switch n := n.(type) {
	case *ast.MapNode:
		return c.emitObject(n)
	case *ast.ArrayNode:
		items := make([]emitFunc, len(n.Nodes))
		for i, item := range n.Nodes {
			items[i] = c.emit(item)
		}
		return func(dst []byte, in evalInput) (_ []byte, err error) {
			dst = append(dst, '[')
			for i, item := range items {
				if i > 0 {
					dst = append(dst, ',')
				}
				if dst, err = item(dst, in); err != nil {
					return dst, err
				}
			}
			return append(dst, ']'), nil
		}
	case *ast.ConditionalNode:
		condition, yes, no := c.condition(n.Cond), c.emit(n.Exp1), c.emit(n.Exp2)
		return func(dst []byte, in evalInput) ([]byte, error) {
			v, err := condition(in)
			switch {
			case err != nil:
				return dst, err
			case v.truth:
				return yes(dst, in)
			}
			return no(dst, in)
		}
	case *ast.BinaryNode:
		if n.Operator == "??" {
			left, right := c.emit(n.Left), c.emit(n.Right)
			return func(dst []byte, in evalInput) ([]byte, error) {
				mark := len(dst)
				dst, err := left(dst, in)
				if err == nil && string(dst[mark:]) == "null" {
					return right(dst[:mark], in)
				}
				return dst, err
			}
		}
	case *ast.IdentifierNode, *ast.MemberNode:
		if path := c.fieldPath(n); path != "" {
			// As it stands in the payload, whatever it is.
			return func(dst []byte, in evalInput) ([]byte, error) {
				if r := gjson.Get(in.payload, path); r.Exists() {
					return append(dst, r.Raw...), nil
				}
				return append(dst, "null"...), nil
			}
		}
	}
	eval := c.value(n)
	return func(dst []byte, in evalInput) ([]byte, error) {
		v, err := eval(in)
		if err != nil {
			return dst, err
		}
		return v.appendJSON(dst), nil
	}
}

func (c *filterCompiler) emitObject(n *ast.MapNode) emitFunc {
	type member struct {
		key   string
		value emitFunc
	}
	members := make([]member, 0, len(n.Pairs))
	seen := map[string]bool{}
	for _, p := range n.Pairs {
		pair := p.(*ast.PairNode)
		key, ok := pair.Key.(*ast.StringNode)
		switch {
		case !ok:
			return c.failObject(pair.Key, "a name must be fixed")
		case seen[key.Value]:
			return c.failObject(pair.Key, "%s stands twice", key.Value)
		}
		seen[key.Value] = true
		text := string(append(appendEscaped([]byte{'"'}, key.Value), '"', ':'))
		if len(members) > 0 {
			text = "," + text
		}
		members = append(members, member{text, c.emit(pair.Value)})
	}
	return func(dst []byte, in evalInput) (_ []byte, err error) {
		dst = append(dst, '{')
		for _, m := range members {
			if dst, err = m.value(append(dst, m.key...), in); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	}
}

func (c *filterCompiler) failObject(n ast.Node, format string, args ...any) emitFunc {
	c.fail(n, format, args...)
	return nil
}

// fieldPath is the path of a node that is a payload field, else "".
func (c *filterCompiler) fieldPath(n ast.Node) string {
	names, root := memberNames(n)
	if names == nil || root == "meta" || len(names) == 1 && root == "null" {
		return ""
	}
	path, err := payloadPath(selectorOf(names))
	if err != nil {
		return ""
	}
	c.payload = true
	return path
}

// appendJSON appends the operand as JSON.
func (v operand) appendJSON(dst []byte) []byte {
	switch v.kind {
	case isBool:
		return strconv.AppendBool(dst, v.truth)
	case isText:
		return append(appendEscaped(append(dst, '"'), v.text), '"')
	case isOther:
		return append(dst, v.text...)
	case isNumber:
		if jsontext.IsNumber(bytesOf(v.text)) {
			return append(dst, v.text...)
		}
		return append(dst, v.numberText()...)
	}
	return append(dst, "null"...)
}

// numberText writes a number that has no text of its own.
func (v operand) numberText() string {
	if v.exact {
		return strconv.FormatInt(v.whole, 10)
	}
	if a := math.Abs(v.number); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.FormatFloat(v.number, 'e', -1, 64)
	}
	return strconv.FormatFloat(v.number, 'f', -1, 64)
}

// toText makes a text of a text, a number or a truth; anything else is null.
func (v operand) toText() operand {
	switch v.kind {
	case isNumber:
		if v.text == "" {
			v.text = v.numberText()
		}
		return operand{kind: isText, text: v.text}
	case isBool:
		return operand{kind: isText, text: strconv.FormatBool(v.truth)}
	case isText:
		return v
	}
	return operand{}
}
