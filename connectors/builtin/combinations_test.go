package builtin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
)

// Each endpoint in each form that is told apart by what it promises.
var (
	inputs = []endpoint{
		{"`file`", `file: {path: "/in/*.csv", format: csv}`},
		{"`file`, standard input or a pipe", `file: {path: "-", format: raw}`},
		{"`kafka`", `kafka: {url: "b:9092", topic: t, group_id: g}`},
		{"`static`", `static: "x"`},
		{"`memory`", `memory: {topic: a}`},
		{"`memory`, `enable_nack`", `memory: {topic: a, enable_nack: true}`},
	}
	outputs = []endpoint{
		{"→ `sqlx`", `sqlx: {url: "postgres://h/d", table: t, columns: auto}`},
		{"→ `file`, parts or one file", `file: {path: /out, name_by: source_position, format: raw}`},
		{"→ `file`, parts or one file", `file: {path: /out/all.jsonl, format: raw}`},
		{"→ `kafka`", `kafka: {url: "b:9092", topic: u}`},
		{"→ `memory`", `memory: {topic: b}`},
		{"→ `null`", `"null": {}`},
	}
	letters = []struct {
		endpoint
		sameSystem, elsewhere route.Guarantee // of its leg, behind an input that resumes
	}{
		{endpoint{"table", `sqlx: {url: "postgres://h/d", table: dead}`}, route.ExactlyOnce, route.EffectivelyOnce},
		{endpoint{"file", `file: {path: /out/dead.jsonl}`}, route.AtLeastOnce, route.AtLeastOnce},
		{endpoint{"topic", `kafka: {url: "b:9092", topic: dead}`}, route.AtLeastOnce, route.AtLeastOnce},
	}
	stagesOfInput = []string{
		`{filter: "a > 1"}`, `{id: "${payload:a}"}`, `{limiter: {messages_per_second: 10}}`, `{delay: {delay_ms: 5}}`, `{transform: {mapping: {a: 1}}}`,
		`{compression: {}}`, `{compression: {on_error: drop}}`, `{buffer: {}}`, `metrics`,
	}
	stagesOfOutput = []string{
		`{filter: "a > 1"}`, `{limiter: {messages_per_second: 10}}`, `{delay: {delay_ms: 5}}`, `{transform: {expression: "{a: a}"}}`,
		`{compression: {}}`, `{buffer: {}}`, `{retry: {}}`, `{timeout: {timeout_ms: 50}}`, `metrics`,
	}
)

type endpoint struct{ name, yaml string }

// refused are pairs that cannot run.
func refused(in, out endpoint) bool {
	return strings.Contains(in.yaml, `path: "-"`) && strings.Contains(out.yaml, "name_by") // nothing to name parts by
}

func inferred(t *testing.T, input, output, keys string) route.Inference {
	t.Helper()
	text := "input: {" + input + "}\noutput: {" + output + "}\n" + keys + "\n"
	spec, err := route.DecodeRoute("r", text, builtin.Registry())
	if err != nil {
		t.Fatalf("%s%v", text, err)
	}
	return route.Infer(spec, builtin.Registry())
}

func with(middlewares ...string) string {
	return ", middlewares: [" + strings.Join(middlewares, ", ") + "]"
}

// The table of the page is what Infer says of each pair, and no middleware changes it.
func TestThePageOfGuaranteesPromisesNoMoreThanEachCombination(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## Pair by pair\n\n")
	rows := strings.Split(rest, "\n")
	cells := func(line string) (out []string) {
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			out = append(out, strings.TrimSpace(cell))
		}
		return out
	}
	columns := cells(rows[0])
	promised := map[string][]string{}
	for _, line := range rows[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		c := cells(line)
		promised[c[0]] = c
	}
	if len(promised) != len(inputs) {
		t.Errorf("%d inputs on the page, %d here", len(promised), len(inputs))
	}
	for _, in := range inputs {
		for _, out := range outputs {
			if refused(in, out) {
				continue
			}
			got := inferred(t, in.yaml, out.yaml, "").Guarantee
			at := slices.Index(columns, out.name)
			if promised[in.name] == nil || at < 0 {
				t.Fatalf("the page has no %s %s", in.name, out.name)
			}
			want, _, _ := strings.Cut(promised[in.name][at], ";") // "; parts are refused"
			if strings.HasPrefix(out.yaml, `"null"`) {
				want = string(route.ExactlyOnce) // "nothing to lose or to double"
			}
			if string(got) != want {
				t.Errorf("%s %s: %s, and the page says %s", in.name, out.name, got, want)
			}
			for _, s := range stagesOfInput {
				if with := inferred(t, in.yaml+with(s), out.yaml, "").Guarantee; with != got {
					t.Errorf("%s with %s %s: %s, without it %s", in.name, s, out.name, with, got)
				}
			}
			for _, s := range stagesOfOutput {
				if with := inferred(t, in.yaml, out.yaml+with(s), "").Guarantee; with != got {
					t.Errorf("%s %s with %s: %s, without it %s", in.name, out.name, s, with, got)
				}
			}
		}
	}
}

// A route with a dlq is as good as its weaker leg, and drops nothing that it promises.
func TestARouteWithADLQIsAsGoodAsItsWeakerLeg(t *testing.T) {
	t.Parallel()
	for _, in := range inputs {
		for _, out := range outputs {
			if refused(in, out) {
				continue
			}
			alone := inferred(t, in.yaml, out.yaml, "").Guarantee
			for _, dlq := range letters {
				name := fmt.Sprintf("%s %s, dlq %s", in.name, out.name, dlq.name)
				got := inferred(t, in.yaml, out.yaml+with("{retry: {}}", "{dlq: {endpoint: {"+dlq.yaml+"}}}"), "")
				if len(got.Legs) != 2 {
					t.Errorf("%s: %d legs", name, len(got.Legs))
					continue
				}
				leg := dlq.elsewhere
				if strings.Contains(out.name, "sqlx") {
					leg = dlq.sameSystem
				}
				if behind := inferred(t, in.yaml, outputs[0].yaml, "").Guarantee; behind.Compare(leg) < 0 {
					leg = behind // what the input repeats or loses
				}
				if got.Legs[1].Guarantee != leg {
					t.Errorf("%s: the leg of the dlq is %s, want %s", name, got.Legs[1].Guarantee, leg)
				}
				if want := slices.MinFunc([]route.Guarantee{alone, leg}, route.Guarantee.Compare); got.Guarantee != want {
					t.Errorf("%s: %s, want %s", name, got.Guarantee, want)
				}
			}
		}
	}
}

// A dlq that cannot hold a letter is found when the file is read, and not by the first
// bad record.
func TestADLQThatCannotHoldALetterIsRefusedBeforeTheFirstBadRecord(t *testing.T) {
	t.Parallel()
	for letters, says := range map[string]string{
		`{path: dead.csv, format: csv}`:                   "output.dlq.file.format: cannot hold dead letters: csv",
		`{path: parts, name_by: source_position}`:         "output.dlq.file.name_by: cannot hold",
		`{path: dead.jsonl.gz}`:                           "output.dlq.file.compression: cannot hold",
		`{path: dead.jsonl, compression: zstd}`:           "output.dlq.file.compression: cannot hold",
		`{path: ./x/../out.jsonl}`:                        "output.dlq.file.path: cannot hold dead letters: the route appends",
		`{path: dead.jsonl}`:                              "",
		`{path: dead.jsonl, format: json}`:                "",
		`{path: "-"}`:                                     "",
		`{path: "dead-${partition}.jsonl", fsync: "off"}`: "",
	} {
		text := "input: {static: x}\noutput:\n  file: {path: out.jsonl}\n  middlewares: [{dlq: {endpoint: {file: " + letters + "}}}]\n"
		_, err := route.Decode("r.yaml", []byte(text), builtin.Registry(), route.Options{})
		switch {
		case says == "" && err != nil:
			t.Errorf("%s: %v", letters, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), "r.yaml:2:1: route r: "+says)):
			t.Errorf("%s: %v", letters, err)
		}
	}
}
