package route_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/route/schematest"
)

// Each key with each kind of value: the schema and the decoder say the same.
func TestSchemaAndDecoderAgreeOnEveryKey(t *testing.T) {
	t.Parallel()
	bySchema := schematest.Validator(t, testTypes{})
	values := []string{
		`1`, `0`, `-1`, `99`, `100000000`, `1.5`, `x`, `""`, `"5"`, `true`, `"true"`, `5s`, `64MiB`, `null`, `[]`, `{}`, `[a]`, `[[a, b]]`, `[[a]]`, `{a: b}`, `{a: 1}`,
		`exactly-once`, `raw`, `json`, `drop`, `auto`, `"${X}"`, `"${X:-1}"`, `{required: true}`, `{required: 1}`, `{ca_file: x, other: y}`, `{labels: {a: b}}`, `{exclude: [a]}`, `{age: 5s, bytes: 1MiB}`, `{age_ms: 5}`, `{age: 5s, age_ms: 5}`,
	}
	cases := 0
	check := func(text string) {
		t.Helper()
		cases++
		_, err := route.Decode("f.yaml", []byte(text), testTypes{}, route.Options{LookupEnv: func(string) (string, bool) { return "", false }})
		if err != nil && (strings.Contains(err.Error(), "variable X is not set") || strings.Contains(err.Error(), "this value")) {
			return // what a variable holds is not for a schema to say
		}
		if err != nil && strings.Contains(err.Error(), "must be at ") && strings.Contains(text, `"`) {
			return // nor are the bounds of texts
		}
		if valid := bySchema(text); (valid == nil) != (err == nil) {
			t.Errorf("%s\ndecoder: %v\nschema:  %v", text, err, valid)
		}
	}
	for _, key := range []string{"url", "topic", "password", "polling_interval_ms", "linger", "max_bytes", "format", "consumer_options", "tls", "columns", "qos", "ratio", "delayed_ack", "topc", "checkpoint_store"} {
		for _, v := range values {
			if key == "linger" && (v == "0" || v == "-1") || key == "checkpoint_store" && strings.Trim(v, "nul") != "" && v != "1" {
				continue // 0 needs no unit; what a store's URL is the decoder knows
			}
			config := map[string]string{"url": "u", "topic": "t"}
			config[key] = v
			var pairs []string
			for k, v := range config {
				pairs = append(pairs, k+": "+v)
			}
			side := "input: {broker: {%s}}"
			if key == "format" {
				side = "input: {static: x}\noutput: {broker: {%s}}" // json is for outputs
			}
			check(fmt.Sprintf(side, strings.Join(pairs, ", ")))
		}
	}
	for _, key := range []string{"description", "enabled", "concurrency", "batch_size", "exit_on_empty", "required_delivery", "checkpoint_interval", "checkpoint_interval_ms", "placement", "roll", "on_error", "max_record_bytes", "existing_parts", "reconnect_interval_ms", "delivery_mode", "batchsize"} {
		for _, v := range values {
			if key == "required_delivery" && v == "exactly-once" || strings.HasPrefix(key, "checkpoint_interval") && v == "0" || key == "batch_size" && v == "100000000" {
				continue
			}
			check(fmt.Sprintf("{input: {broker: {url: u, topic: t}}, %s: %s}", key, v))
		}
	}
	for _, text := range []string{
		"input: {}", "input: x", "input: static", "input: broker", "input: null", "input: []", "output: null", "{}", "[]", "routes: {}", "routes: []", "routes: {a: {}}",
		"input: {static: x}\noutput: {}", "input: {static: x}\noutput: memory", "input: {static: x}\noutput: \"null\"", "input: {static: x}\noutput: [memory]", "input: {static: x}\noutput: []",
		"input: {memory: {}}", "input: {static: x, broker: {url: u, topic: t}}", "input: {static: x, middlewares: null}", "input: {static: x, middlewares: []}",
		"input: {static: x, middlewares: [{filter: x}]}", "input: {static: x, middlewares: [{filter: x, other: y}]}", "input: {static: x, middlewares: [{fliter: x}]}", "input: {static: x, middlewares: {filter: x}}",
		"input: {middlewares: [{filter: x}]}", "input: {static: {body: x}}", "input: {static: {}}", "input: {static: 5}", "input: {static: [x]}", "input: {static: {body: x, x: y}}",
		"routes: {a: {input: {static: x}}}\nlog_level: info", "routes: {a: {input: {static: x}}}\nb: {input: {static: x}}", "routes: {a: {input: {static: x}}}\nx-anchors: {a: 1}",
		"a: {input: {static: x}}", "a: {input: {static: x}}\nb: {output: memory}", "log_level: info", "log_level: info\na: {input: {static: x}}", "a: 5",
		"input: {static: x}\noutput: {fanout: []}", "input: {static: x}\noutput: {switch: {}}",
	} {
		check(text)
	}
	if cases < 900 {
		t.Errorf("only %d cases", cases)
	}
}
