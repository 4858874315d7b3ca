package differential

import "testing"

// dialects of the table that Python writes, in our words.
var dialects = []struct{ name, keys string }{
	{"excel", `separator: ","`},
	{"unix", `separator: auto`},
	{"tab", `separator: tab`},
	{"semicolon", `separator: ";", quote: "'"`},
	{"bom", `separator: auto`},
}

// TestCSVWrittenByPythonIsReadAsPythonReadsIt has quotes, line ends of all kinds,
// separators and blanks inside of fields.
func TestCSVWrittenByPythonIsReadAsPythonReadsIt(t *testing.T) {
	table := fixture(t, "table.jsonl")
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			out, files := outputs[0].make(t, "format: raw", ".jsonl")
			mqb(t, file(fixture(t, d.name+".csv"), "format: csv, csv: {"+d.keys+"}"), out)
			sameValues(t, table, joined(t, files()))
		})
	}
}

// TestCSVWrittenByMqbIsReadByPythonAsItWas writes a file and parts, each of which
// has a header of its own.
func TestCSVWrittenByMqbIsReadByPythonAsItWas(t *testing.T) {
	table := fixture(t, "table.jsonl")
	for _, o := range outputs {
		for _, d := range []struct{ name, keys string }{
			{"excel", `separator: ","`}, {"tab", `separator: tab`}, {"semicolon", `separator: ";", quote: "'"`},
		} {
			t.Run(o.name+", "+d.name, func(t *testing.T) {
				t.Parallel()
				out, files := o.make(t, "format: csv, csv: {"+d.keys+"}", ".csv")
				mqb(t, file(table, "format: json"), out, o.roll)
				sameValues(t, table, written(t, python(t, append([]string{"read", d.name}, files()...)...)))
			})
		}
	}
	t.Run("read from csv", func(t *testing.T) {
		t.Parallel()
		out, files := outputs[0].make(t, "format: csv", ".csv")
		mqb(t, file(fixture(t, "unix.csv"), "format: csv"), out)
		sameValues(t, table, written(t, python(t, append([]string{"read", "excel"}, files()...)...)))
	})
}
