package sqlx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// tableName is a table as the configuration names it, spelled as in the catalogue.
type tableName struct {
	schema string // "": the search path decides
	table  string
}

// parseTableName reads t, s.t, "t.1" and "s"."t.1".
func parseTableName(s string) (tableName, error) {
	var parts []string
	for rest := s; ; {
		var part string
		if strings.HasPrefix(rest, `"`) {
			n := quoteLen(rest, 0, false)
			if n < 2 || rest[n-1] != '"' {
				return tableName{}, fmt.Errorf("%s: a quote is never closed", s)
			}
			part, rest = strings.ReplaceAll(rest[1:n-1], `""`, `"`), rest[n:]
		} else {
			n := strings.IndexByte(rest+".", '.')
			part, rest = rest[:n], rest[n:]
		}
		if part == "" || strings.IndexByte(part, 0) >= 0 {
			return tableName{}, fmt.Errorf("%q is no name of a table", s)
		}
		parts = append(parts, part)
		if rest == "" {
			break
		}
		if rest[0] != '.' || len(parts) == 2 {
			return tableName{}, fmt.Errorf("%s: want table or schema.table", s)
		}
		rest = rest[1:]
	}
	if len(parts) == 1 {
		return tableName{table: parts[0]}, nil
	}
	return tableName{schema: parts[0], table: parts[1]}, nil
}

func (n tableName) quoted() string {
	if n.schema == "" {
		return quoted(n.table)
	}
	return quoted(n.schema) + "." + quoted(n.table)
}

// quoted quotes one name; a list of them is joined by commas.
func quoted(names ...string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = pgx.Identifier{n}.Sanitize()
	}
	return strings.Join(q, ", ")
}

// tableColumn is a column that can be written.
type tableColumn struct {
	name string
	typ  columnType
	// bare columns have neither a default nor a sequence: not to write one is to
	// write NULL.
	bare bool
}

// columnType is what the encoders need to know of a type; of a domain it is the type
// that values have: the server reads those as it reads the domain's.
type columnType struct {
	oid uint32
	// elem is the element type of an array, 0 for any other.
	elem uint32
	text bool // text, varchar and their like
	enum bool
}

// takesObject reports whether a JSON object can stand in the column as a whole.
func (t columnType) takesObject() bool {
	return t.isJSON() || t.text
}

func (t columnType) isJSON() bool { return t.oid == pgtype.JSONOID || t.oid == pgtype.JSONBOID }

// table is what the catalogue says of a table.
type table struct {
	name    string // quoted, with its schema
	oid     uint32
	columns []tableColumn
	shape   shape
}

func (t *table) has(column string) bool {
	return slices.ContainsFunc(t.columns, func(c tableColumn) bool { return c.name == column })
}

// errNoTable: there is no table of that name.
var errNoTable = errors.New("no such table")

// readTable looks a table up. Columns that the server computes are left out.
func readTable(ctx context.Context, conn *pgx.Conn, name tableName) (*table, error) {
	var t table
	var schema, relation string
	err := conn.QueryRow(ctx, `SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = to_regclass($1)`, name.quoted()).Scan(&t.oid, &schema, &relation)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errNoTable
	}
	if err != nil {
		return nil, err
	}
	t.name = tableName{schema, relation}.quoted()
	// By the name that rows are written to: without its schema it would mean a
	// temporary table of the session where that has the name.
	if t.shape, err = readShape(ctx, conn, t.name); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT a.attname, t.oid, t.elem, t.is_text, t.is_enum, NOT a.atthasdef AND a.attidentity = ''
		FROM pg_attribute a CROSS JOIN `+typeOf("a.atttypid")+` t
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attidentity <> 'a'
		ORDER BY a.attnum`, t.name)
	if err != nil {
		return nil, err
	}
	t.columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c tableColumn, err error) {
		err = row.Scan(&c.name, &c.typ.oid, &c.typ.elem, &c.typ.text, &c.typ.enum, &c.bare)
		return c, err
	})
	return &t, err
}

// typeOf is what columnType holds of a type, in SQL.
func typeOf(oid string) string {
	return `LATERAL (WITH RECURSIVE b AS (SELECT p.* FROM pg_type p WHERE p.oid = ` + oid + `
		UNION ALL SELECT p.* FROM b JOIN pg_type p ON p.oid = b.typbasetype)
		SELECT oid, CASE typcategory WHEN 'A' THEN typelem ELSE 0::oid END AS elem, typcategory = 'S' AS is_text, typtype = 'e' AS is_enum FROM b WHERE typtype <> 'd')`
}

// typesOf completes types of which only the numbers are known.
func typesOf(ctx context.Context, conn *pgx.Conn, oids []uint32) ([]columnType, error) {
	rows, err := conn.Query(ctx, "SELECT t.oid, t.elem, t.is_text, t.is_enum FROM unnest($1::oid[]) WITH ORDINALITY u(oid, n) CROSS JOIN "+typeOf("u.oid")+" t ORDER BY n", oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t columnType, err error) {
		err = row.Scan(&t.oid, &t.elem, &t.text, &t.enum)
		return t, err
	})
}

// noCopy says why COPY cannot write to a table, "" if it can.
func noCopy(ctx context.Context, conn *pgx.Conn, table string) (why string, err error) {
	const insteadOfInsert = "68" // in tgtype
	err = conn.QueryRow(ctx, `SELECT CASE
		WHEN relkind = 'v' AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgtype & `+insteadOfInsert+` = `+insteadOfInsert+`) THEN 'is a view'
		WHEN relkind NOT IN ('r', 'p', 'f', 'v') THEN 'is no table'
		WHEN row_security_active(c.oid) THEN 'has row-level security for this role'
		ELSE '' END FROM pg_class c WHERE oid = to_regclass($1)`, table).Scan(&why)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil // whoever looks at its columns says so
	}
	return why, err
}

// isUnique reports whether a unique index makes the server find a row by exactly
// these columns, as ON CONFLICT wants it.
func (t *table) isUnique(ctx context.Context, conn *pgx.Conn, key []string) (unique bool, err error) {
	sorted := slices.Sorted(slices.Values(key))
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indimmediate
		AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		AND $2::text[] = (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
			WHERE a.attrelid = $1 AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))`, t.oid, sorted).Scan(&unique)
	return unique, err
}
