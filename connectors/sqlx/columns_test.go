package sqlx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sqlx"
	"github.com/mqbridge/mqb/test/harness"
)

// expect compares a query of one value with what it should give.
func expect(t *testing.T, url, query, want string) {
	t.Helper()
	if got := harness.PostgresValue[string](t, url, "SELECT coalesce(("+query+")::text, 'NULL')"); got != want {
		t.Errorf("%s:\ngot  %s\nwant %s", query, got, want)
	}
}

func commitAll(t *testing.T, r *run, payloads ...string) {
	t.Helper()
	if err := r.commit(t.Context(), batchOf(len(payloads), func(i int) string { return payloads[i] })); err != nil {
		t.Fatal(err)
	}
}

// The columns method writes what the other ways do, typed the same.
func TestColumnsAutoWritesTheSameRowsAsTokens(t *testing.T) {
	t.Parallel()
	sums := map[string]bool{}
	for _, cfg := range []sqlx.Config{
		{InsertQuery: ordersQuery, BulkCopy: true},
		{Table: "t", Columns: "auto"},
		{Table: "t", Columns: "auto", Key: []string{"id"}},
	} {
		for _, payload := range []func(int) string{orderJSON, orderText} {
			cfg.URL = harness.Postgres(t).NewDatabase(t)
			harness.PostgresExec(t, cfg.URL, ordersTable+"; CREATE UNIQUE INDEX ON t (id)")
			r := start(t, cfg, 1)
			if err := r.commit(t.Context(), batchOf(1000, payload)); err != nil {
				t.Fatal(err)
			}
			commitAll(t, r, `{"id":-1}`)
			sums[harness.PostgresValue[string](t, cfg.URL, "SELECT count(*) || md5(string_agg(t::text, ',' ORDER BY id)) FROM t")] = true
		}
	}
	if len(sums) != 1 {
		t.Errorf("the ways differ: %v", sums)
	}
}

func TestFieldsOfAnyOrderGoToTheirColumns(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, `CREATE SCHEMA "we ird"; CREATE TABLE "we ird"."T.x" (
		n serial, a int, "B b" text, "q""\" text, status text DEFAULT 'new', made int GENERATED ALWAYS AS (a * 2) STORED,
		gone int, own int GENERATED ALWAYS AS IDENTITY, rest jsonb)`)
	harness.PostgresExec(t, url, `ALTER TABLE "we ird"."T.x" DROP COLUMN gone`)
	r := start(t, sqlx.Config{URL: url, Table: `we ird."T.x"`, Columns: "auto", ExtraColumn: "rest"}, 1)
	commitAll(t, r,
		`{"a":1,"B b":"x"}`,
		` { "B b" : "" , "status" : null, "a":2 } `,
		`{"\u0061":3,"status":"old","q\"\\":"esc"}`,
		`{"x":[1,{"y":"\u00e9\\"}],"a":4,"rest":"mine","a":5,"z":null}`,
		`{}`,
		`{"B b":"\\N","a":null}`,
	)
	expect(t, url, `SELECT string_agg(concat_ws('|', n, coalesce(a::text, '-'), coalesce("B b", '-'), coalesce("q""\", '-'), coalesce(status, '-'), coalesce(made::text, '-'), own, coalesce(rest::text, '-')), E'\n' ORDER BY n) FROM "we ird"."T.x"`,
		`1|1|x|-|new|2|1|-
2|2||-|-|4|2|-
3|3|-|esc|old|6|3|-
4|5|-|-|new|10|4|{"x": [1, {"y": "é\\"}], "z": null, "rest": "mine"}
5|-|-|-|new|-|5|-
6|-|\N|-|new|-|6|-`)
}

// An object of what is left over is one more column with a default; a row that
// leaves nothing over must not be refused for a NULL that nobody sent.
func TestNothingForTheExtraColumnGivesItsDefaultAndNoRefusal(t *testing.T) {
	t.Parallel()
	for _, key := range [][]string{nil, {"id"}} {
		url := harness.Postgres(t).NewDatabase(t)
		// numeric: rows in text form.
		harness.PostgresExec(t, url, "CREATE TABLE t (id numeric PRIMARY KEY, rest jsonb NOT NULL DEFAULT '{}')")
		r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key, ExtraColumn: "rest"}, 1)
		commitAll(t, r, `{"id":1}`, `{"id":2,"x":1}`, `{"rest":null,"id":3}`)
		harness.PostgresExec(t, url, "ALTER TABLE t ALTER id TYPE int")
		r = start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key, ExtraColumn: "rest"}, 2)
		commitAll(t, r, `{"id":4}`, `{"id":5,"x":1}`)
		expect(t, url, "SELECT string_agg(id || rest::text, ' ' ORDER BY id) FROM t", `1{} 2{"x": 1} 3{"rest": null} 4{} 5{"x": 1}`)
	}
}

// A domain is written as the type under it: a string for bytea is its bytes, not
// the server's notation of bytes; an array is SQL's.
func TestADomainTakesWhatItsTypeTakes(t *testing.T) {
	t.Parallel()
	for _, cfg := range []sqlx.Config{
		{Table: "t", Columns: "auto"},
		{InsertQuery: "INSERT INTO t VALUES (${payload:b}, ${payload:a}, ${payload:n})"},
		{InsertQuery: "INSERT INTO t VALUES (${payload:b}, ${payload:a}, ${payload:n})", BulkCopy: true},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, `CREATE DOMAIN bytes AS bytea; CREATE DOMAIN ints AS int[]; CREATE DOMAIN small AS int CHECK (VALUE < 10); CREATE DOMAIN smaller AS small;
			CREATE TABLE t (b bytes, a ints, n smaller)`)
		r := start(t, cfg, 1)
		if rows := refusedRows(t, r, `{"b":"\\x41","a":[1,2],"n":9}`, `{"n":10}`, `{"n":null}`); len(rows) != 1 || rows[0] != 1 {
			t.Errorf("refused %v, want row 1", rows)
		}
		expect(t, cfg.URL, `SELECT convert_from(b, 'UTF8') || a::text || n FROM t WHERE n > 0`, `\x41{1,2}9`)
		expect(t, cfg.URL, "SELECT count(*) FROM t", "2")
	}
}

// A message of each kind in turn takes another statement; all are one transaction.
func TestMissingFieldGivesTheDefaultWhateverStandsBesideIt(t *testing.T) {
	t.Parallel()
	for _, key := range [][]string{nil, {"id"}} {
		url := harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL DEFAULT 'A', b text NOT NULL DEFAULT 'B')")
		r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key}, 1)
		if err := r.commit(t.Context(), batchOf(1000, func(i int) string {
			return fmt.Sprintf([]string{`{"id":%d}`, `{"id":%d,"a":"x"}`, `{"b":"y","id":%d}`, `{"id":%d,"a":"x","b":"y"}`}[i/3%4], i)
		})); err != nil {
			t.Fatal(err)
		}
		expect(t, url, "SELECT string_agg(a || b || n, ',' ORDER BY a, b) FROM (SELECT a, b, count(*) n FROM t GROUP BY a, b) g", "AB252,Ay249,xB250,xy249")
		expect(t, url, "SELECT count(DISTINCT xmin::text) FROM t", "1")
		// In an upsert what the message does not have stays as it is.
		if key != nil {
			commitAll(t, r, `{"id":1,"a":"n1"}`, `{"id":1}`, `{"id":1,"b":"n2"}`)
			expect(t, url, "SELECT a || b FROM t WHERE id = 1", "n1n2")
		}
	}
}

// Of a key that comes again in one statement, one transaction or later, the last
// row counts, also where SQL takes for equal what differs in bytes.
func TestKeyThatComesAgainInABatchIsNoErrorAndTheLastRowStays(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (k numeric, k2 text, v text, PRIMARY KEY (k2, k))")
	r := start(t, sqlx.Config{URL: url, Table: "public.t", Columns: "auto", Key: []string{"k", "k2"}}, 1)
	for round := range 3 {
		if err := r.commit(t.Context(), batchOf(3000, func(i int) string {
			return fmt.Sprintf(`{"k":%d.%s,"k2":"x","v":"%d-%d"}`, i%1000, strings.Repeat("0", 1+i%3), round, i)
		})); err != nil {
			t.Fatal(err)
		}
		expect(t, url, fmt.Sprintf("SELECT count(*) FROM t WHERE v = '%d-' || (k + 2000)::int", round), "1000")
	}
	commitAll(t, r, `{"k":1,"k2":"x","v":null}`)
	expect(t, url, "SELECT v FROM t WHERE k = 1", "NULL")
	// Nothing but a key: there or not.
	url = harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (k int UNIQUE)")
	r = start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"k"}}, 1)
	commitAll(t, r, `{"k":1}`, `{"k":2}`, `{"k":1}`)
	commitAll(t, r, `{"k":1}`, `{"k":3}`)
	expect(t, url, "SELECT count(*) FROM t", "3")
}

func TestMessageWithoutItsKeyIsRefusedAndNotStoredAgainAndAgain(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (k int UNIQUE, v int)")
	r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"k"}}, 1)
	txn := r.writer.Begin()
	payloads := []string{`{"v":1}`, `{"k":null,"v":1}`, `{"k":1,"v":1}`, `7`, `{"k"`}
	err := txn.Add(batchOf(5, func(i int) string { return payloads[i] }), 0, 5)
	var refused *connectors.RowsError
	if !errors.As(err, &refused) || len(refused.Rows) != 4 || txn.Rows() != 1 || !strings.Contains(err.Error(), `key "k" is missing`) {
		t.Fatalf("%d rows: %v", txn.Rows(), err)
	}
	if err := r.commitTxn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	expect(t, url, "SELECT count(*) FROM t", "1")
}

// A column that is gone, a partial, a deferred index: none of them makes a key.
func TestKeyWithoutItsUniqueIndexIsRefusedWithTheIndexToMake(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, `CREATE TABLE t ("A" int, b int, c int, d int UNIQUE DEFERRABLE, PRIMARY KEY (b, "A"));
		CREATE UNIQUE INDEX ON t (c) WHERE b > 0; CREATE UNIQUE INDEX ON t (lower(c::text)); CREATE INDEX ON t (c)`)
	for _, key := range [][]string{{"A"}, {"c"}, {"d"}, {"A", "b", "c"}} {
		err := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key}).Check(t.Context())
		want := fmt.Sprintf(`CREATE UNIQUE INDEX ON "public"."t" ("%s")`, strings.Join(key, `", "`))
		if connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", key, err)
		}
		if key[0] == "c" || len(key) == 3 {
			harness.PostgresExec(t, url, want)
			if err := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key}).Check(t.Context()); err != nil {
				t.Errorf("%v with its index: %v", key, err)
			}
		}
	}
	for want, cfg := range map[string]sqlx.Config{
		`no column "x"`:         {Table: "t", Key: []string{"x"}},
		`no column "rest"`:      {Table: "t", ExtraColumn: "rest"},
		`"c" of table`:          {Table: "t", ExtraColumn: "c"},
		"set auto_create_table": {Table: "nowhere"},
		`"no"."t"`:              {Table: "no.t"},
	} {
		cfg.URL, cfg.Columns = url, "auto"
		if err := newSink(t, cfg).Check(t.Context()); connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"A", "b"}}).Check(t.Context()); err != nil {
		t.Errorf("a key in another order than its index: %v", err)
	}
}

func TestFieldWithoutAColumnIsLoggedOnce(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (a int)")
	sink := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto"})
	defer sink.Close()
	var log bytes.Buffer
	r, err := openRunLogged(t.Context(), sink, 1, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.writer.Close()
	for range 3 {
		if err := r.commit(t.Context(), batchOf(100, func(i int) string { return fmt.Sprintf(`{"b":1,"a":%d,"c%d":2}`, i, i%2) })); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"field=b", "field=c0", "field=c1"} {
		if n := strings.Count(log.String(), name); n != 1 {
			t.Errorf("%s is logged %d times: %s", name, n, log.String())
		}
	}
	expect(t, url, "SELECT count(*) FROM t WHERE a IS NOT NULL", "300")
}

func TestMissingTableIsMadeFromTheFirstTransaction(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	r := start(t, sqlx.Config{URL: url, Table: "public.new", Columns: "auto", Key: []string{"id"}, ExtraColumn: "rest", AutoCreateTable: true}, 1)
	first := r.writer.Begin()
	err := first.Add(batchOf(5, func(i int) string {
		return []string{
			`{"xmin":-5,"s":"2020-01-01","b":true,"i":1,"f":1,"big":1,"o":{"x":1},"a":[1],"mixed":1,"id":"k1","none":null,"late":null}`,
			`{"s":null,"b":false,"i":-2,"f":2.5,"big":99999999999999999999,"o":null,"a":[],"mixed":"x","id":"k2","late":[2]}`,
			`{"id":"k3"}`, `not json`, `[1]`,
		}[i]
	}), 0, 5)
	var refused *connectors.RowsError
	if !errors.As(err, &refused) || len(refused.Rows) != 2 || first.Rows() != 3 {
		t.Fatalf("%d rows: %v", first.Rows(), err)
	}
	// It begins before there is a table and commits behind the one that makes it.
	second := r.writer.Begin()
	if err := second.Add(batchOf(2, func(i int) string { return fmt.Sprintf(`{"id":"n%d","i":"%s","new":7}`, i, []string{"5", "five"}[i]) }), 0, 2); err != nil {
		t.Fatal(err)
	}
	if err := r.commitTxn(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	first.Discard()
	if err := r.commitTxn(t.Context(), second); !errors.As(err, &refused) || len(refused.Rows) != 1 || refused.Rows[0].Index != 1 {
		t.Fatal(err)
	}
	second.Drop(1)
	if err := r.commitTxn(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	expect(t, url, "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'new'::regclass AND attnum > 0",
		"id text, s text, b boolean, i bigint, f double precision, big numeric, o jsonb, a jsonb, mixed text, none text, late jsonb, rest jsonb")
	expect(t, url, "SELECT string_agg(id || coalesce(i, 0) || coalesce(rest::text, ''), ' ' ORDER BY id) FROM new", `k11{"xmin": -5} k2-2 k30 n05{"new": 7}`)
	commitAll(t, r, `{"id":"k1","i":9}`)
	expect(t, url, "SELECT i FROM new WHERE id = 'k1'", "9")
}

// IF NOT EXISTS does not keep two sessions from colliding in the catalogue.
func TestPartitionsThatMakeTheTableAtOnceBothGoOn(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	for round := range 5 {
		table := fmt.Sprint("t", round)
		var wg sync.WaitGroup
		var writers [4]connectors.Writer
		errs := make([]error, len(writers))
		for p := range writers {
			// Records of their own: letters need none.
			sink := newSink(t, sqlx.Config{URL: url, Table: table, Columns: "auto", AutoCreateTable: true})
			defer sink.Close()
			w := openLetters(t, sink)
			writers[p] = w
			wg.Go(func() {
				errs[p] = w.Write(context.Background(), batchOf(100, func(i int) string { return fmt.Sprintf(`{"id":%d,"p":%d}`, i, p) }), 0, 100)
			})
		}
		wg.Wait()
		for p, w := range writers {
			if errs[p] != nil {
				t.Errorf("partition %d: %v", p, errs[p])
			}
			_ = w.Close()
		}
		expect(t, url, "SELECT count(*) FROM "+table, "400")
	}
}

// Each has its keys in an order of its own; the server would end one of two that
// wait for each other.
func TestPartitionsThatUpsertTheSameKeysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t (id int PRIMARY KEY, v int)")
	var wg sync.WaitGroup
	var errs [2]error
	for p := range errs {
		sink := newSink(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: []string{"id"}})
		defer sink.Close()
		w := openLetters(t, sink)
		defer w.Close()
		wg.Go(func() {
			for range 15 {
				b := batchOf(2000, func(i int) string {
					if p == 1 {
						i = 1999 - i
					}
					return fmt.Sprintf(`{"id":%d,"v":%d}`, i, p)
				})
				errs[p] = errors.Join(errs[p], w.Write(context.Background(), b, 0, 2000))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Error(err)
	}
	expect(t, url, "SELECT count(*) FROM t", "2000")
}

func TestJSONArraysGoIntoArrayColumns(t *testing.T) {
	t.Parallel()
	const query = "INSERT INTO t (i, s, j, f, o) VALUES (${payload:i}, ${payload:s}, ${payload:j}, ${payload:f}, ${payload:in.o})"
	for name, cfg := range map[string]sqlx.Config{
		"columns": {Table: "t", Columns: "auto"},
		"upsert":  {Table: "t", Columns: "auto", Key: []string{"i"}},
		"copy":    {InsertQuery: query, BulkCopy: true},
		"insert":  {InsertQuery: query},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (i int[] UNIQUE, s text[], j jsonb[], f float8[], o int[])")
		r := start(t, cfg, 1)
		commitAll(t, r,
			`{"i":[1, null],"s":["a\"b\\c","","NULL",null,"x,y{}\t\u00e9"],"j":["s",1,{"a":[1]},[2],null],"f":[[1.5,2],[3,4e1]],"in":{"o":[7, 8]},"o":[7, 8]}`,
			`{"i":[],"s":"{p,q}","f":null}`)
		expect(t, cfg.URL, "SELECT string_agg(concat_ws('|', to_jsonb(i), to_jsonb(s), to_jsonb(j), to_jsonb(f), to_jsonb(o)), ' & ' ORDER BY cardinality(i) DESC) FROM t",
			`[1, null]|["a\"b\\c", "", "NULL", null, "x,y{}\té"]|["s", 1, {"a": [1]}, [2], null]|[[1.5, 2], [3, 40]]|[7, 8] & []|["p", "q"]`)
		err := r.commit(t.Context(), batchOf(3, func(i int) string {
			return []string{`{"i":[2]}`, `{"i":[[1],2]}`, `{"i":[3],"s":["a\u0000"]}`}[i]
		}))
		var refused *connectors.RowsError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One bad value costs its own row; the retried transaction writes each of the
// others once.
func TestHealthyRowsLandOnceBesideABadOne(t *testing.T) {
	t.Parallel()
	for name, key := range map[string][]string{"columns": nil, "upsert": {"id"}} {
		url := harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, url, "CREATE TABLE t (id int NOT NULL CHECK (id <> 99999), at timestamptz, o jsonb, d int NOT NULL DEFAULT 0)")
		if key != nil {
			harness.PostgresExec(t, url, "CREATE UNIQUE INDEX ON t (id)")
		}
		r := start(t, sqlx.Config{URL: url, Table: "t", Columns: "auto", Key: key}, 1)
		txn := r.writer.Begin()
		if err := txn.Add(batchOf(3000, func(i int) string {
			switch i {
			case 11:
				return `{"id":11,"at":"tomorrow-ish"}`
			case 1500:
				return `{"id":99999}`
			case 1501:
				return `{"id":1501,"o":{"x":"\u0000"},"d":1}`
			case 2999:
				return `{"id":"x"}`
			}
			return fmt.Sprintf(`{"id":%d,"at":"2020-01-01","o":{"n":%d}}`, i, i)
		}), 0, 3000); err != nil {
			t.Fatal(err)
		}
		err := r.commitTxn(t.Context(), txn)
		var refused *connectors.RowsError
		if !errors.As(err, &refused) || len(refused.Rows) != 4 {
			t.Fatalf("%s: %v", name, err)
		}
		for i, want := range []int{11, 1500, 1501, 2999} {
			if refused.Rows[i].Index != want {
				t.Errorf("%s: row %d is refused, want %d", name, refused.Rows[i].Index, want)
			}
		}
		for i := len(refused.Rows) - 1; i >= 0; i-- {
			txn.Drop(refused.Rows[i].Index)
		}
		if err := r.commitTxn(t.Context(), txn); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		expect(t, url, "SELECT count(*) || '/' || count(DISTINCT id) FROM t", "2996/2996")
	}
}

// The protocol counts the parameters of a statement in 16 bits.
func TestABatchBeyond65535ParametersIsSplitInsideOneTransaction(t *testing.T) {
	t.Parallel()
	const width, rows = 700, 300 // 210,000 parameters
	var columns, tokens []string
	for i := range width {
		columns = append(columns, fmt.Sprintf("c%d int", i))
		tokens = append(tokens, fmt.Sprintf("${payload:c%d}", i))
	}
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, "CREATE TABLE t ("+strings.Join(columns, ", ")+")")
	r := start(t, sqlx.Config{URL: url, InsertQuery: "INSERT INTO t VALUES (" + strings.Join(tokens, ", ") + ") ON CONFLICT DO NOTHING"}, 1)
	if err := r.commit(t.Context(), batchOf(rows, func(i int) string { return fmt.Sprintf(`{"c0":%d,"c699":%d}`, i, i) })); err != nil {
		t.Fatal(err)
	}
	expect(t, url, "SELECT count(*) || '/' || count(DISTINCT xmin::text) FROM t WHERE c0 = c699", "300/1")
}

// Drivers and servers that drop it would report a row as written that is not.
func TestAStringWithNULIsRefusedAndNotStoredAsNull(t *testing.T) {
	t.Parallel()
	const query = "INSERT INTO t (id, s) VALUES (${payload:id}, ${payload:s})"
	for name, cfg := range map[string]sqlx.Config{
		"columns": {Table: "t", Columns: "auto"},
		"upsert":  {Table: "t", Columns: "auto", Key: []string{"id"}},
		"copy":    {InsertQuery: query, BulkCopy: true},
		"insert":  {InsertQuery: query},
		"single":  {InsertQuery: "INSERT INTO t SELECT ${payload:id}::int, ${payload:s}"},
	} {
		cfg.URL = harness.Postgres(t).NewDatabase(t)
		harness.PostgresExec(t, cfg.URL, "CREATE TABLE t (id int UNIQUE, s text)")
		r := start(t, cfg, 1)
		txn := r.writer.Begin()
		err := txn.Add(batchOf(3, func(i int) string { return fmt.Sprintf(`{"id":%d,"s":%q}`, i, []string{"a", "b", "c"}[i]) }), 0, 3)
		if err != nil {
			t.Fatal(err)
		}
		err = txn.Add(batchOf(2, func(i int) string { return fmt.Sprintf(`{"id":%d,"s":"x\u0000%d"}`, 7+i, i) }), 0, 2)
		var refused *connectors.RowsError
		if name == "single" && err == nil {
			err = r.commitTxn(t.Context(), txn)
		}
		if !errors.As(err, &refused) || len(refused.Rows) != 2 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if txn.Rows() > 3 {
			txn.Truncate(3)
		}
		if err := r.commitTxn(t.Context(), txn); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		expect(t, cfg.URL, "SELECT count(*) || '/' || count(s) FROM t", "3/3")
	}
}
