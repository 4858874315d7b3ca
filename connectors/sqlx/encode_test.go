package sqlx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mqbridge/mqb/message"
)

const orderQuery = "INSERT INTO t (id, first_name, country, amount, created_at, active, attributes) VALUES " +
	"(${payload:id}, ${payload:first_name}, ${payload:country}, ${payload:amount}, ${payload:created_at}, ${payload:active}, ${payload:attributes})"

var orderTypes = typed(pgtype.Int8OID, pgtype.TextOID, pgtype.TextOID, pgtype.Float8OID, pgtype.TimestamptzOID, pgtype.BoolOID, pgtype.JSONBOID)

func typed(oids ...uint32) []columnType {
	types := make([]columnType, len(oids))
	for i, oid := range oids {
		types[i].oid = oid
	}
	return types
}

// order is a row of the size and shape that the bridges are compared with;
// asText has the object as a string, as CSV gives it.
func order(i int, asText bool) []byte {
	attributes := fmt.Sprintf(`{"tier":"gold","score":%d.125,"tags":["new","vip"]}`, i%100)
	if asText {
		b, _ := json.Marshal(attributes)
		attributes = string(b)
	}
	return fmt.Appendf(nil, `{"id":%d,"first_name":"Charlotte","country":"DE","amount":%d.25,"created_at":"2020-01-01T00:00:00Z","active":true,"attributes":%s}`, i, i%10000, attributes)
}

func mustStatement(t testing.TB, query string) *statement {
	t.Helper()
	s, err := parseStatement(query)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func BenchmarkEncode(b *testing.B) {
	for _, asText := range []bool{false, true} {
		for _, copy := range []bool{true, false} {
			b.Run(fmt.Sprintf("copy=%t,text=%t", copy, asText), func(b *testing.B) {
				batch := message.NewBatch()
				for i := range 1000 {
					batch.Append(order(i, asText), int64(i), int64(i+1))
				}
				s := mustStatement(b, orderQuery)
				x := &txn{w: &writer{}, enc: newEncoder(s, orderTypes, copy, "")}
				b.ReportAllocs()
				for n := 0; n < b.N; n += 1000 {
					if err := x.Add(batch, 0, 1000); err != nil {
						b.Fatal(err)
					}
					x.Truncate(0)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}

// decodeCopy reads one line of COPY's text format; nil is NULL.
func decodeCopy(line []byte) (values [][]byte) {
	for _, f := range bytes.Split(bytes.TrimSuffix(line, []byte("\n")), []byte("\t")) {
		if string(f) == `\N` {
			values = append(values, nil)
			continue
		}
		v := []byte{}
		for i := 0; i < len(f); i++ {
			c := f[i]
			if c == '\\' {
				i++
				switch c = f[i]; c {
				case 'n':
					c = '\n'
				case 'r':
					c = '\r'
				case 't':
					c = '\t'
				}
			}
			v = append(v, c)
		}
		values = append(values, v)
	}
	return values
}

// decodeBind reads parameters of a Bind message; nil is NULL.
func decodeBind(row []byte) (values [][]byte) {
	for len(row) > 0 {
		n := int32(binary.BigEndian.Uint32(row))
		row = row[4:]
		if n < 0 {
			values = append(values, nil)
			continue
		}
		values = append(values, append([]byte{}, row[:n]...))
		row = row[n:]
	}
	return values
}

// Whatever JSON comes, both forms hold what encoding/json reads, or it is refused.
func FuzzEncode(f *testing.F) {
	for _, p := range []string{
		`{"a":1,"b":"x"}`, `{"b":"x","a":1}`, `{"a":null}`, ` { "\u0061" : "q\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00" , "b" : [1, {"c":"]}"}] } `,
		`{"a":"\ud800","b":"\ud800\u0041"}`, `{"a":1,"a":2}`, `{"a":"\u0000"}`, `{"a":{"x":"\\"},"b":{"y":"\\\""}}`, `[1]`, `{}`, `{"a":tru}`, "{\"a\":\"\xff\"}",
		`{"x":{"a":5},"b":true}`, `{"a":-1.5e+3}`, "{\"a\":\"\\\\N\",\"b\":\"\\\\.\"}",
	} {
		f.Add([]byte(p))
	}
	s := mustStatement(f, "INSERT INTO t (a, b) VALUES (${payload:a}, ${payload:b})")
	types := typed(pgtype.TextOID, pgtype.TextOID)
	byName, err := newTarget(rowsName, &table{name: "t", columns: []tableColumn{
		{name: "a", typ: types[0], bare: true}, {name: "b", typ: types[1], bare: true},
	}}, &Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := message.NewBatch()
		b.Append(payload, 0, 1)
		copied, _, err := newEncoder(s, types, true, "").append(nil, b, 0)
		bound, _, bindErr := newEncoder(s, types, false, "").append(nil, b, 0)
		text := newObjects(byName, func(string) {})
		text.asText = 1
		columns, kind, textErr := text.append(nil, b, 0)
		inBinary, binaryKind, binaryErr := newObjects(byName, func(string) {}).append(nil, b, 0)
		if (err == nil) != (bindErr == nil) || (err == nil) != (textErr == nil) || (err == nil) != (binaryErr == nil) {
			t.Fatalf("COPY: %v, binds: %v, columns: %v, in binary: %v", err, bindErr, textErr, binaryErr)
		}
		if err == nil && (kind != textRow || binaryKind != 0) {
			t.Fatalf("kinds %x and %x", kind, binaryKind)
		}
		var want map[string]json.RawMessage
		if jsonErr := json.Unmarshal(payload, &want); jsonErr != nil || want == nil {
			if err == nil {
				t.Fatalf("encoded what encoding/json refuses: %v", jsonErr)
			}
			return
		}
		if err != nil {
			var text map[string]any
			_ = json.Unmarshal(payload, &text)
			a, b := fmt.Sprint(text["a"]), fmt.Sprint(text["b"])
			if utf8.Valid(payload) && !strings.Contains(a+b, "\x00") {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		for form, values := range map[string][][]byte{
			"COPY": decodeCopy(copied), "bind": decodeBind(bound), "columns": decodeCopy(columns), "binary": decodeBind(inBinary[2:]),
		} {
			if len(values) != 2 {
				t.Fatalf("%s: %d values in %q", form, len(values), copied)
			}
			for i, name := range []string{"a", "b"} {
				raw, there := want[name]
				switch {
				case !there || string(raw) == "null":
					if values[i] != nil {
						t.Errorf("%s: %s is %q, want NULL", form, name, values[i])
					}
				case raw[0] == '"':
					var text string
					_ = json.Unmarshal(raw, &text)
					if string(values[i]) != text {
						t.Errorf("%s: %s is %q, want %q", form, name, values[i], text)
					}
				case !bytes.Equal(values[i], raw):
					t.Errorf("%s: %s is %q, want %q", form, name, values[i], raw)
				}
			}
		}
	})
}

func TestValuesByTokenAndType(t *testing.T) {
	t.Parallel()
	s := mustStatement(t, "INSERT INTO t VALUES (${payload:a.b.1}, ${metadata:k}, ${metadata:none}, ${message:id}, ${payload:raw}, ${payload:gone.x})")
	types := typed(pgtype.TextOID, pgtype.TextOID, pgtype.TextOID, pgtype.TextOID, pgtype.ByteaOID, pgtype.TextOID)
	b := message.NewBatch()
	b.Append([]byte(`{"a":{"b":["x","y\tz"]},"raw":"\u0000\\"}`), 7, 8)
	b.AddMeta("k", []byte("m\\"))
	b.AddMeta("mqb.id", []byte("id-1"))
	got, _, err := newEncoder(s, types, true, "").append(nil, b, 0)
	if want := "y\\tz\tm\\\\\t\\N\tid-1\t\\\\x005c\t\\N\n"; err != nil || string(got) != want {
		t.Errorf("COPY %q, want %q, %v", got, want, err)
	}
	got, _, err = newEncoder(s, types, false, "").append(nil, b, 0)
	if v := decodeBind(got); err != nil || len(v) != 6 || string(v[0]) != "y\tz" || v[2] != nil || string(v[4]) != "\x00\\" {
		t.Errorf("binds %q, %v", v, err)
	}
	b = message.NewBatch()
	b.Append([]byte(`{}`), 7, 8)
	first, _, _ := newEncoder(s, types, true, "cluster/topic/1").append(nil, b, 0)
	second, _, _ := newEncoder(s, types, true, "cluster/topic/2").append(nil, b, 0)
	if bytes.Equal(first, second) {
		t.Error("two partitions make the same id")
	}
}

// A NUL in a text column fails a whole COPY at the server, far from its row.
func TestNULAndInvalidTextAreRefusedByRow(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{`{"a":"x\u0000y"}`, "{\"a\":\"\xff\"}", "{\"a\":\"\x00\"}", ``, `7`, `{"a":1`, `{"a":1}}`} {
		s := mustStatement(t, "INSERT INTO t (a) VALUES (${payload:a})")
		b := message.NewBatch()
		b.Append([]byte(payload), 0, 1)
		if _, _, err := newEncoder(s, typed(pgtype.TextOID), true, "").append(nil, b, 0); err == nil {
			t.Errorf("%q was encoded", payload)
		}
		b.SetPayload(0, []byte("\xff\x00"))
		if _, _, err := newEncoder(wholePayload(tableName{table: "t"}), typed(pgtype.JSONBOID), true, "").append(nil, b, 0); err == nil {
			t.Error("binary payload went into a text column")
		}
		if got, _, err := newEncoder(wholePayload(tableName{table: "t"}), typed(pgtype.ByteaOID), true, "").append(nil, b, 0); err != nil || string(got) != "\\\\xff00\n" {
			t.Errorf("bytea: %q, %v", got, err)
		}
	}
}

func TestDropAndTruncateMoveTheOtherRows(t *testing.T) {
	t.Parallel()
	s := mustStatement(t, "INSERT INTO t (a) VALUES (${payload:a})")
	x := &txn{w: &writer{}, enc: newEncoder(s, typed(pgtype.TextOID), true, "")}
	b := message.NewBatch()
	for i := range 5 {
		b.Append(fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat(string(rune('a'+i)), i+1)), int64(i), int64(i+1))
	}
	if err := x.Add(b, 0, 5); err != nil {
		t.Fatal(err)
	}
	x.Drop(4)
	x.Drop(0)
	x.Drop(1)
	x.Truncate(7)
	if string(x.buf) != "bb\ndddd\n" || x.Rows() != 2 || string(x.buf[x.start(1):x.end[1]]) != "dddd\n" {
		t.Fatalf("%q %v", x.buf, x.end)
	}
	x.Truncate(1)
	if string(x.buf) != "bb\n" {
		t.Fatalf("%q", x.buf)
	}
}

func TestRowsDroppedInAnyOrderLeaveTheOthersAsTheyWere(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		x, want := &txn{w: &writer{}}, []string{}
		for i := range 20 {
			row := strings.Repeat(string(rune('a'+i)), rnd.IntN(4))
			want = append(want, row)
			x.buf = append(x.buf, row...)
			x.end, x.kinds = append(x.end, len(x.buf)), append(x.kinds, rowKind(i))
		}
		for range rnd.IntN(20) {
			row := rnd.IntN(x.Rows())
			x.Drop(row)
			want = slices.Delete(want, row, row+1)
		}
		if x.Rows() != len(want) || x.Bytes() != len(strings.Join(want, "")) {
			t.Fatalf("%d rows of %d bytes, want %q", x.Rows(), x.Bytes(), want)
		}
		for i, row := range want {
			if got := string(x.buf[x.start(i):x.end[i]]); got != row || row != "" && rune('a'+x.kinds[i]) != rune(row[0]) {
				t.Fatalf("row %d: %q, want %q", i, got, row)
			}
		}
	}
}

// A pipeline drops from the end, a writer of letters from the beginning.
func TestRowsDroppedFromEitherEndAreNotMovedOnceEach(t *testing.T) {
	t.Parallel()
	const rows = 1000
	for _, rising := range []bool{true, false} {
		x := &txn{w: &writer{}}
		for i := range rows {
			x.buf = append(x.buf, 'x')
			x.end, x.kinds = append(x.end, i+1), append(x.kinds, 0)
		}
		for i := range rows {
			row := rows - 1 - i
			if rising {
				row = 0
			}
			x.Drop(row)
			if len(x.buf) != rows {
				t.Fatalf("rising %v: all rows were moved when %d were dropped", rising, i+1)
			}
		}
		if x.Rows() != 0 || x.Bytes() != 0 {
			t.Errorf("rising %v: %d rows, %d bytes", rising, x.Rows(), x.Bytes())
		}
	}
}
