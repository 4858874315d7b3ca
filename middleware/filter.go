package middleware

import (
	"context"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func filterType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "filter",
			NewConfig: func() any { return new(FilterConfig) },
			Capabilities: func(any) route.MiddlewareCapabilities {
				return route.MiddlewareCapabilities{Shape: route.ShapeDrop, ReplaySame: true}
			},
			Input: true, Output: true,
		},
		New: func(config any, spec *route.Spec) (func() connectors.Middleware, error) {
			expression, stop := config.(*FilterConfig).filter, spec.OnError == route.OnErrorStop
			return func() connectors.Middleware { return &filter{expression: expression, stop: stop} }, nil
		},
	}
}

// FilterConfig is a bare expression.
type FilterConfig struct{ filter *route.Filter }

// Summary implements route.Summarizer.
func (*FilterConfig) Summary() string {
	return "Keeps the messages for which an expression holds, written as a single value: `filter: country == \"DE\" && amount > 100`. Bare and dotted names are fields of the JSON payload, `meta.x` is metadata and always text (`a[\"b.c\"]` and `$env[\"a.b\"]` name what has a dot in its name); comparing with a number makes a number of the other side; what is absent is `null`. " +
		"Operators: `== != < <= > >=`, `&& || !` or `and or not` (with brackets: `not (a in [...])`), `in [...]` and `not in [...]`, `contains`, `startsWith`, `endsWith`, `matches`, `+ - * / %`, and `number(x)`. A payload that is no JSON object cannot be handled (`on_error`), unless only metadata is asked for."
}

// FromScalar compiles the expression.
func (c *FilterConfig) FromScalar(s string) (err error) {
	c.filter, err = route.CompileFilter(s)
	return err
}

// Validate implements the decoder's check.
func (c *FilterConfig) Validate(route.Side) []error {
	if c.filter == nil {
		return []error{&route.ConfigError{Msg: "needs an expression", Hint: `filter: country == "DE"`}}
	}
	return nil
}

type filter struct {
	expression *route.Filter
	// stop: the route stops before the first record it cannot handle. What
	// stands behind it will be read again, so it must not be counted as filtered
	// now (invariant 4).
	stop bool
}

func (m *filter) Process(_ context.Context, b *message.Batch) error {
	var bad *connectors.RowsError
	kept := 0
	b.Keep(func(i int) bool {
		if bad != nil && m.stop {
			return true
		}
		keep, err := m.expression.Match(b, i)
		if err != nil {
			if bad == nil {
				bad = &connectors.RowsError{}
			}
			// A bad record stays for the route's rule, at its place in the batch
			// as it will be when Keep is done.
			bad.Rows = append(bad.Rows, connectors.RowError{Index: kept, Err: err})
			keep = true
		}
		if keep {
			kept++
		}
		return keep
	})
	if bad != nil {
		return bad
	}
	return nil
}

func (*filter) Close() error { return nil }
