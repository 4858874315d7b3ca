package jsontext

import "testing"

var (
	benchLine    = []byte(`{"message_id":"019b0c6e-7d1e-7000-8000-000000000001","payload":"{\"id\":\"1\",\"first_name\":\"Ines\",\"country\":\"JP\",\"amount\":\"2232.88\",\"created_at\":\"2020-01-01T00:01:22Z\"}","metadata":{"kafka.topic":"orders"}}`)
	benchObject  = []byte(`{"id":"1","first_name":"Inès","country":"JP","amount":2232.88,"created_at":"2020-01-01T00:01:22Z","note":"a text of some length, as they are, without anything that is special in it"}`)
	benchPayload = []byte(`"{\"id\":\"1\",\"first_name\":\"Ines\",\"country\":\"JP\",\"amount\":\"2232.88\",\"created_at\":\"2020-01-01T00:01:22Z\"}"`)
)

func BenchmarkSkipStrings(b *testing.B) {
	for b.Loop() {
		Check(benchLine)
		Check(benchObject)
	}
}

func BenchmarkAppendContent(b *testing.B) {
	var out []byte
	for b.Loop() {
		out, _, _ = AppendContent(out[:0], benchPayload, 0)
	}
}

func BenchmarkAppendEscaped(b *testing.B) {
	var out []byte
	for b.Loop() {
		out = AppendEscaped(out[:0], benchLine)
		out = AppendEscaped(out[:0], benchObject)
	}
}

func BenchmarkAppendUnescaped(b *testing.B) {
	var out []byte
	for b.Loop() {
		out = AppendUnescaped(out[:0], benchPayload[1:len(benchPayload)-1])
	}
}
