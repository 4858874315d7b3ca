package main

import (
	"fmt"
	"strings"
)

// kind is what a job does, whoever does it.
type kind int

const (
	csvToJSONL kind = iota
	csvToTyped
	jsonlToJSONL
	csvToZstd
	jsonlToZstd
	csvZstdToJSONL
	jsonlZstdToJSONL
	kafkaToJSONL
	kafkaProjected
	jsonlToKafka
	jsonlCopied
	jsonlUpserted
	kafkaCopied
)

var kindNames = [...]string{"csv", "csv-typed", "jsonl", "csv-zstd", "jsonl-zstd", "zstd-csv", "zstd-jsonl",
	"kafka-jsonl", "kafka-projection", "jsonl-kafka", "postgres-copy", "postgres-upsert", "kafka-postgres"}

func (k kind) String() string { return kindNames[k] }

// task is the work of a job: what is read and where it goes.
type task struct {
	kind     kind
	in, out  string // files
	parts    string // the directory of mqb's parts
	csv      string // the rows of in as CSV, for programs that do not read JSON
	kafka    string // address
	topic    string
	group    string
	postgres string // URL
	rows     int
}

var columns = []string{"id", "first_name", "country", "amount", "created_at", "active", "attributes"}

const typedSchema = `{type: object, properties: {id: {type: integer}, attributes: {type: string, contentMediaType: application/json}}}`

// projected are the columns of a projection.
var projected = []string{"id", "country", "amount", "active"}

// Spellings of a field in a mapping.
const (
	mqbField      = "${payload:%s}"
	mqBridgeField = "$.%s"
)

// mqbRoute is the task in mqb's dialect. more are keys of a file that it writes.
func (t task) mqbRoute(parts bool, more string) string {
	in, out := t.endpoints(mqbField)
	if t.out != "" {
		path, keys := t.out, "format: raw"
		if parts {
			path, keys = t.parts, keys+", name_by: source_position"
		}
		if t.packs() {
			keys += ", compression: zstd"
		}
		out = t.middlewares(mqbField) + fmt.Sprintf("file: {path: %q, %s%s}", path, keys, more)
	}
	return fmt.Sprintf("routes:\n  job:\n    input: {%s}\n    output: {%s}\n", in, out)
}

// packs says that the output is compressed.
func (t task) packs() bool { return t.kind == csvToZstd || t.kind == jsonlToZstd }

// endpoints are the two ends in the dialect that mqb and mq-bridge have in common,
// save for how a mapping spells a field.
func (t task) endpoints(field string) (in, out string) {
	switch t.kind {
	case csvToJSONL, csvToTyped, csvToZstd:
		in = fmt.Sprintf("file: {path: %q, format: csv}", t.in)
	case csvZstdToJSONL:
		in = fmt.Sprintf("file: {path: %q, format: csv, compression: zstd}", t.in)
	case jsonlZstdToJSONL:
		in = fmt.Sprintf("file: {path: %q, format: raw, compression: zstd}", t.in)
	case kafkaToJSONL, kafkaProjected, kafkaCopied:
		in = fmt.Sprintf("kafka: {url: %q, topic: %s, group_id: %s}", t.kafka, t.topic, t.group)
	default:
		in = fmt.Sprintf("file: {path: %q, format: raw}", t.in)
	}
	switch t.kind {
	case csvToZstd, jsonlToZstd:
		out = fmt.Sprintf("file: {path: %q, format: raw, compression: zstd}", t.out)
	case jsonlToKafka:
		out = fmt.Sprintf("kafka: {url: %q, topic: %s}", t.kafka, t.topic)
	case jsonlCopied, kafkaCopied:
		tokens := make([]string, len(columns))
		for i, c := range columns {
			tokens[i] = "${payload:" + c + "}"
		}
		out = fmt.Sprintf("sqlx: {url: %q, table: orders, bulk_copy: true, insert_query: \"INSERT INTO orders (%s) VALUES (%s)\"}",
			t.postgres, strings.Join(columns, ", "), strings.Join(tokens, ", "))
	case jsonlUpserted:
		out = fmt.Sprintf("sqlx: {url: %q, table: orders, columns: auto, key: id}", t.postgres)
	default:
		out = fmt.Sprintf("file: {path: %q, format: raw}", t.out)
	}
	return in, t.middlewares(field) + out
}

func (t task) middlewares(field string) string {
	switch t.kind {
	case csvToTyped:
		return "middlewares: [{transform: {schema: " + typedSchema + "}}], "
	case kafkaProjected:
		var m []string
		for _, c := range projected {
			m = append(m, fmt.Sprintf("%s: %q", c, fmt.Sprintf(field, c)))
		}
		return "middlewares: [{transform: {mapping: {" + strings.Join(m, ", ") + "}}}], "
	}
	return ""
}
