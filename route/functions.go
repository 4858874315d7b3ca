package route

import (
	"math"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/jsontext"
)

// function is a function of expressions. It is null where an argument is not of
// the kind it works on.
type function struct {
	least, most int // arguments; most -1: any number
	call        func(args []operand) operand
}

var functions = map[string]function{
	"string":  {1, 1, func(a []operand) operand { return a[0].toText() }},
	"lower":   {1, 1, ofText(strings.ToLower)},
	"upper":   {1, 1, ofText(strings.ToUpper)},
	"trim":    {1, 1, ofText(strings.TrimSpace)},
	"abs":     {1, 1, ofNumber(math.Abs)},
	"floor":   {1, 1, ofNumber(math.Floor)},
	"ceil":    {1, 1, ofNumber(math.Ceil)},
	"round":   {1, 1, ofNumber(math.Round)},
	"replace": {3, 3, replaceText},
	"concat":  {1, -1, concatTexts},
	"len":     {1, 1, length},
	"json":    {1, 1, parseText},
}

func ofText(f func(string) string) func([]operand) operand {
	return func(a []operand) operand {
		if a[0].kind != isText {
			return operand{}
		}
		return operand{kind: isText, text: f(a[0].text)}
	}
}

// ofNumber leaves whole numbers as they are, but for their sign.
func ofNumber(f func(float64) float64) func([]operand) operand {
	return func(a []operand) operand {
		v := a[0].toNumber()
		switch {
		case v.kind != isNumber:
			return v
		case !v.isWhole():
			return operand{kind: isNumber, number: f(v.number)}
		case v.number < 0 && f(-1) != -1:
			return v.negated()
		}
		return v
	}
}

func replaceText(a []operand) operand {
	for _, v := range a {
		if v.kind != isText {
			return operand{}
		}
	}
	return operand{kind: isText, text: strings.ReplaceAll(a[0].text, a[1].text, a[2].text)}
}

func concatTexts(a []operand) operand {
	var s strings.Builder
	for _, v := range a {
		if v = v.toText(); v.kind != isText {
			return operand{}
		}
		s.WriteString(v.text)
	}
	return operand{kind: isText, text: s.String()}
}

func length(a []operand) operand {
	n := 0
	switch a[0].kind {
	case isText:
		n = utf8.RuneCountInString(a[0].text)
	case isOther:
		gjson.Parse(a[0].text).ForEach(func(_, _ gjson.Result) bool { n++; return true })
	default:
		return operand{}
	}
	return operand{kind: isNumber, exact: true, whole: int64(n), number: float64(n)}
}

// parseText reads a text that holds JSON. The check must not recurse: a record may
// be a string of nothing but opening brackets.
func parseText(a []operand) operand {
	if a[0].kind != isText || !jsontext.Valid(bytesOf(a[0].text)) {
		return operand{}
	}
	return operandOf(gjson.Parse(a[0].text))
}

// operandOf is a JSON value as an operand; a number that cannot be calculated
// with is null.
func operandOf(r gjson.Result) operand {
	switch r.Type {
	case gjson.True, gjson.False:
		return operand{kind: isBool, truth: r.Type == gjson.True}
	case gjson.String:
		return operand{kind: isText, text: r.Str}
	case gjson.JSON:
		return operand{kind: isOther, text: r.Raw}
	case gjson.Number:
		return numberOf(r.Raw)
	}
	return operand{}
}

// call compiles a function call.
func (c *filterCompiler) call(n ast.Node, name string, arguments []ast.Node) evalFunc {
	if name == "number" && len(arguments) == 1 {
		arg := c.value(arguments[0])
		return func(in evalInput) (operand, error) {
			v, err := arg(in)
			return v.toNumber(), err
		}
	}
	f, known := functions[name]
	switch {
	case !c.rich:
		return c.fail(n, "the only function is number(x)")
	case !known:
		return c.fail(n, "there is no function %s", name)
	case len(arguments) < f.least || f.most >= 0 && len(arguments) > f.most:
		return c.fail(n, "%s takes %d arguments", name, f.least)
	}
	args := make([]evalFunc, len(arguments))
	for i, a := range arguments {
		args[i] = c.value(a)
	}
	return func(in evalInput) (operand, error) {
		values := make([]operand, len(args))
		for i, a := range args {
			v, err := a(in)
			if err != nil {
				return v, err
			}
			values[i] = v
		}
		return f.call(values), nil
	}
}
