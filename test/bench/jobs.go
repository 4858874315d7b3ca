package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/mqbridge/mqb/test/harness"
)

// work holds what the jobs share.
type work struct {
	dir          string
	fenced, open string // directories of the two builds
	stops        []func()
	kafka        *harness.KafkaBroker
	topic        string
}

func (w *work) stop() {
	for i := len(w.stops) - 1; i >= 0; i-- {
		w.stops[i]()
	}
}

func (w *work) path(name string) string { return filepath.Join(w.dir, name) }

// mqbctl is a variant that runs a spec.
func (w *work) mqbctl(name, bin, spec string) variant {
	return variant{name: name, bin: filepath.Join(bin, "mqbctl"), args: func() []string {
		return []string{"run", spec, "--data-dir", w.path("state"), "-o", "json"}
	}}
}

func (w *work) spec(name, text string) (string, error) {
	path := w.path(name + ".yaml")
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// files is a job that copies a file to parts.
func (w *work) files(name, in, format string, rows int) (job, error) {
	out := w.path("out")
	spec, err := w.spec(name, fmt.Sprintf("routes:\n  job:\n    input:\n      file: {path: %q, format: %s}\n    output:\n      file: {path: %q, format: raw, name_by: source_position}\n", in, format, out))
	if err != nil {
		return job{}, err
	}
	j := job{name: name, rows: rows, before: w.clean, count: w.countLines,
		variants: []variant{w.mqbctl("mqb", w.fenced, spec), w.mqbctl("mqb again (A/A)", w.fenced, spec), w.mqbctl("mqb, no comparisons", w.open, spec)}}
	if *peer != "" {
		j.variants = append(j.variants, variant{name: "peer", bin: "env", args: func() []string {
			return []string{"IN=" + in, "OUT=" + filepath.Join(out, "part-peer.bin"), "sh", "-c", *peer}
		}})
	}
	return j, nil
}

func (w *work) clean(context.Context, variant) error {
	for _, d := range []string{"out", "state"} {
		if err := os.RemoveAll(w.path(d)); err != nil {
			return err
		}
	}
	return os.MkdirAll(w.path("out"), 0o755)
}

// countLines counts the lines of all parts. It reads in small pieces: the peak
// memory that the kernel reports for a child begins with its parent's.
func (w *work) countLines(context.Context) (int, error) {
	parts, err := filepath.Glob(filepath.Join(w.path("out"), "part-*"))
	if err != nil {
		return 0, err
	}
	n, buf := 0, make([]byte, 256<<10)
	for _, p := range parts {
		f, err := os.Open(p)
		if err != nil {
			return 0, err
		}
		for {
			k, err := f.Read(buf)
			n += bytes.Count(buf[:k], []byte{'\n'})
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				_ = f.Close()
				return 0, err
			}
		}
		_ = f.Close()
	}
	return n, nil
}

func (w *work) csv(context.Context) (job, error) {
	in, _, err := fixture(w.dir)
	if err != nil {
		return job{}, err
	}
	return w.files("CSV → JSONL, strings kept", in, "csv", fixtureRows)
}

func (w *work) jsonl(context.Context) (job, error) {
	_, in, err := fixture(w.dir)
	if err != nil {
		return job{}, err
	}
	return w.files("JSONL → JSONL, bytes passed through", in, "raw", fixtureRows)
}

// long is the JSONL job with ten times the rows: what a run costs once (start-up,
// claim, the last part) disappears, and memory must not grow.
func (w *work) long(context.Context) (job, error) {
	_, in, err := fixture(w.dir)
	if err != nil {
		return job{}, err
	}
	all, err := os.Create(w.path("long.jsonl"))
	if err != nil {
		return job{}, err
	}
	defer all.Close()
	for range 10 {
		f, err := os.Open(in)
		if err != nil {
			return job{}, err
		}
		_, err = io.Copy(all, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return job{}, err
		}
	}
	return w.files("JSONL → JSONL, ten times the rows", all.Name(), "raw", 10*fixtureRows)
}

// kafkaRows is what the topic holds: enough for runs of several seconds, so that
// the claim and the last commit of a run are not most of what is measured.
const kafkaRows = 6 * fixtureRows

// broker starts Kafka and fills a topic of 8 partitions with the fixture.
func (w *work) broker(ctx context.Context) error {
	if w.kafka != nil {
		return nil
	}
	kafka, stop, err := harness.OpenKafka(harness.KafkaOptions{JVM: []string{"-Xms512m", "-Xmx512m"}})
	if err != nil {
		return err
	}
	w.stops = append(w.stops, stop)
	w.kafka, w.topic = kafka, "orders"
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.AllowAutoTopicCreation())
	if err != nil {
		return err
	}
	defer client.Close()
	if err := harness.CreateTopic(ctx, kafka.Addr, w.topic, 8); err != nil {
		return err
	}
	var failed error
	orders(kafkaRows, func(o order) {
		client.Produce(ctx, &kgo.Record{Topic: w.topic, Value: []byte(o.json())}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	})
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return failed
}

func (w *work) kafkaParts(ctx context.Context) (job, error) {
	if err := w.broker(ctx); err != nil {
		return job{}, err
	}
	spec, err := w.spec("kafka-parts", fmt.Sprintf("routes:\n  job:\n    input:\n      kafka: {url: %q, topic: %s, group_id: bench}\n    output:\n      file: {path: %q, format: raw, name_by: source_position}\n", w.kafka.Addr, w.topic, w.path("out")))
	if err != nil {
		return job{}, err
	}
	return job{name: "Kafka → parts", rows: kafkaRows, before: w.forget(w.clean), count: w.countLines,
		variants: []variant{w.mqbctl("mqb", w.fenced, spec), w.mqbctl("mqb, no comparisons", w.open, spec)}}, nil
}

// forget removes the group's offsets, so that each run starts at the beginning.
func (w *work) forget(before func(context.Context, variant) error) func(context.Context, variant) error {
	return func(ctx context.Context, v variant) error {
		if err := harness.DeleteGroup(ctx, w.kafka.Addr, "bench"); err != nil {
			return err
		}
		return before(ctx, v)
	}
}

func (w *work) kafkaPostgres(ctx context.Context) (job, error) {
	if err := w.broker(ctx); err != nil {
		return job{}, err
	}
	pg, stop, err := harness.OpenPostgres()
	if err != nil {
		return job{}, err
	}
	w.stops = append(w.stops, stop)
	url := pg.URL("postgres")
	columns := []string{"id", "first_name", "country", "amount", "created_at", "active", "attributes"}
	tokens := make([]string, len(columns))
	for i, c := range columns {
		tokens[i] = "${payload:" + c + "}"
	}
	spec, err := w.spec("kafka-postgres", fmt.Sprintf("routes:\n  job:\n    input:\n      kafka: {url: %q, topic: %s, group_id: bench}\n    output:\n      sqlx:\n        url: %q\n        bulk_copy: true\n        insert_query: \"INSERT INTO orders (%s) VALUES (%s)\"\n",
		w.kafka.Addr, w.topic, url, strings.Join(columns, ", "), strings.Join(tokens, ", ")))
	if err != nil {
		return job{}, err
	}
	exec := func(ctx context.Context, sql string) error {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close(ctx)
		_, err = c.Exec(ctx, sql)
		return err
	}
	return job{name: "Kafka → PostgreSQL, COPY", rows: kafkaRows,
		before: w.forget(func(ctx context.Context, v variant) error {
			if err := w.clean(ctx, v); err != nil {
				return err
			}
			return exec(ctx, `DROP TABLE IF EXISTS orders, mqb_checkpoints;
CREATE TABLE orders (id bigint, first_name text, country text, amount double precision, created_at timestamptz, active boolean, attributes jsonb)`)
		}),
		count: func(ctx context.Context) (n int, err error) {
			c, err := pgx.Connect(ctx, url)
			if err != nil {
				return 0, err
			}
			defer c.Close(ctx)
			return n, c.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n)
		},
		variants: []variant{w.mqbctl("mqb", w.fenced, spec), w.mqbctl("mqb, no comparisons", w.open, spec)}}, nil
}
