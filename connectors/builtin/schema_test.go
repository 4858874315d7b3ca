package builtin_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/route/schematest"
)

func decode(text string) error {
	_, err := route.Decode("f.yaml", []byte(text), builtin.Registry(), route.Options{LookupEnv: func(string) (string, bool) { return "x", true }})
	return err
}

// fenced are blocks of YAML in a page; a configuration is one that names an input.
var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every example that is shown or shipped decodes, and the schema takes it: an
// editor must not mark what runs.
func TestEveryExampleIsValidByDecoderAndSchema(t *testing.T) {
	t.Parallel()
	valid := schematest.Validator(t, builtin.Registry())
	root := filepath.Join("..", "..")
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "servers" || d.Name() == "bin" || d.Name() == "testdata" && !strings.Contains(path, "deploy")):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		var texts []string
		switch filepath.Ext(path) {
		case ".md":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range fenced.FindAllStringSubmatch(string(b), -1) {
				texts = append(texts, m[1])
			}
		case ".yaml", ".yml":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts = append(texts, string(b))
		}
		for _, text := range texts {
			if !strings.Contains(text, "input:") || strings.Contains(path, "peers") {
				continue // of another program, which the benchmarks compare with
			}
			seen++
			if err := decode(text); err != nil {
				t.Errorf("%s does not decode: %v\n%s", path, err, text)
			}
			if err := valid(text); err != nil {
				t.Errorf("%s is not valid by the schema: %v\n%s", path, err, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 3 {
		t.Errorf("only %d examples were found", seen)
	}
}

// What is wrong by its keys, types or names is so for both; among it what would
// take records and deliver them nowhere.
func TestMistakesAreRefusedByDecoderAndSchema(t *testing.T) {
	t.Parallel()
	valid := schematest.Validator(t, builtin.Registry())
	const in = "input: {file: {path: in.csv, format: csv}}\n"
	for name, text := range map[string]string{
		"a misspelt key":                    "input: {file: {path: in.csv, fromat: csv}}",
		"a misspelt key of a route":         in + "bacth_size: 5",
		"a misspelt middleware":             "input: {file: {path: in.csv, format: csv}, middlewares: [{fliter: x}]}",
		"an unknown endpoint":               "input: {kafak: {url: u, topic: t}}",
		"two endpoints":                     "input: {file: {path: x}, kafka: {url: u, topic: t}}",
		"no input":                          "output: null",
		"no topic":                          "input: {kafka: {url: u}}",
		"a list for an output":              in + "output: []",
		"no destination in a fanout":        in + "output: {fanout: []}",
		"a switch without a target":         in + "output: {switch: {when: []}}",
		"an empty output":                   in + "output: {}",
		"middlewares and no endpoint":       in + "output: {middlewares: [metrics]}",
		"a number in quotes":                in + `batch_size: "5"`,
		"a batch of nothing":                in + "batch_size: 0",
		"a duration without a unit":         in + "give_up_after: 5",
		"a duration with one too many":      in + "reconnect_interval_ms: 5s",
		"a guarantee that does not exist":   in + "required_delivery: exactly_once",
		"a compression that does not exist": "input: {file: {path: x, compression: rar}}",
		"a dlq without an endpoint":         in + "output: {memory: {topic: t}, middlewares: [{dlq: {}}]}",
		"an input of a dlq":                 in + "output: {memory: {topic: t}, middlewares: [{dlq: {endpoint: {static: x}}}]}",
		"no routes":                         "routes: {}",
		"a route beside routes":             "routes: {a: {input: {static: x}}}\nb: {input: {static: x}}",
		"two middlewares in one":            in + "output: {memory: {topic: t}, middlewares: [{retry: {}, timeout: {timeout_ms: 5}}]}",
		"a key that is not built":           in + "delivery_mode: direct_hold",
		"text for a mapping":                in + "roll: often",
		"a null for a required key":         "input: {kafka: {url: u, topic: null}}",
	} {
		if err := decode(text); err == nil {
			t.Errorf("%s decodes:\n%s", name, text)
		}
		if err := valid(text); err == nil {
			t.Errorf("%s is valid by the schema:\n%s", name, text)
		}
	}
}

// A fanout of nothing and a switch that leads nowhere would take every record and
// deliver none.
func TestAnOutputThatDeliversNowhereIsRefusedAndDoesNotTakeEverything(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"{fanout: []}", "{fanout: }", "{switch: {}}", "{switch: {when: [], default: null}}", "[]", "{}", "[{memory: {topic: t}}]"} {
		if err := decode("input: {static: x}\noutput: " + output); err == nil {
			t.Errorf("output: %s decodes", output)
		}
	}
}

func TestAnUnknownKeyIsRefusedWithTheNearestAndNotIgnored(t *testing.T) {
	t.Parallel()
	err := decode("input: {file: {path: in.csv, fromat: csv}}")
	if err == nil || !strings.Contains(err.Error(), `f.yaml:1:30: route f: input.file.fromat: unknown key (did you mean "format"?)`) {
		t.Error(err)
	}
}
