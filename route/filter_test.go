package route_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/route"
)

func TestFilter(t *testing.T) {
	t.Parallel()
	b := one(`{"country":"DE","amount":"150.5","n":5,"big":9007199254740993,"ok":true,"z":null,"a":{"b":"x"},"l":[1]}`,
		"kind", "test", "size", "12", "kafka.key", "k")
	for expression, want := range map[string]bool{
		`country == "DE"`:                      true,
		`country == 'DE' and n > 4`:            true,
		`country != "DE" || n < 4`:             false,
		`not (country == "DE")`:                false,
		`!(n == 6) && country in ["FR", "DE"]`: true,
		`country not in ["FR"]`:                true,
		`a.b == "x"`:                           true,
		`amount > 100`:                         true,
		`amount == 150.5`:                      true,
		`100 < amount`:                         true,
		`amount > -1`:                          true,
		`n == "5"`:                             false,
		`n in ["5", 5]`:                        true,
		`number(amount) > n`:                   true,
		`country > 5`:                          false,
		`country != 5`:                         true,
		`big == 9007199254740993`:              true,
		`big == 9007199254740992`:              false,
		`meta.kind == "test"`:                  true,
		`meta.size == 12`:                      true,
		`meta.size == "12"`:                    true,
		`meta.size > 100`:                      false,
		`meta.none == null`:                    true,
		`meta.kafka.key == "k"`:                true,
		`meta["kafka.key"] == "k"`:             true,
		`none == null`:                         true,
		`z == nil`:                             true,
		`none > 5`:                             false,
		`none < 5`:                             false,
		`none <= null`:                         false,
		`none != "x"`:                          true,
		`none`:                                 false,
		`ok`:                                   true,
		`not ok`:                               false,
		`ok == true`:                           true,
		`n + 1 == 6`:                           true,
		`n * 2 - 1 > 8.5`:                      true,
		`n / 0 > 1`:                            false,
		`country contains "D"`:                 true,
		`country startsWith "E"`:               false,
		`country endsWith "E"`:                 true,
		`country matches "^D[A-Z]$"`:           true,
		`n contains "5"`:                       false,
		`true`:                                 true,
		`ok or country > 3 == true`:            true,
		`type == null and count == null`:       true,
		`a.b.c == null && a == null`:           false,
		`l == null`:                            false,
		`amount >= 150.5 and amount <= 150.5`:  true,
		`(country == "X" or ok) and (n >= 5 or z)`: true,
	} {
		f, err := route.CompileFilter(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got, err := f.Match(b, 0); err != nil || got != want {
			t.Errorf("%s: got %v, %v", expression, got, err)
		}
	}
}

func TestFilterRefusesAtLoad(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"":                        "character 1",
		"a ==":                    "unexpected token",
		"a[0] == 1":               "places in a list",
		"l.0 == 1":                "character",
		"upper(a) == 'A'":         "number(x)",
		"len(a) > 1":              "number(x)",
		"a ?? b":                  "not part of filter expressions",
		"a ? b : c":               "not part of filter expressions",
		"5":                       "not true or false",
		"n + 1":                   "not true or false",
		"meta.kind":               "compare it",
		"meta":                    "needs a name",
		"x and 'y'":               "not true or false",
		"a matches '('":           "error parsing regexp",
		"a matches b":             "text in quotes",
		"a in b":                  "needs a list",
		"a == [1]":                "only stand behind in",
		"let x = 1; x == 1":       "not part of filter expressions",
		strings.Repeat("(", 1e5):  "longer than",
		strings.Repeat("(", 1e4):  "character",
		strings.Repeat("!", 1e4):  "character",
		"country == \"DE\" AND b": "unexpected token",
	} {
		if _, err := route.CompileFilter(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want %q", expression, err, want)
		}
	}
}

func TestFilterRefusesPayloadsThatAreNoObjects(t *testing.T) {
	t.Parallel()
	f, _ := route.CompileFilter("a == null")
	for _, payload := range []string{"", "[]", "5", `"a"`, `{"a":1`, "text", "null"} {
		if ok, err := f.Match(one(payload), 0); err == nil || ok {
			t.Errorf("%q: %v %v", payload, ok, err)
		}
	}
	if ok, err := f.Match(one(" {} \n"), 0); err != nil || !ok {
		t.Errorf("spaces around: %v %v", ok, err)
	}
	f, _ = route.CompileFilter("a")
	if _, err := f.Match(one(`{"a":5}`), 0); err == nil || !strings.Contains(err.Error(), "a is not true or false") {
		t.Errorf("a number as a condition: %v", err)
	}
	f, _ = route.CompileFilter("a > 4")
	if _, err := f.Match(one(`{"a":12abc}`), 0); err == nil {
		t.Error("a broken number was taken for one")
	}
}

func TestFilterOnMetadataNeverLooksAtThePayload(t *testing.T) {
	t.Parallel()
	f, err := route.CompileFilter(`meta.kind == "k"`)
	if err != nil || f.UsesPayload() {
		t.Fatalf("%v", err)
	}
	if ok, err := f.Match(one("\x00 no JSON", "kind", "k"), 0); err != nil || !ok {
		t.Errorf("%v %v", ok, err)
	}
}

func TestFilterDoesNotAllocate(t *testing.T) {
	b := one(`{"country":"DE","amount":"150.5","n":5}`, "kind", "test")
	f, _ := route.CompileFilter(`country == "DE" && amount > 100 and not (meta.kind in ["x", "y"]) and n < 6`)
	if n := testing.AllocsPerRun(100, func() {
		if ok, err := f.Match(b, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

func FuzzFilter(f *testing.F) {
	for _, s := range []string{`a == "x" && b.c > 5`, `meta.k in ["v", 1]`, `not (a + 1 > 2) or a matches "x"`, `number(a) <= -0.5`} {
		f.Add(s, order)
	}
	f.Fuzz(func(t *testing.T, s, payload string) {
		filter, err := route.CompileFilter(s)
		if err != nil {
			return
		}
		b := one(payload, "k", "v")
		first, err := filter.Match(b, 0)
		second, again := filter.Match(b, 0)
		if first != second || (err == nil) != (again == nil) {
			t.Errorf("%q changed its mind", s)
		}
		if err != nil && first {
			t.Error("an error and a match")
		}
	})
}

// Regression: "not a in b" was taken as "(not a) in b", which keeps nothing, and
// which refuses each record where a is a text.
func TestANegationThatBindsTighterThanItLooksIsRefused(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{
		`not country in ["DE"]`, `!country in ["DE"]`, `not meta.kind in ["test"]`, `not a == 5`, `!a == 5`, `!a == "x"`,
		`not a < 5`, `not a contains "x"`, `!a startsWith "x"`, `not a matches "x"`, `x and not a == "y"`, `!a + 1 > 2`,
	} {
		if _, err := route.CompileFilter(expression); err == nil || !strings.Contains(err.Error(), "put brackets around") {
			t.Errorf("%s: %v", expression, err)
		}
	}
	b := one(`{"country":"DE","ok":true,"yes":true,"a":"xy"}`, "kind", "test")
	for expression, want := range map[string]bool{
		`not (country in ["FR"])`: true, `country not in ["DE"]`: false, `!ok == false`: true, `not ok == false`: true, `not ok == yes`: false, `not ok or a == "xy"`: true,
		`!(a contains "z") and not (meta.kind == "x")`: true, `ok == !none`: true, `a not contains "z"`: true,
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
}
