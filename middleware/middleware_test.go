package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/null"
	"github.com/mqbridge/mqb/connectors/static"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/middleware"
	"github.com/mqbridge/mqb/route"
)

// build decodes a route with the given input middleware and makes it, the way a
// node does.
func build(t testing.TB, text, onError string) connectors.Middleware {
	t.Helper()
	return buildOn(t, "input", text, onError)
}

func buildOn(t testing.TB, side, text, onError string) connectors.Middleware {
	t.Helper()
	return factory(t, side, text, onError)()
}

// factory makes the middleware of a worker at each call.
func factory(t testing.TB, side, text, onError string) func() connectors.Middleware {
	t.Helper()
	registry := connectors.NewRegistry([]connectors.Type{static.Type(), null.Type()}, middleware.Types())
	yaml := "input:\n  static: x\n  middlewares:\n    - %s\non_error: %s\n"
	if side == "output" {
		yaml = "input: {static: x}\noutput:\n  \"null\": {}\n  middlewares:\n    - %s\non_error: %s\n"
	}
	spec, err := route.DecodeRoute("r", fmt.Sprintf(yaml, text, onError), registry)
	if err != nil {
		t.Fatal(err)
	}
	factories, err := registry.Middlewares(spec)
	if err != nil || len(factories) != 1 {
		t.Fatalf("%d middlewares, %v", len(factories), err)
	}
	return func() connectors.Middleware {
		m := factories[0]()
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		return m
	}
}

func refused(t *testing.T, side, text string) string {
	t.Helper()
	registry := connectors.NewRegistry([]connectors.Type{static.Type(), null.Type()}, middleware.Types())
	spec := fmt.Sprintf("input:\n  static: x\n  middlewares:\n    - %s\n", text)
	if side == "output" {
		spec = fmt.Sprintf("input: {static: x}\noutput:\n  \"null\": {}\n  middlewares:\n    - %s\n", text)
	}
	_, err := route.DecodeRoute("r", spec, registry)
	if err == nil {
		t.Fatalf("%s was accepted on the %s", text, side)
	}
	return err.Error()
}

func batch(payloads ...string) *message.Batch {
	b := message.NewBatch()
	for i, p := range payloads {
		b.Append([]byte(p), int64(i), int64(i+1))
		b.Read++
	}
	return b
}

func payloads(b *message.Batch) string {
	var out []string
	for i := range b.Len() {
		out = append(out, string(b.Payload(i)))
	}
	return strings.Join(out, " ")
}

func TestIDSetsTheBusinessID(t *testing.T) {
	t.Parallel()
	m := build(t, `id: "${payload:tenant}-${payload:o.id}"`, "stop")
	b := batch(`{"tenant":"a","o":{"id":1}}`, `{"tenant":"a","o":{"id":2}}`)
	if err := m.Process(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"a-1", "a-2"} {
		if got, _ := b.Meta(i, route.IDKey); string(got) != want {
			t.Errorf("message %d: %q", i, got)
		}
	}
}

// Regression (bug 10): a key rendered with a part missing is shared by many
// messages, and deduplication drops all but the first.
func TestIDWithAMissingPartIsNoID(t *testing.T) {
	t.Parallel()
	m := build(t, `id: "${payload:tenant}-${payload:o.id}"`, "stop")
	b := batch(`{"tenant":"a"}`, `{"tenant":"a","o":{"id":null}}`, `no json`, `{"o":{"id":1}}`)
	b.PutMeta(3, route.IDKey, []byte("own"))
	if err := m.Process(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if got, ok := b.Meta(i, route.IDKey); ok {
			t.Errorf("message %d got id %q", i, got)
		}
	}
	if got, _ := b.Meta(3, route.IDKey); string(got) != "own" {
		t.Errorf("an id of its own became %q", got)
	}
}

// Regression (bug 17): what can never work is refused at load, not retried.
func TestMiddlewaresRefuseAtLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ side, text, want string }{
		{"output", `id: "${payload:a}"`, "cannot stand on an output"},
		{"input", `id: constant`, "needs at least one"},
		{"input", `id: "${message:id}"`, "cannot be part of it"},
		{"input", `id: {template: x}`, "unknown key"},
		{"input", `id:`, "needs a template"},
		{"input", `filter:`, "needs an expression"},
		{"input", `filter: "a =="`, "expression: character"},
		{"input", `limiter: {}`, "messages_per_second: is required"},
		{"input", `limiter: {messages_per_second: 0}`, "at least"},
		{"input", `limiter: {messages_per_secnd: 5}`, `did you mean "messages_per_second"?`},
		{"input", `delay: {}`, "delay_ms: is required"},
		{"input", `delay: {delay_ms: 0}`, "at least"},
		{"input", `delay: {delay: 5}`, "unknown key (known keys: delay_ms)"},
		{"output", `lookup: {}`, "not supported yet"},
	} {
		if got := refused(t, c.side, c.text); !strings.Contains(got, c.want) {
			t.Errorf("%s on %s: got %s, want %q", c.text, c.side, got, c.want)
		}
	}
}

// Regression (bug 46): a key that nobody knows was ignored, and what it should have
// said with it.
func TestUnknownKeyOfAnyMiddlewareIsRefused(t *testing.T) {
	t.Parallel()
	for _, m := range middleware.Types() {
		side := "output"
		if m.Input {
			side = "input"
		}
		got := refused(t, side, m.Name+": {fromat: 1}")
		if !strings.Contains(got, m.Name) || !strings.Contains(got, "unknown key") && !strings.Contains(got, "must be a single value") {
			t.Errorf("%s: %s", m.Name, got)
		}
	}
}

func TestFilterKeepsAndCounts(t *testing.T) {
	t.Parallel()
	m := build(t, `filter: n > 1`, "stop")
	b := batch(`{"n":1}`, `{"n":2}`, `{"n":"3"}`, `{}`)
	if err := m.Process(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got := payloads(b); got != `{"n":2} {"n":"3"}` || b.Filtered != 2 {
		t.Errorf("%s, %d filtered", got, b.Filtered)
	}
}

// Hazard: rows are named by their place before the batch was compacted, so the
// wrong record is dropped.
func TestFilterNamesBadRecordsByTheirPlaceInWhatIsLeft(t *testing.T) {
	t.Parallel()
	texts := []string{`{"n":0}`, `bad1`, `{"n":0}`, `{"n":2}`, `bad2`, `{"n":0}`}
	for onError, want := range map[string]struct {
		left     string
		bad      []int
		filtered int
	}{
		"drop": {`bad1 {"n":2} bad2`, []int{0, 2}, 3},
		// What stands behind the first bad record is read again: not filtered.
		"stop": {`bad1 {"n":0} {"n":2} bad2 {"n":0}`, []int{0}, 1},
	} {
		m := build(t, `filter: n > 1`, onError)
		b := batch(texts...)
		err := m.Process(t.Context(), b)
		var rows *connectors.RowsError
		if !errors.As(err, &rows) || connectors.Classify(err) != connectors.ClassData {
			t.Fatalf("%s: %v", onError, err)
		}
		var bad []int
		for _, r := range rows.Rows {
			bad = append(bad, r.Index)
			if !strings.HasPrefix(string(b.Payload(r.Index)), "bad") {
				t.Errorf("%s: row %d is %s", onError, r.Index, b.Payload(r.Index))
			}
		}
		if payloads(b) != want.left || fmt.Sprint(bad) != fmt.Sprint(want.bad) || b.Filtered != want.filtered {
			t.Errorf("%s: left %s, bad %v, filtered %d", onError, payloads(b), bad, b.Filtered)
		}
	}
}

// A batch of many times the burst passes, at the rate.
func TestLimiterPacesByMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		perSecond     string
		batches, size int
		least, most   time.Duration
	}{
		// 50,000 rows of one partition out of 24, as in the demonstration.
		{"1250", 49, 1024, 39 * time.Second, 41 * time.Second},
		{"10", 5, 10, 4800 * time.Millisecond, 5 * time.Second},
		{"0.5", 3, 1, 3900 * time.Millisecond, 4100 * time.Millisecond},
		{"1000000000", 100, 1000, 0, time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := build(t, "limiter: {messages_per_second: "+c.perSecond+"}", "stop")
			start, longest := time.Now(), time.Duration(0)
			for range c.batches {
				before := time.Now()
				if err := m.Process(t.Context(), batch(make([]string, c.size)...)); err != nil {
					t.Fatal(err)
				}
				longest = max(longest, time.Since(before))
			}
			took := time.Since(start)
			if took < c.least || took > c.most {
				t.Errorf("%s/s: %d × %d took %v", c.perSecond, c.batches, c.size, took)
			}
			if even := c.most / time.Duration(c.batches) * 2; longest > even {
				t.Errorf("%s/s: one batch of %d waited %v, more than twice its share", c.perSecond, c.batches, longest)
			}
		})
	}
}

// Regression: a delay counts messages, not batches, and time that the source was
// empty is not made up for.
func TestDelayPacesByMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ batches, size int }{{1, 100}, {100, 1}, {10, 10}} {
		synctest.Test(t, func(t *testing.T) {
			m := build(t, "delay: {delay_ms: 100}", "stop")
			time.Sleep(time.Hour)
			start := time.Now()
			for range c.batches {
				if err := m.Process(t.Context(), batch(make([]string, c.size)...)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond) // what stands behind it takes its time, too
			}
			if took := time.Since(start); took < 10*time.Second || took > 10*time.Second+20*time.Millisecond {
				t.Errorf("%d × %d took %v", c.batches, c.size, took)
			}
			time.Sleep(time.Hour)
			start = time.Now()
			if err := m.Process(t.Context(), batch("a", "b")); err != nil || time.Since(start) != 200*time.Millisecond {
				t.Errorf("behind an idle hour two messages took %v, %v", time.Since(start), err)
			}
			if err := m.Process(t.Context(), batch()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDelayHeedsItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := build(t, "delay: {delay_ms: 1000}", "stop")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := m.Process(ctx, batch(make([]string, 1000)...))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 50*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestLimiterHeedsItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := build(t, "limiter: {messages_per_second: 1}", "stop")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := m.Process(ctx, batch(make([]string, 1000)...))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 50*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestMiddlewaresDoNotAllocatePerMessage(t *testing.T) {
	texts := make([]string, 1000)
	for i := range texts {
		texts[i] = fmt.Sprintf(`{"n":%d,"country":"DE"}`, i)
	}
	b := batch(texts...)
	for _, text := range []string{`filter: n >= 0 && country == "DE"`, `id: "${payload:n}-${payload:country}"`, "limiter: {messages_per_second: 1e9}"} {
		m := build(t, text, "stop")
		if n := testing.AllocsPerRun(20, func() {
			if err := m.Process(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}); n > 20 {
			t.Errorf("%s: %v allocations for %d messages", text, n, b.Len())
		}
	}
}
