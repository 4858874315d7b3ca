package sqlx_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/middleware"
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

// spec is a route whose dlq is another sink.
func specWithDLQ(cfg *sqlx.Config) *route.Spec {
	s := &route.Spec{Name: "r"}
	s.Output.Middlewares = []route.Middleware{{Type: "dlq", Config: &middleware.DLQConfig{Endpoint: route.Endpoint{Type: "sqlx", Config: cfg}}}}
	return s
}

// In one database the letters, the rows and the position are one: what is rolled
// back leaves no letter, and what is committed has each of them once.
func TestLettersInTheSameDatabaseArePartOfTheTransaction(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]sqlx.Config{
		"table":   {Table: "dead"},
		"columns": {Table: "dead", Columns: "auto", Key: []string{"id"}},
		"query":   {InsertQuery: "INSERT INTO dead (id, error) VALUES (${payload:id}, ${metadata:mqb.dlq.error}) ON CONFLICT (id) DO UPDATE SET error = EXCLUDED.error"},
	} {
		url := harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY CHECK (id < 100)); CREATE TABLE dead (id text PRIMARY KEY CHECK (id <> 'no'), error text, payload text)")
		config := func(c sqlx.Config) *sqlx.Config {
			out := sqlx.Type().NewConfig().(*sqlx.Config)
			route.SetDefaults(out)
			out.URL, out.Table, out.Columns, out.Key, out.InsertQuery = url, c.Table, c.Columns, c.Key, c.InsertQuery
			return out
		}
		cfg := config(sqlx.Config{Table: "t", Columns: "auto", Key: []string{"id"}})
		sink, err := sqlx.Type().NewSink(cfg, specWithDLQ(config(dead)), connectors.Env{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := openRun(t.Context(), sink, 1)
		if err != nil {
			t.Fatal(err)
		}
		letter := func(id string) *message.Batch {
			b := batchOf(2, func(int) string { return `{"id":"` + id + `"}` })
			for i := range 2 {
				b.PutMeta(i, "mqb.id", []byte(id))
				b.PutMeta(i, "mqb.dlq.error", []byte("why"))
			}
			return b
		}
		txn := r.writer.Begin().(connectors.LetterTxn)
		if !txn.TakesLetters() {
			t.Fatal("the same database, and letters go apart")
		}
		if err := errors.Join(txn.Add(batchOf(3, func(i int) string { return []string{`{"id":1}`, `{"id":500}`, `{"id":2}`}[i] }), 0, 3), txn.AddLetters(letter("a"), 0, 2)); err != nil {
			t.Fatal(err)
		}
		var refused *connectors.RowsError
		if err := r.commitTxn(t.Context(), txn); !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[0].Index != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		expect(t, url, "SELECT (SELECT count(*) FROM t) || '/' || (SELECT count(*) FROM dead)", "0/0")
		txn.Drop(1)
		if err := txn.AddLetters(letter("b"), 0, 1); err != nil {
			t.Fatal(err)
		}
		if err := r.commitTxn(t.Context(), txn); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		txn.Discard()
		expect(t, url, "SELECT (SELECT string_agg(id::text, ',') FROM t) || '/' || (SELECT string_agg(id, ',' ORDER BY id) FROM dead)", "1,2/a,b")
		expect(t, url, "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM t UNION ALL SELECT xmin::text FROM dead) u", "1")

		// A letter that is refused ends the run: its record has nowhere to go.
		last := r.writer.Begin().(connectors.LetterTxn)
		if err := errors.Join(last.Add(batchOf(1, func(int) string { return `{"id":3}` }), 0, 1)); err != nil {
			t.Fatal(err)
		}
		b := letter("no")
		err = last.AddLetters(b, 0, 1)
		if err == nil {
			err = r.commitTxn(t.Context(), last)
		}
		if errors.As(err, &refused) && connectors.Classify(err) == connectors.ClassData || connectors.Classify(err) != connectors.ClassPermanent {
			t.Errorf("%s: class %s: %v", name, connectors.Classify(err), err)
		}
		last.Discard()
		expect(t, url, "SELECT (SELECT count(*) FROM t) || '/' || (SELECT count(*) FROM dead)", "2/2")

		// Their table is one more that may be altered meanwhile.
		harness.PostgresExec(t, url, "ALTER TABLE dead ALTER error TYPE bytea USING NULL")
		altered := r.writer.Begin().(connectors.LetterTxn)
		if err := errors.Join(altered.Add(batchOf(1, func(int) string { return `{"id":4}` }), 0, 1), altered.AddLetters(letter("c"), 0, 1)); err != nil {
			t.Fatal(err)
		}
		if err := r.commitTxn(t.Context(), altered); connectors.Classify(err) != connectors.ClassRetryable || !strings.Contains(err.Error(), "was altered while the route ran") {
			t.Errorf("%s: class %s: %v", name, connectors.Classify(err), err)
		}
		altered.Discard()
		expect(t, url, "SELECT (SELECT count(*) FROM t) || '/' || (SELECT count(*) FROM dead)", "2/2")
		_ = r.writer.Close()
		_ = sink.Close()
	}
}

func TestLettersElsewhereAreNoPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	url, other := harness.Postgres(t).NewDatabase(t), harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int)")
	cfg := &sqlx.Config{URL: url, Table: "t", Columns: "auto"}
	dead := &sqlx.Config{URL: other, Table: "dead"}
	route.SetDefaults(cfg)
	route.SetDefaults(dead)
	cfg.Columns = "auto"
	spec := specWithDLQ(dead)
	sink, err := sqlx.Type().NewSink(cfg, spec, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	r, err := openRun(t.Context(), sink, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.writer.Close()
	if l, ok := r.writer.Begin().(connectors.LetterTxn); ok && l.TakesLetters() {
		t.Error("letters of another database in the transaction")
	}
	caps := sqlx.Type().Sink
	if a, b := caps(cfg), caps(dead); a.System == b.System || a.System == "" || a.LettersOnce || !b.LettersOnce {
		t.Errorf("%+v %+v", a, b)
	}
	box, err := sqlx.Type().NewSink(dead, spec, connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	for _, table := range []string{"", "CREATE TABLE dead (id text, payload bytea)", "ALTER TABLE dead ADD UNIQUE (id); ALTER TABLE dead DROP COLUMN payload"} {
		if table != "" {
			harness.PostgresExec(t, other, table)
		}
		if err := box.Check(t.Context()); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), `CREATE TABLE "dead" (id text PRIMARY KEY`) {
			t.Errorf("%q: %v", table, err)
		}
	}
	harness.PostgresExec(t, other, "ALTER TABLE dead ADD COLUMN payload bytea")
	w := openLetters(t, box)
	defer w.Close()
	if err := w.Write(t.Context(), batchOf(3, ids(0)), 0, 3); err != nil {
		t.Fatal(err)
	}
	expect(t, other, "SELECT count(*) FROM dead", "3")
	// In the database of the output its table is looked at with the output's.
	same := &sqlx.Config{URL: url, Table: "nowhere"}
	route.SetDefaults(same)
	both, err := sqlx.Type().NewSink(cfg, specWithDLQ(same), connectors.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if err := both.Check(t.Context()); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "dlq: ") {
		t.Errorf("no table for letters: %v", err)
	}
}
