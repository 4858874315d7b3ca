package sqlx_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/test/harness"
)

// refusedRows are the rows that a commit of the payloads refuses; the others are
// committed then.
func refusedRows(t *testing.T, r *run, payloads ...string) (rows []int) {
	t.Helper()
	txn := r.writer.Begin()
	defer txn.Discard()
	if err := txn.Add(batchOf(len(payloads), func(i int) string { return payloads[i] }), 0, len(payloads)); err != nil {
		t.Fatal(err)
	}
	err := r.commitTxn(t.Context(), txn)
	var refused *connectors.RowsError
	if !errors.As(err, &refused) {
		t.Fatalf("class %s: %v", connectors.Classify(err), err)
	}
	for n, row := range refused.Rows {
		rows = append(rows, row.Index)
		txn.Drop(row.Index - n)
	}
	if err := r.commitTxn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	return rows
}

// Whatever refuses a row for its content, that row alone goes the way of on_error.
// Taken for a passing trouble each of these would be tried again for ever, with all
// the rows beside it; taken for a wrong configuration it would stop the route.
func TestARowThatATriggerAPolicyOrALimitRefusesDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	trigger := func(body string) string {
		return "CREATE TABLE t (id int PRIMARY KEY, v jsonb); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE x int; BEGIN IF NEW.id = 2 THEN " + body +
			" END IF; RETURN NEW; END $$; CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"
	}
	const plain = "CREATE TABLE t (id int PRIMARY KEY, v jsonb)"
	for name, c := range map[string]struct{ ddl, bad string }{
		"a state of its own":   {trigger("RAISE EXCEPTION 'no' USING ERRCODE = 'U0001';"), `{"id":2}`},
		"an assertion":         {trigger("ASSERT false;"), `{"id":2}`},
		"a query of two rows":  {trigger("x = (SELECT i FROM generate_series(1, 2) i);"), `{"id":2}`},
		"JSON nested too deep": {plain, `{"id":2,"v":"` + strings.Repeat("[", 50_000) + `"}`},
		"a policy":             {plain + "; ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id <> 2)", `{"id":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := harness.Postgres(t).NewDatabase(t)
			role := strings.ReplaceAll(url[strings.LastIndex(url, "/")+1:], "-", "_") + "_writer"
			harness.PostgresExec(t, url, c.ddl+"; CREATE ROLE "+role+" LOGIN; ALTER TABLE t OWNER TO "+role+"; GRANT ALL ON SCHEMA public TO "+role)
			r := start(t, sqlx.Config{URL: strings.Replace(url, "postgres@", role+"@", 1), Table: "t", Columns: "auto", Key: []string{"id"}}, 1)
			if rows := refusedRows(t, r, `{"id":1}`, c.bad, `{"id":3}`); len(rows) != 1 || rows[0] != 1 {
				t.Errorf("refused %v, want row 1", rows)
			}
			expect(t, url, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t", "1,3")
		})
	}
}

// The search for the bad row checks each row at once; a child whose parent stands
// behind it, in another half of the search, is as good as before.
func TestAChildBeforeItsParentIsNotBlamedForAnotherRow(t *testing.T) {
	t.Parallel()
	for _, cfg := range []sqlx.Config{
		{Table: "t", Columns: "auto"},
		{Table: "t", Columns: "auto", Key: []string{"id"}},
		{InsertQuery: "INSERT INTO t (id, parent) VALUES (${payload:id}, ${payload:parent})"},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (id int PRIMARY KEY, parent int REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
		r := start(t, cfg, 1)
		rows := refusedRows(t, r, `{"id":2,"parent":1}`, `{"id":1,"parent":4}`, `{"id":3,"parent":99}`, `{"id":5,"parent":3}`, `{"id":6}`, `{"id":4,"parent":6}`)
		if len(rows) != 2 || rows[0] != 2 || rows[1] != 3 {
			t.Errorf("refused %v, want 2, which has no parent, and 3, its child", rows)
		}
		expect(t, cfg.URL, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t", "1,2,4,6")
	}
}

// What a rolled back try leaves in the temporary tables of upserts was read again by
// each try after it: 16,384 bad rows in one transaction took most of an hour.
func TestManyBadRowsWithAKeyAreNotSearchedInQuadraticTime(t *testing.T) {
	t.Parallel()
	const bad = 2000
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY CHECK (id < 0))")
	r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"id"}}, 1)
	err := r.commit(t.Context(), batchOf(bad, ids(0)))
	var refused *connectors.RowsError
	if !errors.As(err, &refused) || len(refused.Rows) != bad {
		t.Fatal(err)
	}
	// The rows of the first try are there, and no others.
	if size := harness.PostgresValue[int](t, url, "SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relname LIKE 'mqb_rows%' AND relpersistence = 't'"); size == 0 || size > 100*bad {
		t.Errorf("the temporary tables hold %d bytes of %d rows", size, bad)
	}
}
