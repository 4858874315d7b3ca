package sqlx_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

// dlq opens a sink as the endpoint of a dlq.
type dlq struct{ connectors.Sink }

func (d dlq) Prepare(ctx context.Context, p connectors.Partition) (connectors.Prepared, error) {
	prepared, err := d.Sink.Prepare(ctx, p)
	return letterbox{prepared}, err
}

type letterbox struct{ connectors.Prepared }

func (l letterbox) Open(ctx context.Context, claim connectors.Claim) (connectors.Writer, error) {
	claim.Leg = connectors.LegDeadLetters
	return l.Prepared.Open(ctx, claim)
}

func openLetters(t testing.TB, sink connectors.Sink) connectors.PlainWriter {
	t.Helper()
	prepared, err := sink.Prepare(t.Context(), connectors.Partition{ID: "p"})
	if err != nil {
		t.Fatal(err)
	}
	w, err := prepared.Open(t.Context(), connectors.Claim{
		Route: "r", Leg: connectors.LegDeadLetters, Partition: connectors.Partition{ID: "p"},
		Spec: &route.Spec{Name: "r"}, Gate: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w.(connectors.PlainWriter)
}

const lettersTable = "CREATE TABLE t (n serial, id text PRIMARY KEY, route text, partition text, error text, payload bytea CHECK (payload <> '{\"id\":666,\"text\":\"no\"}'), metadata jsonb, at timestamptz DEFAULT now())"

func TestDeadLetterSink(t *testing.T) {
	url := harness.Postgres(t).NewDatabase(t)
	sinktest.Run(t, sinktest.Harness{New: func(t *testing.T) *sinktest.Subject {
		harness.PostgresExec(t, url, "DROP TABLE IF EXISTS t, "+ckpt.DefaultTable+"; "+lettersTable)
		return &sinktest.Subject{
			Open:    func(t *testing.T) connectors.Sink { return dlq{newSink(t, sqlx.Config{URL: url, Table: "t"})} },
			Absorbs: true,
			Rows: func(t *testing.T) [][]byte {
				var out [][]byte
				for _, s := range strings.Split(harness.PostgresValue[string](t, url, "SELECT coalesce(string_agg(convert_from(payload, 'UTF8'), E'\\n' ORDER BY n), '') FROM t"), "\n") {
					if s != "" {
						out = append(out, []byte(s))
					}
				}
				return out
			},
			Refused: func(int) []byte { return []byte(`{"id":666,"text":"no"}`) },
			Block: func(t *testing.T) func() {
				conn := harness.PostgresConnect(t, url)
				if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE t IN EXCLUSIVE MODE"); err != nil {
					t.Fatal(err)
				}
				return func() { _, _ = conn.Exec(context.Background(), "ROLLBACK") }
			},
		}
	}})
}

// Whatever a letter holds, it must not be why it is lost: bytes that are no text
// in the payload, in the error and in metadata.
func TestDeadLetterOfAnyBytesIsKeptOnce(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, lettersTable)
	w := openLetters(t, newSink(t, sqlx.Config{URL: url, Table: "t"}))
	defer w.Close()
	b := batchOf(3, func(i int) string { return "\x00\xff not text" })
	for i, id := range []string{"a", "b", "a"} {
		b.PutMeta(i, "mqb.id", []byte(id))
		b.PutMeta(i, "mqb.dlq.route", []byte("orders"))
		b.PutMeta(i, "mqb.dlq.partition", []byte("orders-3"))
		b.PutMeta(i, "mqb.dlq.error", []byte("bad \x00\xff bytes"))
		b.PutMeta(i, "k\xfe", []byte("v\x00\""))
	}
	for range 2 {
		if err := w.Write(t.Context(), b, 0, 3); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, url, `SELECT string_agg(concat_ws('|', id, route, partition, error, payload, metadata->>E'k\uFFFD', at IS NOT NULL), E'\n' ORDER BY id) FROM t`,
		"a|orders|orders-3|bad \uFFFD\uFFFD bytes|\\x00ff206e6f742074657874|v\uFFFD\"|t\nb|orders|orders-3|bad \uFFFD\uFFFD bytes|\\x00ff206e6f742074657874|v\uFFFD\"|t")
	expect(t, url, "SELECT count(*) FROM pg_tables WHERE tablename = 'mqb_checkpoints'", "0")
}

// As where the dlq's own sink takes columns or a query.
func TestDeadLettersThroughColumnsAndQuery(t *testing.T) {
	t.Parallel()
	for _, cfg := range []sqlx.Config{
		{Table: "t", Columns: "auto", Key: []string{"id"}},
		{InsertQuery: "INSERT INTO t (id, v, why) VALUES (${payload:id}, ${payload:v}, ${metadata:mqb.dlq.error}) ON CONFLICT DO NOTHING"},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (id int PRIMARY KEY, v int, why text)")
		w := openLetters(t, newSink(t, cfg))
		b := batchOf(3, func(i int) string { return []string{`{"id":1,"v":2}`, `{"id":2,"v":"two"}`, `{"id":3}`}[i] })
		for range 2 {
			err := w.Write(t.Context(), b, 0, 3)
			if rows, ok := err.(*connectors.RowsError); !ok || len(rows.Rows) != 1 || rows.Rows[0].Index != 1 {
				t.Fatalf("%v", err)
			}
		}
		if err := w.Write(t.Context(), b, 0, 1); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		expect(t, cfg.URL, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t", "1,3")
	}
}
