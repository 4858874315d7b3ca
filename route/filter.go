package route

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/message"
)

// Filter is a compiled yes-or-no expression over one message:
//
//	country == "DE" && amount > 100 and meta.kind not in ["test", "probe"]
//
// Bare and dotted names are fields of the JSON payload, meta.x is a metadata
// value and always text. What is absent is null: equal to null only, and neither
// below nor above anything. Comparing with a numeric literal makes a number of
// the other side ("150" > 100 holds); number(x) does so anywhere; what is no
// number becomes null. Otherwise values of different types are not equal.
//
// The syntax is parsed by expr-lang/expr; the few forms above are evaluated
// here, because its machine wants the whole payload decoded and ends with an
// error where it meets null. Immutable and safe for concurrent use.
type Filter struct {
	eval    evalFunc
	payload bool
}

// maxExpression bounds the text of an expression, because its parser recurses.
const maxExpression = 16 << 10

// CompileFilter compiles an expression.
func CompileFilter(expression string) (*Filter, error) {
	root, err := parseExpression(expression)
	if err != nil {
		return nil, err
	}
	c := filterCompiler{}
	eval := c.condition(root)
	if c.err != nil {
		return nil, c.err
	}
	return &Filter{eval: eval, payload: c.payload}, nil
}

func parseExpression(expression string) (ast.Node, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("expression: longer than %d bytes", maxExpression)
	}
	tree, err := parser.Parse(expression)
	if err != nil {
		var at *file.Error
		if errors.As(err, &at) {
			if at.Message == `unexpected token Operator("=")` {
				at.Message = "= compares nothing, == does"
			}
			return nil, fmt.Errorf("expression: character %d: %s", at.Column+1, at.Message)
		}
		return nil, fmt.Errorf("expression: %w", err)
	}
	return tree.Node, nil
}

// UsesPayload reports whether the expression names a field of the payload; one
// that does not never looks at it.
func (f *Filter) UsesPayload() bool { return f.payload }

var errNotObject = errors.New("the payload is not a JSON object")

// Match evaluates the expression for message i of b. The error says what is
// wrong with this message. It does not allocate, save for JSON strings that hold
// escapes.
func (f *Filter) Match(b *message.Batch, i int) (bool, error) {
	in := evalInput{b: b, i: i}
	if f.payload {
		in.payload = strings.TrimSpace(view(b.Payload(i)))
		if n := len(in.payload); n < 2 || in.payload[0] != '{' || in.payload[n-1] != '}' {
			return false, errNotObject
		}
	}
	v, err := f.eval(in)
	return v.truth && err == nil, err
}

type evalInput struct {
	b       *message.Batch
	i       int
	payload string
}

type evalFunc func(evalInput) (operand, error)

// filterCompiler turns the tree into functions. err is the first error.
type filterCompiler struct {
	// rich allows what only an Expression has.
	rich    bool
	payload bool
	err     error
}

func (c *filterCompiler) fail(n ast.Node, format string, args ...any) evalFunc {
	if c.err == nil {
		c.err = fmt.Errorf("expression: character %d: %s", n.Location().From+1, fmt.Sprintf(format, args...))
	}
	return nil
}

// condition compiles a node whose value must be true or false. null counts as
// false: the field of a flag may be absent.
func (c *filterCompiler) condition(n ast.Node) evalFunc {
	switch x := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ArrayNode:
		return c.fail(n, "is not true or false")
	case *ast.MemberNode:
		if isMeta(x) {
			return c.fail(n, "metadata is text: compare it with something")
		}
	case *ast.BinaryNode:
		if isArithmetic(x.Operator) {
			return c.fail(n, "is a number, not true or false")
		}
	}
	eval := c.value(n)
	return func(in evalInput) (operand, error) {
		v, err := eval(in)
		if err == nil && v.kind != isBool && v.kind != isNull {
			err = fmt.Errorf("%s is not true or false", n)
		}
		return operand{kind: isBool, truth: v.truth}, err
	}
}

func (c *filterCompiler) value(n ast.Node) evalFunc {
	switch n := n.(type) {
	case *ast.NilNode:
		return constant(operand{})
	case *ast.BoolNode:
		return constant(operand{kind: isBool, truth: n.Value})
	case *ast.IntegerNode:
		return constant(operand{kind: isNumber, exact: true, whole: int64(n.Value), number: float64(n.Value)})
	case *ast.FloatNode:
		return constant(operand{kind: isNumber, number: n.Value})
	case *ast.StringNode:
		return constant(operand{kind: isText, text: n.Value})
	case *ast.IdentifierNode:
		if n.Value == "null" {
			return constant(operand{})
		}
		if n.Value == "meta" {
			return c.fail(n, "meta needs a name behind it: meta.kind")
		}
		return c.field(n, n.Value)
	case *ast.MemberNode:
		return c.member(n)
	case *ast.UnaryNode:
		return c.unary(n)
	case *ast.BinaryNode:
		return c.binary(n)
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			return c.call(n, id.Value, n.Arguments)
		}
		return c.fail(n, "this is no function")
	case *ast.BuiltinNode:
		return c.call(n, n.Name, n.Arguments)
	case *ast.ConditionalNode:
		if c.rich {
			return c.conditional(n)
		}
	case *ast.ArrayNode:
		return c.fail(n, "a list can only stand behind in")
	}
	return c.fail(n, "this is not part of filter expressions")
}

func constant(v operand) evalFunc {
	return func(evalInput) (operand, error) { return v, nil }
}

// isMeta reports whether n is meta.x.
func isMeta(n *ast.MemberNode) bool {
	root, ok := n.Node.(*ast.IdentifierNode)
	return ok && root.Value == "meta"
}

// memberNames takes a.b["c.d"] apart; names is nil for anything else. $env["a.b"]
// is a way to write a name that is no identifier.
func memberNames(n ast.Node) (names []string, root string) {
	for {
		switch m := n.(type) {
		case *ast.IdentifierNode:
			root = m.Value
			if root != "$env" {
				names = append(names, root)
			} else if names == nil {
				return nil, ""
			}
			slices.Reverse(names)
			return names, root
		case *ast.MemberNode:
			name, ok := m.Property.(*ast.StringNode)
			if !ok {
				return nil, ""
			}
			names = append(names, name.Value)
			n = m.Node
		default:
			return nil, ""
		}
	}
}

// selectorOf is the selector of payloadPath that means exactly these names.
func selectorOf(names []string) string {
	escape := strings.NewReplacer(`.`, `\.`, `\`, `\\`)
	for i := range names {
		names[i] = escape.Replace(names[i])
	}
	return strings.Join(names, ".")
}

func (c *filterCompiler) member(n *ast.MemberNode) evalFunc {
	names, root := memberNames(n)
	if names == nil {
		at := ast.Node(n)
		for {
			m, ok := at.(*ast.MemberNode)
			if !ok {
				return c.fail(at, "a path begins with a name")
			}
			if _, ok := m.Property.(*ast.StringNode); !ok {
				return c.fail(m.Property, "a path of names only: places in a list cannot be named")
			}
			at = m.Node
		}
	}
	if root == "meta" {
		// The names of metadata may hold dots: kafka.key is one name.
		key := strings.Join(names[1:], ".")
		return func(in evalInput) (operand, error) {
			v, ok := in.b.Meta(in.i, key)
			if !ok {
				return operand{}, nil
			}
			return operand{kind: isText, text: view(v)}, nil
		}
	}
	return c.field(n, selectorOf(names))
}

func (c *filterCompiler) field(n ast.Node, selector string) evalFunc {
	path, err := payloadPath(selector)
	if err != nil {
		return c.fail(n, "%v", err)
	}
	c.payload = true
	return func(in evalInput) (operand, error) {
		r := gjson.Get(in.payload, path)
		v := operandOf(r)
		if r.Type == gjson.Number && v.kind == isNull {
			return v, fmt.Errorf("field %s holds no number that can be calculated with", selector)
		}
		return v, nil
	}
}

// conditional is condition ? a : b.
func (c *filterCompiler) conditional(n *ast.ConditionalNode) evalFunc {
	condition, yes, no := c.condition(n.Cond), c.value(n.Exp1), c.value(n.Exp2)
	return func(in evalInput) (operand, error) {
		v, err := condition(in)
		switch {
		case err != nil:
			return v, err
		case v.truth:
			return yes(in)
		}
		return no(in)
	}
}

func (c *filterCompiler) unary(n *ast.UnaryNode) evalFunc {
	switch n.Operator {
	case "!", "not":
		inner := c.condition(n.Node)
		return func(in evalInput) (operand, error) {
			v, err := inner(in)
			v.truth = !v.truth
			return v, err
		}
	case "-", "+":
		inner, negative := c.value(n.Node), n.Operator == "-"
		return func(in evalInput) (operand, error) {
			v, err := inner(in)
			if negative {
				return v.negated(), err
			}
			return v.toNumber(), err
		}
	}
	return c.fail(n, "%s is not part of filter expressions", n.Operator)
}

func (c *filterCompiler) binary(n *ast.BinaryNode) evalFunc {
	if x, ok := n.Left.(*ast.UnaryNode); ok && misread(x, n) {
		return c.fail(x, "%s is about what stands right behind it, and not about the whole of … %s …: put brackets around that, %[1]s (… %[2]s …)", x.Operator, n.Operator)
	}
	switch n.Operator {
	case "&&", "and", "||", "or":
		left, right := c.condition(n.Left), c.condition(n.Right)
		decided := n.Operator == "||" || n.Operator == "or" // the value that needs no right side
		return func(in evalInput) (operand, error) {
			v, err := left(in)
			if err != nil || v.truth == decided {
				return v, err
			}
			return right(in)
		}
	case "in":
		return c.in(n)
	case "matches":
		return c.matches(n)
	}
	left, right := c.value(n.Left), c.value(n.Right)
	switch n.Operator {
	case "??":
		if c.rich {
			return func(in evalInput) (operand, error) {
				if v, err := left(in); err != nil || v.kind != isNull {
					return v, err
				}
				return right(in)
			}
		}
	case "==", "!=", "<", "<=", ">", ">=":
		return comparison(n.Operator, left, right, isNumeric(n.Left) || isNumeric(n.Right))
	case "contains":
		return textual(left, right, strings.Contains)
	case "startsWith":
		return textual(left, right, strings.HasPrefix)
	case "endsWith":
		return textual(left, right, strings.HasSuffix)
	}
	if isArithmetic(n.Operator) {
		return arithmetic(n.Operator, left, right)
	}
	return c.fail(n, "%s is not part of filter expressions", n.Operator)
}

// misread reports whether whoever wrote "not a in b" meant "not (a in b)": what it
// says is "(not a) in b", which is false whatever a is.
func misread(not *ast.UnaryNode, n *ast.BinaryNode) bool {
	if not.Operator != "not" && not.Operator != "!" {
		return false
	}
	switch n.Operator {
	case "&&", "and", "||", "or", "??":
		return false
	case "==", "!=": // of truths both mean the same
		switch n.Right.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
			return true
		}
		return false
	}
	return true
}

func isArithmetic(operator string) bool {
	switch operator {
	case "+", "-", "*", "/", "%":
		return true
	}
	return false
}

// isNumeric reports whether n is a number as written.
func isNumeric(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return true
	case *ast.UnaryNode:
		return (n.Operator == "-" || n.Operator == "+") && isNumeric(n.Node)
	}
	return false
}

func comparison(operator string, left, right evalFunc, numeric bool) evalFunc {
	return both(left, right, func(v, w operand) operand {
		if numeric {
			v, w = v.toNumber(), w.toNumber()
		}
		order, comparable := v.compare(w)
		ordered := comparable && v.kind != isNull && v.kind != isOther
		var truth bool
		switch operator {
		case "==":
			truth = comparable && order == 0
		case "!=":
			truth = !comparable || order != 0
		case "<":
			truth = ordered && order < 0
		case "<=":
			truth = ordered && order <= 0
		case ">":
			truth = ordered && order > 0
		case ">=":
			truth = ordered && order >= 0
		}
		return operand{kind: isBool, truth: truth}
	})
}

// textual compares two texts; anything else is no match.
func textual(left, right evalFunc, match func(s, part string) bool) evalFunc {
	return both(left, right, func(v, w operand) operand {
		return operand{kind: isBool, truth: v.kind == isText && w.kind == isText && match(v.text, w.text)}
	})
}

func (c *filterCompiler) matches(n *ast.BinaryNode) evalFunc {
	pattern, ok := n.Right.(*ast.StringNode)
	if !ok {
		return c.fail(n.Right, "the pattern behind matches must be a text in quotes")
	}
	re, err := regexp.Compile(pattern.Value)
	if err != nil {
		return c.fail(n.Right, "%v", err)
	}
	return textual(c.value(n.Left), constant(operand{kind: isText}), func(s, _ string) bool { return re.MatchString(s) })
}

func (c *filterCompiler) in(n *ast.BinaryNode) evalFunc {
	list, ok := n.Right.(*ast.ArrayNode)
	if !ok {
		return c.fail(n.Right, `in needs a list behind it: in ["a", "b"]`)
	}
	left := c.value(n.Left)
	items := make([]evalFunc, len(list.Nodes))
	numeric := make([]bool, len(list.Nodes))
	for i, item := range list.Nodes {
		items[i], numeric[i] = c.value(item), isNumeric(item)
	}
	return func(in evalInput) (operand, error) {
		v, err := left(in)
		if err != nil {
			return v, err
		}
		for i, item := range items {
			w, err := item(in)
			if err != nil {
				return w, err
			}
			x := v
			if numeric[i] {
				x = v.toNumber()
			}
			if x.equal(w) {
				return operand{kind: isBool, truth: true}, nil
			}
		}
		return operand{kind: isBool}, nil
	}
}
