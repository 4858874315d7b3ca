package middleware

import (
	"fmt"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// benchmarkRow is a row of test/bench's fixture as the CSV reader makes it.
func benchmarkRow(i int) string {
	tags := []string{"new", "vip", "promo", "bulk", "trial"}[:1+i%3]
	text := ""
	for _, t := range tags {
		text += `,\"` + t + `\"`
	}
	return fmt.Sprintf(`{"id":"%d","first_name":"Ines","country":"JP","amount":"%d.%02d","created_at":"2020-01-01T00:01:22Z","active":"%t","attributes":"{\"tier\":\"bronze\",\"score\":%d.067,\"tags\":[%s]}"}`,
		500_000+i, 1+i%9999, i%100, i%2 == 0, i%100, text[1:])
}

func benchmarkBatch(n int) *message.Batch {
	b := message.NewBatch()
	for i := range n {
		b.Append([]byte(benchmarkRow(i)), int64(i), int64(i+1))
	}
	return b
}

const typedSchema = `{"type":"object","properties":{"id":{"type":"integer"},"attributes":{"type":"string","contentMediaType":"application/json"}}}`

func typedTransform(t testing.TB, c *TransformConfig, schema string) *transform {
	t.Helper()
	c.OnError = transformReject
	if c.Mapping != nil {
		var err error
		if c.mapping, err = compileMapping(c.Mapping); err != nil {
			t.Fatal(err)
		}
	}
	if c.Expression != "" {
		var err error
		if c.expression, err = route.CompileExpression(c.Expression); err != nil {
			t.Fatal(err)
		}
	}
	var stage *schemaStage
	if schema != "" {
		doc := decodeSchema(t, schema)
		o := coercion{coerce: true, defaults: true}
		tree, err := compileTree(doc, o)
		if err != nil {
			t.Fatal(err)
		}
		stage = &schemaStage{tree: tree}
		if flat, ok := compileFlat(doc, o); ok {
			stage.flat = flat
		}
	}
	return newTransform(c, stage, true)
}

// refill gives the batch the bytes of the original again, as the next batch of a
// reader would have them.
func refill(b, original *message.Batch) {
	b.Clear()
	for i := range original.Len() {
		b.Append(original.Payload(i), int64(i), int64(i+1))
	}
}

func benchmarkTransform(b *testing.B, m connectors.Middleware) {
	const rows = 1024
	original, batch := benchmarkBatch(rows), message.NewBatch()
	b.SetBytes(int64(original.Bytes()))
	b.ReportAllocs()
	for b.Loop() {
		refill(batch, original) // a few per cent of the whole
		if err := m.Process(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

func BenchmarkTransformTyped(b *testing.B) {
	benchmarkTransform(b, typedTransform(b, &TransformConfig{}, typedSchema))
}

func BenchmarkTransformAnySchema(b *testing.B) {
	benchmarkTransform(b, typedTransform(b, &TransformConfig{}, `{"minProperties":1,`+typedSchema[1:]))
}

func BenchmarkTransformMapping(b *testing.B) {
	fields := route.Ordered{}
	for _, f := range []string{"id", "country", "amount", "created_at"} {
		fields = append(fields, route.OrderedEntry{Key: f, Value: "${payload:" + f + "}"})
	}
	benchmarkTransform(b, typedTransform(b, &TransformConfig{Mapping: fields}, ""))
}

func BenchmarkTransformExpression(b *testing.B) {
	benchmarkTransform(b, typedTransform(b, &TransformConfig{Expression: `{id: number(id), country: country, dear: amount > 100}`}, ""))
}

// A batch costs a few allocations, its messages none.
func TestTransformDoesNotAllocatePerMessage(t *testing.T) {
	fields := route.Ordered{{Key: "id", Value: "${payload:id}"}, {Key: "text", Value: "${payload:id}-${payload:country}"}, {Key: "tier", Value: "${payload:attributes}"}}
	for name, m := range map[string]*transform{
		"mapping":    typedTransform(t, &TransformConfig{Mapping: fields}, ""),
		"schema":     typedTransform(t, &TransformConfig{}, typedSchema),
		"expression": typedTransform(t, &TransformConfig{Expression: `{id: number(id), country: country, big: amount > 100}`}, ""),
	} {
		original, b := benchmarkBatch(1000), message.NewBatch()
		run := func() {
			refill(b, original)
			if err := m.Process(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		run()
		run()
		if n := testing.AllocsPerRun(20, run); n > 5 {
			t.Errorf("%s: %v allocations for %d messages", name, n, b.Len())
		}
	}
}
