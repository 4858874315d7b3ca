package sqlx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/route"
	"github.com/mqbridge/mqb/test/harness"
)

const (
	ordersTable = "CREATE TABLE t (id bigint, first_name text, country text, amount double precision, created_at timestamptz, active boolean, attributes jsonb)"
	ordersQuery = "INSERT INTO t (id, first_name, country, amount, created_at, active, attributes) VALUES " +
		"(${payload:id}, ${payload:first_name}, ${payload:country}, ${payload:amount}, ${payload:created_at}, ${payload:active}, ${payload:attributes})"
)

func orderJSON(i int) string {
	return fmt.Sprintf(`{"id":%d,"first_name":"Zoë\t\\ %d","country":"DE","amount":%d.25,"created_at":"2020-01-01T00:00:%02dZ","active":%t,"attributes":{"tier":"gold","n":%d}}`,
		i, i, i, i%60, i%2 == 0, i)
}

// The same order with every value as text, as CSV gives it.
func orderText(i int) string {
	return fmt.Sprintf(`{"id":"%d","first_name":"Zoë\t\\ %d","country":"DE","amount":"%d.25","created_at":"2020-01-01T00:00:%02dZ","active":"%t","attributes":"{\"tier\":\"gold\",\"n\":%d}"}`,
		i, i, i, i%60, i%2 == 0, i)
}

func TestEveryWayWritesTheSameTypedRows(t *testing.T) {
	t.Parallel()
	sums := map[string]bool{}
	for name, cfg := range map[string]sqlx.Config{
		"copy":   {InsertQuery: ordersQuery, BulkCopy: true},
		"insert": {InsertQuery: ordersQuery},
		"single": {InsertQuery: strings.Replace(ordersQuery, "VALUES", "SELECT", 1)},
	} {
		if name == "single" {
			cfg.InsertQuery = strings.NewReplacer("SELECT (", "SELECT ", "attributes})", "attributes}").Replace(cfg.InsertQuery)
		}
		for _, payload := range []func(int) string{orderJSON, orderText} {
			cfg.URL = harness.Postgres(t).NewDatabase(t)
			harness.PostgresExec(t, cfg.URL, ordersTable)
			r := start(t, cfg, 1)
			// 1000 rows take full, smaller and single-row statements.
			if err := r.commit(t.Context(), batchOf(1000, payload)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := r.commit(t.Context(), batchOf(1, func(int) string { return `{"id":-1}` })); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if n := harness.PostgresValue[int](t, cfg.URL, "SELECT count(*) FROM t WHERE num_nulls(first_name, country, amount, created_at, active, attributes) = 6"); n != 1 {
				t.Errorf("%s: missing fields are not NULL (%d rows)", name, n)
			}
			sums[harness.PostgresValue[string](t, cfg.URL, "SELECT count(*) || md5(string_agg(t::text, ',' ORDER BY id)) FROM t")] = true
		}
	}
	if len(sums) != 1 {
		t.Errorf("the ways differ: %v", sums)
	}
}

// A key that comes again, in the same statement or only in the same transaction,
// updates what its predecessor wrote.
func TestRepeatedKeyInOneTransactionIsUpsertedInOrder(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY, seen int, last text)")
	r := start(t, sqlx.Config{URL: url, InsertQuery: "INSERT INTO t AS o VALUES (${payload:id}, 1, ${payload:v}) ON CONFLICT (id) DO UPDATE SET seen = o.seen + 1, last = excluded.last"}, 1)
	if err := r.commit(t.Context(), batchOf(3000, func(i int) string { return fmt.Sprintf(`{"id":%d,"v":"%d"}`, i%1000, i) })); err != nil {
		t.Fatal(err)
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t WHERE seen = 3 AND last = (id + 2000)::text"); n != 1000 {
		t.Errorf("%d of 1000 keys are right", n)
	}
	if err := r.commit(t.Context(), batchOf(3000, func(i int) string { return fmt.Sprintf(`{"id":%d,"v":"%d"}`, i/3, i) })); err != nil {
		t.Fatalf("three times in a row: %v", err)
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t WHERE seen = 6 AND last = (3 * id + 2)::text"); n != 1000 {
		t.Errorf("%d of 1000 keys are right after three times in a row", n)
	}
}

// What a batch of statements repeats must survive casts and functions, and a
// repeated key that the query itself absorbs.
func TestCastsFunctionsAndConflictClauseAroundTokensAreKept(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY, at date, name text, tags text[], at_all timestamptz)")
	r := start(t, sqlx.Config{URL: url, InsertQuery: `INSERT INTO t VALUES (${payload:id}::numeric::int, to_timestamp(${payload:unix})::date,
		coalesce(${payload:name}, 'none') || '!', string_to_array(${metadata:tags}, ','), now()) ON CONFLICT (id) DO NOTHING`}, 1)
	b := batchOf(500, func(i int) string { return fmt.Sprintf(`{"id":%d.0,"unix":%d}`, i%400, 86400*i) })
	if err := r.commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t WHERE at = '1970-01-01'::date + id AND name = 'none!' AND tags IS NULL AND at_all IS NOT NULL"); n != 400 {
		t.Errorf("%d of 400 rows are right", n)
	}
}

func TestBytesGoIntoByteaUnchangedByAnyWay(t *testing.T) {
	t.Parallel()
	raw := "\x00\xff\\x41\\\t\n"
	for name, cfg := range map[string]sqlx.Config{
		"copy":   {Table: "t"},
		"insert": {InsertQuery: "INSERT INTO t (payload) VALUES (${metadata:m})"},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (n serial, payload bytea)")
		b := batchOf(200, func(i int) string { return raw + fmt.Sprint(i) })
		for i := range b.Len() {
			b.PutMeta(i, "m", []byte(raw+fmt.Sprint(i)))
		}
		r := start(t, cfg, 1)
		if err := r.commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if n := harness.PostgresValue[int](t, cfg.URL, "SELECT count(*) FROM t WHERE payload = $1::bytea || convert_to((n - 1)::text, 'UTF8')", []byte(raw)); n != 200 {
			t.Errorf("%s: %d of 200 rows are right", name, n)
		}
	}
}

// Whatever type the column of the whole payload has.
func TestWholePayloadGoesIntoAnyTypeThatTakesIt(t *testing.T) {
	t.Parallel()
	for typ, want := range map[string]string{"bytea": "199", "text": "199", "varchar(60)": "199", "json": "199", "jsonb": "199", "int": "", "short": "199"} {
		url := harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, url, "CREATE DOMAIN short AS text CHECK (length(VALUE) < 50); CREATE TABLE t (n serial, payload "+typ+")")
		r := start(t, sqlx.Config{URL: url, Table: "t"}, 1)
		err := r.commit(t.Context(), batchOf(200, func(i int) string { return fmt.Sprintf(`{"n":%d,"text":"\\N \t ä"}`, i) }))
		if want == "" {
			var refused *connectors.RowsError
			if !errors.As(err, &refused) || len(refused.Rows) != 200 {
				t.Errorf("%s: %v", typ, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		query := "SELECT max((payload::text::jsonb->>'n')::int) FROM t WHERE payload::text::jsonb->>'text' = E'\\\\N \\t ä'"
		if typ == "bytea" {
			query = strings.ReplaceAll(query, "payload::text", "convert_from(payload, 'UTF8')")
		}
		expect(t, url, query, want)
	}
}

// Bad alone, bad beside a row of the same transaction, and bad at the end.
func TestBadRowsAreFoundAmongThousands(t *testing.T) {
	t.Parallel()
	const query = "INSERT INTO t (id, n) VALUES (${payload:id}, ${payload:n})"
	for name, cfg := range map[string]sqlx.Config{"copy": {InsertQuery: query, BulkCopy: true}, "insert": {InsertQuery: query}} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (id int PRIMARY KEY, n int CHECK (n < 5000)); INSERT INTO t VALUES (77, 0)")
		r := start(t, cfg, 1)
		txn := r.writer.Begin()
		want := []int{17, 77, 4000, 4999}
		if err := txn.Add(batchOf(5000, func(i int) string {
			switch i {
			case 17:
				return `{"id":17,"n":"seventeen"}`
			case 4000:
				return `{"id":100,"n":1}`
			case 4999:
				return `{"id":4999,"n":5000}`
			}
			return fmt.Sprintf(`{"id":%d,"n":%d}`, i, i)
		}), 0, 5000); err != nil {
			t.Fatal(err)
		}
		err := r.commitTxn(t.Context(), txn)
		var refused *connectors.RowsError
		if !errors.As(err, &refused) || connectors.Classify(err) != connectors.ClassData {
			t.Fatalf("%s: %v", name, err)
		}
		var got []int
		for _, row := range refused.Rows {
			got = append(got, row.Index)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: rows %v are refused, want %v", name, got, want)
		}
		if msg := refused.Rows[1].Err.Error(); !strings.Contains(msg, "Key (id)=(77) already exists") {
			t.Errorf("%s: the reason does not name the key: %s", name, msg)
		}
		if n := harness.PostgresValue[int](t, cfg.URL, "SELECT count(*) FROM t"); n != 1 {
			t.Fatalf("%s: %d rows after a refused transaction", name, n)
		}
		slices.Reverse(got)
		for _, row := range got {
			txn.Drop(row)
		}
		if err := r.commitTxn(t.Context(), txn); err != nil {
			t.Fatalf("%s: without the bad rows: %v", name, err)
		}
		if n := harness.PostgresValue[int](t, cfg.URL, "SELECT count(*) FROM t"); n != 1+5000-4 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
}

// A deferred constraint speaks up at COMMIT, behind the fence.
func TestDeferredConstraintAtCommitIsARefusedRow(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, `CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(0, 9);
		CREATE TABLE t (id int REFERENCES p DEFERRABLE INITIALLY DEFERRED)`)
	r := start(t, sqlx.Config{URL: url, InsertQuery: "INSERT INTO t (id) VALUES (${payload:id})", BulkCopy: true}, 1)
	err := r.commit(t.Context(), batchOf(12, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) }))
	var refused *connectors.RowsError
	if !errors.As(err, &refused) || len(refused.Rows) != 2 || refused.Rows[0].Index != 10 || refused.Rows[1].Index != 11 {
		t.Fatal(err)
	}
	if err := r.commit(t.Context(), batchOf(10, func(i int) string { return fmt.Sprintf(`{"id":%d}`, i) })); err != nil {
		t.Fatal(err)
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int); CREATE VIEW v AS SELECT id AS payload FROM t; CREATE SEQUENCE s")
	for want, cfg := range map[string]sqlx.Config{
		`"v", which is a view`:            {URL: url, Table: "v"},
		`."v", which is a view`:           {URL: url, Table: "v", Columns: "auto"},
		"to s, which is no table":         {URL: url, InsertQuery: "INSERT INTO s (last_value) VALUES (${payload:a})", BulkCopy: true},
		"auto_create_table":               {URL: url, Table: "missing"},
		"no such column":                  {URL: url, Table: "t"},
		"look at table":                   {URL: url, InsertQuery: "INSERT INTO t (id, x) VALUES (${payload:a}, ${payload:b})", BulkCopy: true},
		"prepare the insert_query":        {URL: url, InsertQuery: "INSERT INTO nowhere VALUES (${payload:a})"},
		"2 values for 1 columns":          {URL: url, InsertQuery: "INSERT INTO t VALUES (${payload:a}, ${payload:b})", BulkCopy: true},
		"create the database, or":         {URL: url + "x", Table: "t"},
		":1: connect: connection refused": {URL: "postgres://u:secret@127.0.0.1:1/db", Table: "t"},
	} {
		sink := newSink(t, cfg)
		err := sink.Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("want %q: %v", want, err)
		}
		class := connectors.ClassPermanent
		if strings.Contains(cfg.URL, ":1/") {
			class = connectors.ClassConnection
		}
		if got := connectors.Classify(err); got != class {
			t.Errorf("%q: class %s (%v)", want, got, err)
		}
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 1 {
		t.Errorf("Check left %d tables, there was 1", n)
	}
}

// Several partitions of a route write to one table, each under its own record.
func TestRunsOfOneRouteShareTheSink(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (payload text)")
	r := start(t, sqlx.Config{URL: url, Table: "t"}, 1)
	first, err := r.sink.(connectors.TxSink).Store(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := r.sink.(connectors.TxSink).Store(t.Context()); err != nil || first != second {
		t.Errorf("two stores, %v", err)
	}
	if id := first.Identity(); !strings.HasPrefix(id, "postgres://127.0.0.1:") || !strings.HasSuffix(id, "/mqb_checkpoints") {
		t.Errorf("identity %s", id)
	}
	if c := sqlx.Type().Sink(&sqlx.Config{URL: url, Table: "t"}); c.Tier != route.TierTransactional || !c.Durable {
		t.Errorf("%+v", c)
	}
}

func TestCancelledCommitWritesNothing(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (payload text)")
	r := start(t, sqlx.Config{URL: url, Table: "t"}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	r.gate = func() error { cancel(); return nil }
	if err := r.commit(ctx, batchOf(10, orderJSON)); connectors.Classify(err) != connectors.ClassStopped {
		t.Errorf("class %s: %v", connectors.Classify(err), err)
	}
	if n := harness.PostgresValue[int](t, url, "SELECT count(*) FROM t"); n != 0 {
		t.Errorf("%d rows", n)
	}
}
