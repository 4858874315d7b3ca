package builtin_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
)

// The mistake is in the variable, and not where the file has a value.
func TestAnErrorInAnOverriddenExpressionNamesTheVariable(t *testing.T) {
	t.Parallel()
	const name = "MQB__R__INPUT__MIDDLEWARES__0__FILTER"
	_, err := route.Decode("f.yaml", []byte("r:\n  input: {static: x, middlewares: [{filter: a}]}\n"), builtin.Registry(),
		route.Options{Overrides: []route.Override{{Name: name, Value: "a >"}}})
	if err == nil || !strings.HasPrefix(err.Error(), name+": route r: input.middlewares[0].filter: ") {
		t.Error(err)
	}
}
