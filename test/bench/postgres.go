package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/mqbridge/mqb/test/harness"
)

const (
	orderColumns = `first_name text, country text, amount double precision, created_at timestamptz, active boolean, attributes jsonb`
	plainTable   = `CREATE TABLE orders (id bigint, ` + orderColumns + `)`
	keyedTable   = `CREATE TABLE orders (id bigint PRIMARY KEY, ` + orderColumns + `)`
)

// postgres is a job that ends in a table.
func (w *work) postgres(title string, t task) (job, error) {
	if w.url == "" {
		pg, stop, err := harness.OpenPostgres()
		if err != nil {
			return job{}, err
		}
		w.stops = append(w.stops, stop)
		w.url = pg.URL("postgres")
	}
	t.postgres, t.rows = w.url, w.rows
	table := plainTable
	if t.kind == jsonlUpserted {
		table = keyedTable
	}
	j, err := w.job(w.title(title), t)
	j.before = func(ctx context.Context) error {
		return errors.Join(w.clean(ctx), w.query(ctx, func(c *pgx.Conn) error {
			_, err := c.Exec(ctx, "DROP TABLE IF EXISTS orders, mqb_checkpoints; "+table)
			if err == nil {
				_, err = c.Exec(ctx, "CHECKPOINT")
			}
			return err
		}))
	}
	j.count = func(ctx context.Context) (n int, err error) {
		return n, w.query(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n)
		})
	}
	j.lines = func(ctx context.Context, yield func([]byte)) error {
		return w.query(ctx, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, "SELECT row_to_json(o)::text FROM orders o")
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				yield(rows.RawValues()[0])
			}
			return rows.Err()
		})
	}
	return j, err
}

func (w *work) query(ctx context.Context, do func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return do(c)
}

func (w *work) jsonlPostgres(k kind, title string) func(context.Context) (job, error) {
	return func(context.Context) (job, error) {
		csv, jsonl, err := fixture(w.dir, w.rows)
		if err != nil {
			return job{}, err
		}
		return w.postgres(title, task{kind: k, in: jsonl, csv: csv})
	}
}

func (w *work) kafkaPostgres(ctx context.Context) (job, error) {
	topic, err := w.source(ctx)
	if err != nil {
		return job{}, err
	}
	j, err := w.postgres("Kafka → PostgreSQL, COPY", task{kind: kafkaCopied, kafka: w.kafka.Addr, topic: topic, group: group})
	j.before = w.forget(j.before)
	return j, err
}
