package route

import "math"

// arithmetic is exact for sums and products of whole numbers that have 64 bits,
// else it is done in floating point; with anything that is no number, and where
// the result is none, the result is null.
func arithmetic(operator string, left, right evalFunc) evalFunc {
	return func(in evalInput) (operand, error) {
		v, err := left(in)
		if err != nil {
			return v, err
		}
		w, err := right(in)
		if err != nil {
			return w, err
		}
		v, w = v.toNumber(), w.toNumber()
		if v.kind != isNumber || w.kind != isNumber {
			return operand{}, nil
		}
		if v.exact && w.exact {
			if n, ok := wholeArithmetic(operator, v.whole, w.whole); ok {
				return operand{kind: isNumber, exact: true, whole: n, number: float64(n)}, nil
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
			return operand{}, nil
		}
		return operand{kind: isNumber, number: f}, nil
	}
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
	case "%":
		if w != 0 {
			return v % w, true
		}
	}
	return 0, false
}
