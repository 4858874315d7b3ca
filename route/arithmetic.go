package route

import "math"

// both evaluates two sides, the left one first, and makes f of them.
func both(left, right evalFunc, f func(v, w operand) operand) evalFunc {
	return func(in evalInput) (operand, error) {
		v, err := left(in)
		if err != nil {
			return v, err
		}
		w, err := right(in)
		if err != nil {
			return w, err
		}
		return f(v, w), nil
	}
}

// arithmetic is exact for whole numbers that have 64 bits and have a whole result
// that does too, else it is done in floating point; with anything that is no number,
// and where the result is none, the result is null.
func arithmetic(operator string, left, right evalFunc) evalFunc {
	return both(left, right, func(v, w operand) operand {
		v, w = v.toNumber(), w.toNumber()
		if v.kind != isNumber || w.kind != isNumber {
			return operand{}
		}
		if v.exact && w.exact {
			if n, ok := wholeArithmetic(operator, v.whole, w.whole); ok {
				return operand{kind: isNumber, exact: true, whole: n, number: float64(n)}
			}
		}
		var f float64
		switch operator {
		case "+":
			f = v.number + w.number
		case "-":
			f = v.number - w.number
		case "*":
			f = v.number * w.number
		case "/":
			f = v.number / w.number
		case "%":
			f = math.Mod(v.number, w.number)
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return operand{}
		}
		return operand{kind: isNumber, number: f}
	})
}

// wholeArithmetic is arithmetic without rounding; ok is false where the result
// does not fit or is no whole number.
func wholeArithmetic(operator string, v, w int64) (n int64, ok bool) {
	switch operator {
	case "+":
		n = v + w
		return n, (n > v) == (w > 0)
	case "-":
		n = v - w
		return n, (n < v) == (w > 0)
	case "*":
		if v == 0 || w == 0 {
			return 0, true
		}
		n = v * w
		return n, n/w == v && !(v == -1 && w == math.MinInt64) && !(w == -1 && v == math.MinInt64)
	case "/":
		if w != 0 && v%w == 0 && !(w == -1 && v == math.MinInt64) {
			return v / w, true
		}
	case "%":
		if w != 0 {
			return v % w, true
		}
	}
	return 0, false
}
