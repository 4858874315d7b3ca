package differential

import (
	"bytes"
	"testing"
)

// TestJSONWrittenByPythonKeepsItsValues reads and writes numbers that fit no
// double, names that stand twice in different objects, and every kind of escape.
func TestJSONWrittenByPythonKeepsItsValues(t *testing.T) {
	for _, o := range outputs {
		for _, name := range []string{"ascii.jsonl", "utf8.jsonl"} {
			t.Run(o.name+", "+name, func(t *testing.T) {
				t.Parallel()
				out, files := o.make(t, "format: raw", "")
				mqb(t, file(fixture(t, name), "format: json"), out, o.roll)
				sameValues(t, fixture(t, name), joined(t, files()))
			})
		}
	}
}

// TestJSONKeepsItsValuesThroughAnEnvelope: in one as text, as a value, and back.
func TestJSONKeepsItsValuesThroughAnEnvelope(t *testing.T) {
	for _, format := range []string{"normal", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			in := fixture(t, "ascii.jsonl")
			between, files := outputs[1].make(t, "format: "+format, ".jsonl")
			mqb(t, file(in, "format: json"), between, outputs[1].roll)
			out, back := outputs[0].make(t, "format: raw", "")
			mqb(t, file(joined(t, files()), "format: "+format), out)
			sameValues(t, in, joined(t, back()))
		})
	}
}

// TestRawLinesKeepEveryByte compares bytes, with and without an end of the last line.
func TestRawLinesKeepEveryByte(t *testing.T) {
	plain := fixture(t, "utf8.jsonl")
	open := written(t, bytes.TrimSuffix(content(t, plain), []byte("\n")))
	for _, o := range outputs {
		for name, in := range map[string]string{"whole": plain, "the last line without an end": open} {
			t.Run(o.name+", "+name, func(t *testing.T) {
				t.Parallel()
				out, files := o.make(t, "format: raw", "")
				mqb(t, file(in, "format: raw"), out, o.roll)
				sameBytes(t, plain, joined(t, files()))
			})
		}
	}
}
