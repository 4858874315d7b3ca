package route

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

type operandKind uint8

const (
	isNull operandKind = iota
	isBool
	isNumber
	isText
	isOther // objects and lists
)

// operand is a value within an expression.
type operand struct {
	kind  operandKind
	truth bool
	// exact: whole holds the number; two such are compared without rounding.
	exact  bool
	whole  int64
	number float64
	// text of a text, the JSON of an object or a list, and the number as it was
	// written, where it was.
	text string
}

// numberOf reads a decimal number; what is none is null. The texts that strconv
// would refuse are kept from it, because its errors allocate.
func numberOf(text string) operand {
	text = strings.TrimSpace(text)
	whole := len(text) > 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c >= '0' && c <= '9', i == 0 && len(text) > 1 && (c == '-' || c == '+'):
		case c == '.', c == 'e', c == 'E', c == '-', c == '+':
			whole = false
		default:
			return operand{}
		}
	}
	if whole && len(text) < 20 {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return operand{kind: isNumber, exact: true, whole: n, number: float64(n), text: text}
		}
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(f, 0) {
		return operand{kind: isNumber, number: f, text: text}
	}
	return operand{}
}

// toNumber makes a number of a number or a text; anything else is null.
func (v operand) toNumber() operand {
	switch v.kind {
	case isNumber:
		return v
	case isText:
		return numberOf(v.text)
	}
	return operand{}
}

// compare orders two values of one type; comparable is false for any other two.
func (v operand) compare(w operand) (order int, comparable bool) {
	if v.kind != w.kind {
		return 0, false
	}
	switch v.kind {
	case isNumber:
		if v.exact && w.exact {
			return cmp.Compare(v.whole, w.whole), true
		}
		return cmp.Compare(v.number, w.number), true
	case isText, isOther:
		return strings.Compare(v.text, w.text), true
	case isBool:
		if v.truth == w.truth {
			return 0, true
		}
		return 1, false
	}
	return 0, true // null and null
}

func (v operand) equal(w operand) bool {
	order, comparable := v.compare(w)
	return comparable && order == 0
}
