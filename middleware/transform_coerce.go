package middleware

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/mqbridge/mqb/jsontext"
)

// kinds is a set of JSON types.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBoolean
	kindInteger
	kindNumber
	kindString
	kindObject
	kindArray
)

// kindOf are the names of JSON schema; a number may be an integer.
var kindOf = map[string]kinds{
	"null": kindNull, "boolean": kindBoolean, "integer": kindInteger, "number": kindNumber | kindInteger,
	"string": kindString, "object": kindObject, "array": kindArray,
}

// anyKind: the schema says nothing about the type.
const anyKind = kinds(0)

func (k kinds) allows(x kinds) bool { return k == anyKind || k&x != 0 }

// String names the set for an error.
func (k kinds) String() string {
	var out []byte
	for _, x := range []struct {
		kinds
		name string
	}{
		{kindInteger, "an integer"}, {kindNumber, "a number"}, {kindBoolean, "true or false"}, {kindString, "a string"},
		{kindObject, "an object"}, {kindArray, "a list"}, {kindNull, "null"},
	} {
		if k&x.kinds == 0 || x.kinds == kindInteger && k&kindNumber != 0 {
			continue
		}
		if out != nil {
			out = append(out, " or "...)
		}
		out = append(out, x.name...)
	}
	return string(out)
}

// fieldError says what is wrong with one field of one record: its name and the
// shape of its value, never the value (invariant 11).
type fieldError struct {
	field, msg string
}

func (e *fieldError) Error() string {
	if e.field == "" {
		return "the payload " + e.msg
	}
	return "field " + e.field + " " + e.msg
}

// wrongKind is the error of a value that is not of a wanted type and cannot be
// made one without losing anything.
func wrongKind(field string, value []byte, want kinds) error {
	return &fieldError{field, fmt.Sprintf("is %s, not %s", shape(value), want)}
}

// shape describes a JSON value without showing it.
func shape(value []byte) string {
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '"':
		n := utf8.RuneCount(jsontext.AppendUnescaped(nil, value[1:len(value)-1]))
		switch n {
		case 0:
			return "an empty string"
		case 1:
			return "a string of 1 character"
		}
		return "a string of " + strconv.Itoa(n) + " characters"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	if isWhole(value) {
		return "an integer"
	}
	return "a number with a fraction"
}

// isWhole reports whether a JSON number is an integer in the sense of JSON
// schema: 1.0 and 1e2 are, 1.5 and 1e-1 are not. It looks at the text alone, so
// that neither digits nor a huge exponent cost anything.
func isWhole(number []byte) bool {
	dot, exp := -1, len(number)
	for i, c := range number {
		switch c {
		case '.':
			dot = i
		case 'e', 'E':
			exp = i
		}
		if exp == i {
			break
		}
	}
	if dot < 0 && exp == len(number) {
		return true
	}
	digits, fraction := number[:exp], []byte(nil)
	if dot >= 0 {
		digits, fraction = number[:dot], bytes.TrimRight(number[dot+1:exp], "0")
	}
	if len(fraction) == 0 && len(bytes.Trim(digits, "-0")) == 0 {
		return true // zero
	}
	if exp == len(number) {
		return len(fraction) == 0
	}
	shift := 0 // saturates far beyond what a record can hold
	text, negative := number[exp+1:], false
	if text[0] == '-' || text[0] == '+' {
		text, negative = text[1:], text[0] == '-'
	}
	for _, c := range text {
		shift = min(shift*10+int(c-'0'), 1<<40)
	}
	if !negative {
		return len(fraction) <= shift
	}
	if len(fraction) > 0 {
		return false
	}
	return len(digits)-len(bytes.TrimRight(digits, "0")) >= shift
}

// coercible reports whether the content of a string, as it is, is a value of a
// wanted type, so that nothing is lost by taking it for that: a number must be
// written as JSON writes numbers, and keeps its text; JSON in a string counts where
// an object or a list is wanted, white space around it does not matter.
func coercible(content []byte, want kinds) bool {
	if len(content) == 0 {
		return false
	}
	switch c := content[0]; {
	case c == '-' || c-'0' <= 9:
		return want&(kindInteger|kindNumber) != 0 && jsontext.IsNumber(content) && (want&kindNumber != 0 || isWhole(content))
	case c == 't' || c == 'f':
		return want&kindBoolean != 0 && (string(content) == "true" || string(content) == "false")
	case want&(kindObject|kindArray) != 0:
		i := jsontext.SkipSpace(content, 0)
		return i < len(content) && (content[i] == '{' && want&kindObject != 0 || content[i] == '[' && want&kindArray != 0) && jsontext.Valid(content)
	}
	return false
}

// kindOfValue is the type of a JSON value, by its text; an integer is both an
// integer and a number.
func kindOfValue(value []byte) kinds {
	switch value[0] {
	case '"':
		return kindString
	case '{':
		return kindObject
	case '[':
		return kindArray
	case 't', 'f':
		return kindBoolean
	case 'n':
		return kindNull
	}
	if isWhole(value) {
		return kindInteger | kindNumber
	}
	return kindNumber
}

// notJSON is the error of a payload that cannot be read.
func notJSON(p jsontext.Problem) error {
	return &fieldError{msg: "is no JSON: " + p.String()}
}

func badContent(field string) error {
	return &fieldError{field, "holds no JSON"}
}
