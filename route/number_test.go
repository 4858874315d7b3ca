package route_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mqbridge/mqb/route"
)

// Ids of 64 bits without a sign, and longer ones, share their floating point number
// with thousands of others.
func TestLongNumbersThatDifferInTheirLastDigitAreNotEqual(t *testing.T) {
	b := one(`{"a":18446744073709551615,"b":18446744073709551614,"same":18446744073709551615,"i":9007199254740993,"f":9007199254740992.0,"five":5,"z":-0.0,"e":50e-1,"s":"18446744073709551614","tiny":1e-400,"tinier":1e-401,"min":-9223372036854775808}`)
	for expression, want := range map[string]bool{
		`a == b`: false, `a > b`: true, `b < a`: true, `a != b`: true, `a in [b]`: false, `a == same`: true,
		`number(s) == b`: true, `number(s) == a`: false, `i == f`: false, `i > f`: true, `five == e`: true, `e == 5`: true,
		`z == 0`: true, `tiny == tinier`: false, `tiny > tinier`: true, `min < -9223372036854775807`: true, `i == 9007199254740993`: true, `e == 5.0`: true,
	} {
		f, err := route.CompileFilter(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got, err := f.Match(b, 0); got != want || err != nil {
			t.Errorf("%s: %v, %v", expression, got, err)
		}
	}
	f, err := route.CompileFilter(`a == b || e == five || i == f`)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = f.Match(b, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The order of numbers is that of exact arithmetic, however they are written.
func TestComparisonsAgreeWithExactArithmetic(t *testing.T) {
	t.Parallel()
	operators := map[string]func(order int) bool{
		"==": func(o int) bool { return o == 0 }, "<": func(o int) bool { return o < 0 }, ">=": func(o int) bool { return o >= 0 },
	}
	filters := map[string]*route.Filter{}
	for operator := range operators {
		f, err := route.CompileFilter("a " + operator + " b")
		if err != nil {
			t.Fatal(err)
		}
		filters[operator] = f
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := decimalText(t), ""
		if b = decimalText(t); rapid.Bool().Draw(t, "near") {
			b = a[:len(a)-1] + rapid.StringMatching(`[0-9]`).Draw(t, "last")
			if strings.ContainsAny(a, "eE") {
				b = a
			}
		}
		v, _ := new(big.Rat).SetString(a)
		w, _ := new(big.Rat).SetString(b)
		record := one(fmt.Sprintf(`{"a":%s,"b":%s}`, a, b))
		for operator, want := range operators {
			if got, err := filters[operator].Match(record, 0); err != nil || got != want(v.Cmp(w)) {
				t.Fatalf("%s %s %s: %v, %v", a, operator, b, got, err)
			}
		}
	})
}

func decimalText(t *rapid.T) string {
	return rapid.StringMatching(`-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?`).Draw(t, "number")
}

// Regression: whole numbers beyond 64 bits came out of abs, floor and - as what is
// left of them in floating point, and 9007199254740993 / 1 was another number.
func TestNumbersDoNotLoseDigitsInFunctionsThatOnlyLookAtThem(t *testing.T) {
	t.Parallel()
	payload := `{"u":18446744073709551615,"n":-18446744073709551615,"i":9007199254740993,"min":-9223372036854775808,"d":-0.1000000000000000055}`
	for expression, want := range map[string]string{
		`{a: abs(u), b: floor(u), c: ceil(n), d: round(n), e: abs(n)}`: `{"a":18446744073709551615,"b":18446744073709551615,"c":-18446744073709551615,"d":-18446744073709551615,"e":18446744073709551615}`,
		`{a: -u, b: -n, c: +n, d: -min, e: -d, f: - -d}`:               `{"a":-18446744073709551615,"b":18446744073709551615,"c":-18446744073709551615,"d":9223372036854775808,"e":0.1000000000000000055,"f":-0.1000000000000000055}`,
		`{a: i / 1, b: -i / 3, c: 7 / 2, d: min % -1, e: 1 / 0}`:       `{"a":9007199254740993,"b":-3002399751580331,"c":3.5,"d":0,"e":null}`,
	} {
		x, err := route.CompileExpression(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got, err := x.Append(nil, []byte(payload), one(payload), 0); string(got) != want || err != nil {
			t.Errorf("%s:\n got %s, %v\nwant %s", expression, got, err, want)
		}
	}
}
