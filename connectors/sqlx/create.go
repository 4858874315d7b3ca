package sqlx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/message"
)

// payloads is the encoder of transactions that begin before there is a table: rows
// are the payloads as they are.
type payloads struct{}

func (payloads) append(dst []byte, b *message.Batch, i int) ([]byte, rowKind, error) {
	payload := b.Payload(i)
	if err := checkJSON(payload); err != nil {
		return dst, 0, err
	}
	if payload[space(payload, 0)] != '{' {
		return dst, 0, errNoObject
	}
	return append(dst, payload...), 0, nil
}

// encodeRaw turns the payloads of a transaction into rows, having made the table
// if it is still missing. With an error the transaction is as it was. Called with
// busy.
func (w *writer) encodeRaw(ctx context.Context, t *txn) error {
	x := w.target.Load()
	if x == nil {
		var err error
		if x, err = w.createTable(ctx, t); err != nil {
			return err
		}
		w.target.Store(x)
	}
	enc := newObjects(x, w.ignore)
	var out txn
	var bad []connectors.RowError
	for i := range t.end {
		next, kind, err := enc.appendRow(out.buf, t.buf[t.start(i):t.end[i]])
		out.buf = next
		if err != nil {
			bad = append(bad, connectors.RowError{Index: i, Err: err})
			continue
		}
		out.end = append(out.end, len(out.buf))
		out.kinds = append(out.kinds, kind)
	}
	if bad != nil {
		return &connectors.RowsError{Rows: bad}
	}
	t.buf, t.end, t.kinds, t.raw, t.enc = out.buf, out.end, out.kinds, false, enc
	return nil
}

// createTries is how often a table is looked for and made: another partition may
// make it at the same time, and IF NOT EXISTS does not keep the two apart.
const createTries = 5

func (w *writer) createTable(ctx context.Context, t *txn) (*target, error) {
	op := "create table " + w.sink.cfg.table.quoted()
	sql, err := createSQL(w.sink.cfg, infer(t))
	if err != nil {
		return nil, w.failed(op, connectors.Permanent(err, "create the table yourself, or correct the route"))
	}
	for try := 1; ; try++ {
		x, err := w.sink.findTarget(ctx, w.conn, w.name)
		if err != nil {
			return nil, err
		}
		if x != nil {
			if err := x.prepareStage(ctx, w.conn); err != nil {
				return nil, w.failed(op, err)
			}
			return x, nil
		}
		if err := w.claim.Gate(); err != nil {
			return nil, err
		}
		// Apart from the rows: whoever makes an empty table harms nobody, and the
		// other partitions need not wait for our transaction.
		if _, err = w.pg.Exec(ctx, sql).ReadAll(); err != nil && (try == createTries || !raced(err)) {
			return nil, w.failed(op, err)
		}
		if err == nil {
			w.claim.Log.Info("created a table", "sql", sql)
		}
	}
}

// raced: two sessions made the table at once, and this one lost.
func raced(err error) bool {
	return slices.Contains([]string{"23505", "42P07", "42710"}, dial.Code(err))
}

// field is what was seen of a field in the first messages.
type inferred struct {
	name string
	kind inferredKind
}

type inferredKind uint8

const (
	kindNull inferredKind = iota
	kindBoolean
	kindBigint
	kindNumeric // whole numbers beyond bigint
	kindDouble
	kindJSON
	kindText
)

var kindNames = [...]string{"text", "boolean", "bigint", "numeric", "double precision", "jsonb", "text"}

// maxName is how long a name may be before the server cuts it, and maxCreated how
// many columns a table is made with; it could have 1600 at most.
const maxName, maxCreated = 63, 1000

// systemColumns are the columns that every table has already.
var systemColumns = []string{"tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"}

// infer looks at the payloads of a raw transaction: which fields there are, in the
// order they were first seen, and what they hold. Strings are text whatever is in
// them, since the next one may look different.
func infer(t *txn) []inferred {
	var fields []inferred
	index := map[string]int{}
	for i := range t.end {
		gjson.ParseBytes(t.buf[t.start(i):t.end[i]]).ForEach(func(key, value gjson.Result) bool {
			at, ok := index[key.Str]
			if !ok {
				if key.Str == "" || len(key.Str) > maxName || strings.IndexByte(key.Str, 0) >= 0 || slices.Contains(systemColumns, key.Str) || len(fields) == maxCreated {
					return true
				}
				at = len(fields)
				index[key.Str] = at
				fields = append(fields, inferred{name: strings.Clone(key.Str)})
			}
			fields[at].kind = fields[at].kind.with(kindOf(value))
			return true
		})
	}
	return fields
}

func kindOf(v gjson.Result) inferredKind {
	switch v.Type {
	case gjson.Null:
		return kindNull
	case gjson.True, gjson.False:
		return kindBoolean
	case gjson.JSON:
		return kindJSON
	case gjson.Number:
		if strings.ContainsAny(v.Raw, ".eE") {
			return kindDouble
		}
		if _, err := strconv.ParseInt(v.Raw, 10, 64); err != nil {
			return kindNumeric
		}
		return kindBigint
	}
	return kindText
}

// with is the kind that holds values of both.
func (k inferredKind) with(o inferredKind) inferredKind {
	number := func(k inferredKind) bool { return k == kindBigint || k == kindNumeric || k == kindDouble }
	switch {
	case k == o || o == kindNull:
		return k
	case k == kindNull:
		return o
	case number(k) && number(o):
		return max(k, o)
	}
	return kindText
}

// createSQL is the statement that makes the table. Columns of the key are first.
func createSQL(cfg *Config, fields []inferred) (string, error) {
	var columns []string
	for _, k := range cfg.Key {
		i := slices.IndexFunc(fields, func(f inferred) bool { return f.name == k })
		if i < 0 {
			return "", fmt.Errorf("no message of the first transaction has the field %q of the key", k)
		}
		columns = append(columns, quoted(k)+" "+kindNames[fields[i].kind])
	}
	for _, f := range fields {
		if !slices.Contains(cfg.Key, f.name) && f.name != cfg.ExtraColumn {
			columns = append(columns, quoted(f.name)+" "+kindNames[f.kind])
		}
	}
	if cfg.ExtraColumn != "" {
		columns = append(columns, quoted(cfg.ExtraColumn)+" jsonb")
	}
	if cfg.Key != nil {
		columns = append(columns, "PRIMARY KEY ("+quoted(cfg.Key...)+")")
	}
	if columns == nil {
		return "", errors.New("no message of the first transaction has a field")
	}
	return "CREATE TABLE IF NOT EXISTS " + cfg.table.quoted() + " (" + strings.Join(columns, ", ") + ")", nil
}
