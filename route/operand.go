package route

import (
	"bytes"
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
	// exact: whole holds the number.
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
	if whole && (len(text) < 20 || len(text) == 20 && text[0] == '-') {
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

// isWhole reports whether v is a whole number, however many digits it has.
func (v operand) isWhole() bool {
	return v.kind == isNumber && (v.exact || v.text != "" && !strings.ContainsAny(v.text, ".eE"))
}

// negated keeps the digits of a number. What is none is null.
func (v operand) negated() operand {
	v = v.toNumber()
	switch {
	case v.kind != isNumber:
		return v
	case v.exact && v.whole != math.MinInt64:
		return operand{kind: isNumber, exact: true, whole: -v.whole, number: -v.number}
	}
	n := operand{kind: isNumber, number: -v.number}
	if digits, negative := strings.CutPrefix(v.text, "-"); negative {
		n.text = digits
	} else if digits != "" {
		n.text = "-" + strings.TrimPrefix(digits, "+")
	}
	return n
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
		// Rounding brings numbers together and never past each other.
		if order := cmp.Compare(v.number, w.number); order != 0 {
			return order, true
		}
		var bv, bw [20]byte
		return compareDecimals(v.decimal(bv[:0]), w.decimal(bw[:0])), true
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

// decimal is a number's text, nil where it has none: it came of a calculation, or
// is a number with a fraction in the expression itself. buf is for its memory.
func (v operand) decimal(buf []byte) []byte {
	switch {
	case v.exact:
		return strconv.AppendInt(buf, v.whole, 10)
	case v.text == "":
		return nil
	}
	return bytesOf(v.text)
}

// compareDecimals orders two decimal numbers exactly; one that is nil is as close
// to the other as can be told.
func compareDecimals(a, b []byte) int {
	if a == nil || b == nil {
		return 0
	}
	v, w := splitDecimal(a), splitDecimal(b)
	if v.sign != w.sign {
		return cmp.Compare(v.sign, w.sign)
	}
	if order := cmp.Compare(v.exponent, w.exponent); order != 0 {
		return order * v.sign
	}
	for i := 0; i < v.len() || i < w.len(); i++ {
		if order := cmp.Compare(v.digit(i), w.digit(i)); order != 0 {
			return order * v.sign
		}
	}
	return 0
}

// decimal is sign * 0.digits * 10^exponent; the first digit is not 0. sign is 0 for 0.
type decimal struct {
	sign            int
	whole, fraction []byte // the digits, in two pieces
	exponent        int64
}

func splitDecimal(text []byte) (d decimal) {
	const most = 1 << 40 // beyond what a record can hold
	d.sign = 1
	if text[0] == '-' {
		d.sign = -1
	}
	text = bytes.TrimLeft(text, "+-")
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		e, _ := strconv.ParseInt(view(text[i+1:]), 10, 64) // the nearest there is, if it is out of range
		d.exponent, text = max(min(e, most), -most), text[:i]
	}
	d.whole = text
	if i := bytes.IndexByte(text, '.'); i >= 0 {
		d.whole, d.fraction = text[:i], text[i+1:]
	}
	if d.whole = bytes.TrimLeft(d.whole, "0"); len(d.whole) == 0 {
		n := len(d.fraction)
		d.fraction = bytes.TrimLeft(d.fraction, "0")
		d.exponent -= int64(n - len(d.fraction))
	}
	d.exponent += int64(len(d.whole))
	if d.len() == 0 {
		return decimal{}
	}
	return d
}

func (d decimal) len() int { return len(d.whole) + len(d.fraction) }

func (d decimal) digit(i int) byte {
	switch {
	case i < len(d.whole):
		return d.whole[i]
	case i < d.len():
		return d.fraction[i-len(d.whole)]
	}
	return '0'
}

func (v operand) equal(w operand) bool {
	order, comparable := v.compare(w)
	return comparable && order == 0
}
