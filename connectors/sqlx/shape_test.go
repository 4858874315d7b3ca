package sqlx_test

import (
	"strings"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/test/harness"
)

// Rows are encoded by what the table was when the run began. Each of these changes
// would otherwise store bits of another type, blame rows that the table takes by
// now, or stop the route; the next run goes by the new table.
func TestATableAlteredWhileTheRouteRunsIsLookedAtAgainAndNoRowIsBlamedOrMisread(t *testing.T) {
	t.Parallel()
	auto := sqlx.Config{Table: "t", Columns: "auto"}
	key := sqlx.Config{Table: "t", Columns: "auto", Key: []string{"id"}}
	insert := sqlx.Config{InsertQuery: "INSERT INTO public . t (id, v) VALUES (${payload:id}, ${payload:v}::text) ON CONFLICT DO NOTHING"}
	bulk := sqlx.Config{InsertQuery: "INSERT INTO t (id, v) VALUES (${payload:id}, ${payload:v})", BulkCopy: true}
	const table = "CREATE TABLE t (id int PRIMARY KEY, v text)"
	for name, c := range map[string]struct {
		cfg                        sqlx.Config
		ddl, alter, payload, after string
	}{
		"bits of an integer are no float": {auto, "CREATE TABLE t (id int, v bigint)", "ALTER TABLE t ALTER v TYPE float8", `{"id":2,"v":5000000000}`, `{"v": 5000000000, "id": 2}`},
		"binary jsonb is no text":         {sqlx.Config{Table: "t"}, "CREATE TABLE t (payload jsonb)", "ALTER TABLE t ALTER payload TYPE text", `{"id":2}`, `{"payload": "{\"id\":2}"}`},
		"a wider type":                    {auto, table, "ALTER TABLE t ALTER id TYPE bigint", `{"id":5000000000,"v":"x"}`, `{"v": "x", "id": 5000000000}`},
		"a wider type, by insert_query":   {insert, table, "ALTER TABLE t ALTER id TYPE bigint", `{"id":5000000000,"v":"x"}`, `{"v": "x", "id": 5000000000}`},
		"another type, by insert_query":   {insert, "CREATE TABLE t (id bytea, v text)", "ALTER TABLE t ALTER id TYPE text USING 'a'", `{"id":"2","v":"x"}`, `{"v": "x", "id": "2"}`},
		"an array, by bulk_copy":          {bulk, "CREATE TABLE t (id int, v int[])", "ALTER TABLE t ALTER v TYPE text", `{"id":2,"v":[1]}`, `{"v": "[1]", "id": 2}`},
		"a longer string":                 {key, "CREATE TABLE t (id int PRIMARY KEY, v varchar(2))", "ALTER TABLE t ALTER v TYPE varchar(9)", `{"id":2,"v":"long"}`, `{"v": "long", "id": 2}`},
		"a new column":                    {key, table, "ALTER TABLE t ADD w int", `{"id":2,"v":"x","w":3}`, `{"v": "x", "w": 3, "id": 2}`},
		"a column less":                   {auto, table, "ALTER TABLE t DROP v", `{"id":2,"v":"x"}`, `{"id": 2}`},
		"a column less, with a key":       {key, table, "ALTER TABLE t DROP v", `{"id":2,"v":"x"}`, `{"id": 2}`},
		"a default":                       {auto, table, "ALTER TABLE t ALTER v SET DEFAULT 'new', ALTER v SET NOT NULL", `{"id":2}`, `{"v": "new", "id": 2}`},
		"another table of the name":       {auto, table, "ALTER TABLE t RENAME TO old; CREATE TABLE t (v jsonb, id int)", `{"id":2,"v":[]}`, `{"v": [], "id": 2}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.URL = harness.Postgres(t).NewDatabase(t)
			harness.PostgresExec(t, c.cfg.URL, c.ddl)
			r := start(t, c.cfg, 1)
			commitAll(t, r, `{"id":1}`)
			harness.PostgresExec(t, c.cfg.URL, "DELETE FROM t; "+c.alter)
			one := batchOf(1, func(int) string { return c.payload })
			err := r.commit(t.Context(), one)
			if class := connectors.Classify(err); class != connectors.ClassRetryable || !strings.Contains(err.Error(), "was altered while the route ran") {
				t.Errorf("class %s: %v", class, err)
			}
			expect(t, c.cfg.URL, "SELECT count(*) FROM t", "0")
			if err := start(t, c.cfg, 2).commit(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			expect(t, c.cfg.URL, "SELECT string_agg(to_jsonb(t)::text, ' ') FROM t", c.after)
		})
	}
}

// None of it is what rows are encoded by. The name of the table is that of the
// temporary one that upserts go through.
func TestWhatIsDoneToATableButItsColumnsEndsNoTransaction(t *testing.T) {
	t.Parallel()
	const plain = "CREATE TABLE mqb_rows (id int PRIMARY KEY, v text)"
	const parts = "CREATE TABLE mqb_rows (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE first PARTITION OF mqb_rows FOR VALUES FROM (0) TO (2)"
	for name, c := range map[string]struct {
		cfg sqlx.Config
		ddl string
		sql []string
	}{
		"upsert":      {sqlx.Config{Table: "mqb_rows", Columns: "auto", Key: []string{"id"}}, plain, []string{"VACUUM FULL mqb_rows", "CLUSTER mqb_rows USING mqb_rows_pkey"}},
		"copy":        {sqlx.Config{Table: "mqb_rows", Columns: "auto"}, plain, []string{"VACUUM FULL mqb_rows"}},
		"insert":      {sqlx.Config{InsertQuery: "INSERT INTO mqb_rows VALUES (${payload:id}, ${payload:v})"}, plain, []string{"VACUUM FULL mqb_rows"}},
		"partitioned": {sqlx.Config{Table: "mqb_rows", Columns: "auto", Key: []string{"id"}}, parts, []string{"CREATE TABLE second PARTITION OF mqb_rows FOR VALUES FROM (2) TO (9)", "ALTER TABLE mqb_rows DETACH PARTITION first"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.URL = harness.Postgres(t).NewDatabase(t)
			harness.PostgresExec(t, c.cfg.URL, c.ddl)
			r := start(t, c.cfg, 1)
			commitAll(t, r, `{"id":1,"v":"x"}`)
			for _, sql := range append(c.sql, "ANALYZE mqb_rows", "CREATE INDEX ON mqb_rows (v)", "COMMENT ON COLUMN mqb_rows.v IS 'x'", "ALTER TABLE mqb_rows ALTER v SET NOT NULL",
				"ALTER TABLE mqb_rows ALTER v SET STATISTICS 10", "ALTER TABLE mqb_rows ADD CHECK (id > 0)", "GRANT SELECT (v) ON mqb_rows TO PUBLIC",
				"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER f BEFORE INSERT ON mqb_rows FOR EACH ROW EXECUTE FUNCTION f()") {
				harness.PostgresExec(t, c.cfg.URL, sql)
			}
			commitAll(t, r, `{"id":2,"v":"y"}`)
			expect(t, c.cfg.URL, "SELECT count(*) FROM mqb_rows WHERE v = 'y'", "1")
		})
	}
}
