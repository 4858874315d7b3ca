package builtin_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
)

// What each pair of real endpoints guarantees. A line that changes here changes
// what users were promised.
func TestGuaranteesOfRealEndpoints(t *testing.T) {
	const (
		file   = `file: {path: "/in/*.csv", format: csv}`
		kafka  = `kafka: {url: "b:9092", topic: t, group_id: g}`
		static = `static: "x"`
		memory = `memory: {topic: a}`

		parts    = `file: {path: /out, name_by: source_position, format: raw}`
		sqlx     = `sqlx: {url: "postgres://h/d", insert_query: "INSERT INTO t (a) VALUES (${payload:a}::bigint)"}`
		appended = `file: {path: /out/all.jsonl, format: raw}`
		unsynced = `file: {path: /out/all.jsonl, format: raw, fsync: "off"}`
		topic    = `kafka: {url: "b:9092", topic: u}`
		acks1    = `kafka: {url: "b:9092", topic: u, producer_options: [[acks, "1"]]}`
		stdin    = `file: {path: "-", format: raw}`

		table    = `sqlx: {url: "postgres://h/d", table: t, columns: auto, key: id}`
		letters  = `, middlewares: [{dlq: {endpoint: {sqlx: {url: "postgres://h/d", table: dead}}}}]`
		lettersB = `, middlewares: [{dlq: {endpoint: {sqlx: {url: "postgres://other/d", table: dead}}}}]`
		lettersF = `, middlewares: [{retry: {}}, {dlq: {endpoint: {file: {path: /out/dead.jsonl}}}}]`

		null = `"null": {}`
		mem  = `memory: {topic: b}`

		stages = `, middlewares: [{filter: "a > 1"}, {id: "${payload:a}"}, {limiter: {messages_per_second: 10}}]`
	)
	for _, c := range []struct {
		input, output, keys string
		want                route.Guarantee
	}{
		{file, parts, "", route.ExactlyOnce},
		{file + stages, parts, "", route.ExactlyOnce},
		{file, parts, "shared_storage: true", route.ExactlyOnce},
		{kafka, parts, "", route.ExactlyOnce},
		{static, parts, "", route.ExactlyOnce},
		{file, parts, "checkpoint_store: memory", route.AtLeastOnce},

		{kafka, sqlx, "", route.ExactlyOnce},
		{kafka + stages, sqlx, "", route.ExactlyOnce},
		{file, sqlx, "commit: transactional", route.ExactlyOnce},
		{memory, sqlx, "", route.AtMostOnce},

		{file, appended, "", route.ExactlyOnce},
		{kafka, appended, "", route.ExactlyOnce},
		{file, unsynced, "", route.AtMostOnce},
		{stdin, appended, "", route.AtMostOnce},
		{stdin, topic, "", route.AtMostOnce},
		{file, topic, "", route.AtLeastOnce},
		{kafka, topic, "", route.AtLeastOnce},
		{kafka, acks1, "", route.AtMostOnce},
		{kafka, table, "", route.ExactlyOnce},
		{kafka, table + letters, "", route.ExactlyOnce},
		{kafka, table + lettersB, "", route.EffectivelyOnce},
		{kafka, table + lettersF, "", route.AtLeastOnce},
		{file, topic + lettersF, "", route.AtLeastOnce},

		{kafka, mem, "", route.AtMostOnce},
		{memory, mem, "", route.AtMostOnce},
		{kafka, null, "", route.ExactlyOnce},
	} {
		text := "input: {" + c.input + "}\noutput: {" + c.output + "}\n" + c.keys + "\n"
		spec, err := route.DecodeRoute("r", text, builtin.Registry())
		if err != nil {
			t.Errorf("%s%v", text, err)
			continue
		}
		in := route.Infer(spec, builtin.Registry())
		if in.Guarantee != c.want {
			t.Errorf("%sgot %s, want %s\n%s", text, in.Guarantee, c.want, strings.Join(in.Lines(), "\n"))
		}
		if c.want != route.ExactlyOnce && in.Raise == "" {
			t.Errorf("%snothing would raise %s", text, in.Guarantee)
		}
	}
}
