package sqlx

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

// Whatever a codec takes, the server must read the same out of the text; what it
// leaves to the server is the server's business.
func TestBinaryFormIsWhatTheServerReadsInTheText(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	number := func() string {
		return pick("", "", "", "-", "+") + strconv.FormatUint(rng.Uint64()>>rng.IntN(64), 10) + pick("", "", "", ".", "."+strconv.Itoa(rng.IntN(1e6)), "e3", "E-7", "e-400", "e-310", " ")
	}
	moment := func() string {
		return fmt.Sprintf("%04d-%02d-%02d", rng.IntN(3)*rng.IntN(4000), rng.IntN(14), rng.IntN(33)) + pick("T", " ", "t", "") +
			fmt.Sprintf("%02d:%02d:%02d", rng.IntN(25), rng.IntN(61), rng.IntN(61)) + pick("", "", ".", ".5", ".123456", ".000001", ".1234567", ".99999950") +
			pick("", "Z", "z", "+02:00", "-11:30", "+15:59", "+14:59", "+02", " UTC", "+02:60")
	}
	for oid, c := range map[uint32]struct {
		name   string
		fixed  []string
		random func() string
	}{
		pgtype.Int2OID:   {"int2", []string{"32767", "-32768", "32768", "-0", "007", "", "-", "--1", "0x1", "1_0"}, number},
		pgtype.Int4OID:   {"int4", []string{"2147483647", "-2147483648", "2147483648"}, number},
		pgtype.Int8OID:   {"int8", []string{"9223372036854775807", "-9223372036854775808", "9223372036854775808", "99999999999999999999"}, number},
		pgtype.Float4OID: {"float4", []string{"0", "-0", "0.00", "16777217", "3.4028235e38", "1e39", "1e-45", "0.1", "NaN", "inf", "Infinity", "1e5", ".5", "5.", ".", "0x10", "1_0"}, number},
		pgtype.Float8OID: {"float8", []string{"0", "-0", "0e5", "9007199254740993", "1.7976931348623157e308", "1e309", "5e-324", "1e-400", "0.1", "123456789012345678", "NaN"}, number},
		pgtype.BoolOID:   {"bool", []string{"true", "false", "t", "TRUE", "yes", "1", ""}, func() string { return "true" }},
		pgtype.TimestamptzOID: {"timestamptz", []string{"2000-01-01T00:00:00Z", "1999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2000-02-29T00:00:00Z",
			"1900-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "2024-12-31T23:59:59-08:00", "now", "infinity", "2020-01-01"}, moment},
		pgtype.TimestampOID: {"timestamp", []string{"2000-01-01T00:00:00", "0001-01-01 00:00:00", "1582-10-10 12:00:00"}, moment},
		pgtype.DateOID:      {"date", []string{"2000-01-01", "0001-01-01", "9999-12-31", "2000-1-1", "20000101", "2000-02-30", "epoch", "2000.01.01"}, func() string { return moment()[:10] }},
		pgtype.UUIDOID: {"uuid", []string{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc999c0b4ef8bb6d6bb9bd380a11", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
			"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g", "a0eebc999-c0b-4ef8-bb6d-6bb9bd380a11"}, func() string { return "" }},
		pgtype.TextOID:    {"text", []string{"", "ä\t\n\\N"}, number},
		pgtype.VarcharOID: {"varchar", []string{"x"}, number},
		pgtype.JSONBOID:   {"jsonb", []string{`{"a":[1,null,"é"]}`, `1e3`, `"x"`}, func() string { return "[]" }},
		pgtype.ByteaOID:   {"bytea", []string{`\x00ff`}, func() string { return `\x` }},
	} {
		t.Run(c.name, func(t *testing.T) { // one by one: they share rng
			conn := harness.PostgresConnect(t, harness.Postgres(t).URL("postgres"))
			if _, err := conn.Exec(t.Context(), "SET TimeZone = 'America/St_Johns'; SET DateStyle = 'SQL, DMY'"); err != nil {
				t.Fatal(err)
			}
			sql := "SELECT $1 IS NOT DISTINCT FROM $2::text::" + c.name
			if c.name == "bytea" {
				sql = "SELECT '\\x' || encode($1, 'hex') = $2::text" // the content of the string as it is
			}
			if _, err := conn.PgConn().Prepare(t.Context(), "q", sql, []uint32{oid, pgtype.TextOID}); err != nil {
				t.Fatal(err)
			}
			taken := 0
			for i := range len(c.fixed) + 1500 {
				var v string
				if i < len(c.fixed) {
					v = c.fixed[i]
				} else {
					v = c.random()
				}
				in := []byte(v)
				if c.name == "bytea" {
					in = []byte{0, 0xff}
					v = `\x00ff`
				}
				out, ok := codecs[oid].append(nil, in)
				if !ok {
					continue
				}
				taken++
				res := conn.PgConn().ExecPrepared(t.Context(), "q", [][]byte{out[4:], []byte(v)}, []int16{1, 0}, nil).Read()
				if res.Err != nil || string(res.Rows[0][0]) != "t" {
					t.Errorf("%q as %x: %v %q", v, out, res.Err, res.Rows)
				}
			}
			if taken == 0 || taken < 10 && c.random() != "" {
				t.Errorf("%d values taken", taken)
			}
		})
	}
}

func TestEnumTakesItsLabelsAndRefusesOthersByRow(t *testing.T) {
	t.Parallel()
	url := harness.Postgres(t).NewDatabase(t)
	harness.PostgresExec(t, url, `CREATE TYPE mood AS ENUM ('so so', 'ä"\', '7'); CREATE DOMAIN lively AS mood CHECK (VALUE <> 'so so'); CREATE TABLE t (id int PRIMARY KEY, m mood, d lively)`)
	x, err := newTargetOf(t, url)
	if err != nil || x.codecs == nil {
		t.Fatalf("not in the binary form: %v", err)
	}
	conn := harness.PostgresConnect(t, url)
	for payload, want := range map[string]string{
		`{"id":1,"m":"so so","d":7}`:         "(1,\"so so\",7)",
		`{"id":2,"m":"\u00e4\"\\","d":null}`: `(2,"ä""\\",)`,
		`{"id":3,"m":"none"}`:                `22P02`,
		`{"id":4,"d":"so so"}`:               `23514`,
		`{"id":5,"m":""}`:                    `22P02`,
	} {
		row, kind, err := newObjects(x, func(string) {}).appendRow(nil, []byte(payload))
		if err != nil || kind&textRow != 0 {
			t.Fatalf("%s: %v", payload, err)
		}
		got := "SELECT t::text FROM t"
		_, err = conn.PgConn().CopyFrom(t.Context(), io.MultiReader(bytes.NewReader(binaryHeader), bytes.NewReader(row), bytes.NewReader(binaryTrailer)), "COPY t FROM STDIN (FORMAT binary)")
		if err != nil {
			got = dial.Code(err)
		} else if err := conn.QueryRow(t.Context(), "DELETE FROM t RETURNING t::text").Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", payload, got, want)
		}
	}
}

func newTargetOf(t *testing.T, url string) (*target, error) {
	t.Helper()
	table, err := readTable(t.Context(), harness.PostgresConnect(t, url), tableName{table: "t"})
	if err != nil {
		return nil, err
	}
	return newTarget(rowsName, table, &Config{})
}

// Rows that only the server can read stand between others, in their order.
func TestRowsOfBothFormsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	x, err := newTarget(rowsName, &table{name: "t", columns: []tableColumn{{name: "a", typ: columnType{oid: pgtype.Int4OID}, bare: true}}}, &Config{})
	if err != nil {
		t.Fatal(err)
	}
	txn := &txn{w: &writer{}, enc: newObjects(x, nil)}
	b := message.NewBatch()
	for i := range rowsAsText + 3 {
		v := strconv.Itoa(i)
		if i == 1 {
			v = `" 1 "`
		}
		b.Append([]byte(`{"a":`+v+`}`), int64(i), int64(i+1))
	}
	if err := txn.Add(b, 0, b.Len()); err != nil {
		t.Fatal(err)
	}
	for i, kind := range txn.kinds {
		if want := i >= 1 && i <= rowsAsText; (kind == textRow) != want {
			t.Fatalf("row %d is of kind %x", i, kind)
		}
	}
	if got := string(txn.buf[txn.start(1):txn.end[2]]); got != " 1 \n2\n" {
		t.Errorf("%q", got)
	}
}

func BenchmarkObjects(b *testing.B) {
	for _, asText := range []bool{false, true} {
		for _, numeric := range []bool{false, true} {
			b.Run(fmt.Sprintf("binary=%t,text=%t", !numeric, asText), func(b *testing.B) {
				t := &table{name: "t"}
				for i, name := range []string{"id", "first_name", "country", "amount", "created_at", "active", "attributes"} {
					t.columns = append(t.columns, tableColumn{name: name, typ: orderTypes[i], bare: true})
				}
				if numeric {
					t.columns[3].typ.oid = pgtype.NumericOID
				}
				x, err := newTarget(rowsName, t, &Config{})
				if err != nil {
					b.Fatal(err)
				}
				batch := message.NewBatch()
				for i := range 1000 {
					batch.Append(order(i, asText), int64(i), int64(i+1))
				}
				txn := &txn{w: &writer{}, enc: newObjects(x, nil)}
				b.ReportAllocs()
				for n := 0; n < b.N; n += 1000 {
					if err := txn.Add(batch, 0, 1000); err != nil {
						b.Fatal(err)
					}
					txn.Truncate(0)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
