package sqlx

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// target is a table whose columns take the fields of messages by their names
// (columns: auto). Safe for concurrent use.
//
// Rows are written by COPY. With a key they go by COPY into a temporary table of
// the session, emptied by each COMMIT, and from there by one INSERT … ON CONFLICT
// in the same flight: measured against arrays as parameters (unnest) and against
// statements of many rows, this costs the server least. Where a key may come twice
// it is a table that numbers the rows: the place of a row in a table says nothing,
// since one that is short goes into a page with room left by a longer one.
type target struct {
	name    string // of the writer
	table   *table
	columns []tableColumn // those that fields go to, and extra
	index   map[string]int
	places  []place // of columns
	key     []int   // in columns
	extra   int     // in columns; -1 without
	order   string  // name of the column that numbers rows; none of columns has it
	codecs  []codec // of columns; nil if there is a type that only the server reads
	// defaults are the columns that a row may leave out, see rowKind.
	defaults []int

	mu      sync.Mutex
	flights map[flightKey]*flight
}

// rowKind says how a row is written: bit n is set where the row leaves out column
// defaults[n], so that it gets its default, or stays as it is in an upsert;
// textRow where it is in COPY's text form. Rows of one kind that follow each other
// go in one COPY.
type rowKind uint64

const (
	maxDefaults         = 63
	textRow     rowKind = 1 << maxDefaults
)

// stage is the temporary table that upserts go through.
func (x *target) stage() string { return "pg_temp." + quoted(x.name) }

// numbered is the one for rows among which a key may come twice.
func (x *target) numbered() string { return "pg_temp." + quoted(x.name+"_numbered") }

type flightKey struct {
	kind     rowKind
	distinct bool
}

// flight is the text around the rows of one kind.
type flight struct {
	copy  string // COPY … FROM STDIN
	after string // what follows it in the same flight: "" or the upsert
	stage string // the temporary table, with an upsert
}

// newTarget fits the configuration to a table. Its errors say what to change.
func newTarget(name string, t *table, cfg *Config) (*target, error) {
	x := &target{name: name, table: t, extra: -1, order: "mqb_order", index: map[string]int{}, flights: map[flightKey]*flight{}}
	for _, k := range append(slices.Clone(cfg.Key), cfg.ExtraColumn) {
		if k != "" && !t.has(k) {
			return nil, fmt.Errorf("table %s has no column %q that can be written", t.name, k)
		}
	}
	for i, c := range t.columns {
		x.columns = append(x.columns, c)
		x.places = append(x.places, place{column: i, quoted: `"` + c.name + `"`})
		if c.name == cfg.ExtraColumn {
			x.extra = i
			if !c.typ.takesObject() {
				return nil, fmt.Errorf("column %q of table %s is no json, jsonb or text, so that it cannot be the extra_column", c.name, t.name)
			}
		} else {
			x.index[c.name] = i // a field named like extra goes into the object, as any other
		}
		if slices.Contains(cfg.Key, c.name) {
			x.key = append(x.key, i)
		} else if !c.bare {
			x.defaults = append(x.defaults, i)
		}
	}
	for t.has(x.order) {
		x.order += "_"
	}
	switch {
	case len(x.columns) == 0:
		return nil, fmt.Errorf("table %s has no column that can be written", t.name)
	case len(x.defaults) > maxDefaults:
		return nil, fmt.Errorf("table %s has %d columns with a default, %d can be told apart", t.name, len(x.defaults), maxDefaults)
	}
	for _, c := range x.columns {
		known := codecs[c.typ.oid]
		if c.typ.enum {
			known = codecText // labels, in either form
		}
		if known == codecNone {
			x.codecs = nil
			break
		}
		x.codecs = append(x.codecs, known)
	}
	return x, nil
}

// refuse is the error of a field.
func (x *target) refuse(column int, err error) error {
	return fmt.Errorf("field %q %w", x.columns[column].name, err)
}

func (x *target) names(columns []int) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = x.columns[c].name
	}
	return names
}

// flight returns the statements for rows of a kind. distinct: a key may come twice
// in them, and the last one counts.
func (x *target) flight(kind rowKind, distinct bool) *flight {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := flightKey{kind, distinct}
	f := x.flights[at]
	if f != nil {
		return f
	}
	if len(x.flights) == maxFlights {
		clear(x.flights)
	}
	f = &flight{}
	x.flights[at] = f
	var columns []int
	for i := range x.columns {
		if n := slices.Index(x.defaults, i); n < 0 || kind&(1<<n) == 0 {
			columns = append(columns, i)
		}
	}
	list := quoted(x.names(columns)...)
	from := " (" + list + ") FROM STDIN" + formatClause(kind)
	if x.key == nil {
		f.copy = "COPY " + x.table.name + from
		return f
	}
	f.stage = x.stage()
	if distinct {
		f.stage = x.numbered()
	}
	key := quoted(x.names(x.key)...)
	f.copy = "COPY " + f.stage + from
	var b strings.Builder
	b.WriteString("; INSERT INTO " + x.table.name + " (" + list + ") SELECT ")
	if distinct {
		b.WriteString("DISTINCT ON (" + key + ") " + list + " FROM " + f.stage + " ORDER BY " + key + ", " + quoted(x.order) + " DESC")
	} else {
		// Partitions that write the same keys lock them in one order and cannot wait
		// for each other; an index is filled from one end to the other besides.
		b.WriteString(list + " FROM " + f.stage + " ORDER BY " + key)
	}
	b.WriteString(" ON CONFLICT (" + key + ") DO ")
	var set []string
	for _, c := range columns {
		if !slices.Contains(x.key, c) {
			name := quoted(x.columns[c].name)
			set = append(set, name+" = EXCLUDED."+name)
		}
	}
	if set == nil {
		b.WriteString("NOTHING")
	} else {
		b.WriteString("UPDATE SET " + strings.Join(set, ", "))
	}
	f.after = b.String()
	return f
}

// prepareStage makes the temporary tables, whose columns have the types of the
// table's and none of its constraints: the rows meet those where they belong.
func (x *target) prepareStage(ctx context.Context, conn *pgx.Conn) error {
	if x.key == nil {
		return nil
	}
	var all []string
	for _, c := range x.columns {
		all = append(all, c.name)
	}
	_, err := conn.PgConn().Exec(ctx, "DROP TABLE IF EXISTS "+x.stage()+", "+x.numbered()+
		"; CREATE TEMPORARY TABLE "+quoted(x.name)+" ON COMMIT DELETE ROWS AS SELECT "+quoted(all...)+" FROM "+x.table.name+" WITH NO DATA"+
		"; CREATE TABLE "+x.numbered()+" (LIKE "+x.stage()+", "+quoted(x.order)+" bigint GENERATED ALWAYS AS IDENTITY (CACHE 1000)) ON COMMIT DELETE ROWS").ReadAll()
	return err
}

// maxFlights bounds the memory of statements: which columns messages leave out is up
// to whoever writes them.
const maxFlights = 1000

// maxStaged is how many rows a temporary table takes within a transaction before it
// is truncated: DELETE costs less for a few, but what it leaves behind is read again
// by everything that comes after it in the transaction.
const maxStaged = 1024

// sendTarget writes rows [i, j) of t, in the same flight behind the statement
// first, and each run of rows of another kind in one more.
func (w *writer) sendTarget(ctx context.Context, x *target, t *txn, i, j int, first string) error {
	if first != savepoint {
		w.staged = 0
	}
	for i < j {
		k := i + 1
		for k < j && t.kinds[k] == t.kinds[i] {
			k++
		}
		f := x.flight(t.kinds[i], w.singles > 0)
		sql := f.copy + f.after
		switch {
		case w.staged >= maxStaged:
			// In front of a savepoint, or what is rolled back to would be full again.
			first = behind("TRUNCATE "+x.stage()+", "+x.numbered(), first)
			w.staged = 0
		case w.staged > 0:
			sql = "DELETE FROM " + f.stage + "; " + sql
		}
		sql = behind(first, sql)
		if f.after != "" {
			w.staged += k - i
		}
		if _, err := w.pg.CopyFrom(ctx, t.reader(i, k), sql); err != nil {
			return err
		}
		i, first = k, ""
	}
	return nil
}

// formatClause is what COPY is told of the form of its rows.
func formatClause(kind rowKind) string {
	if kind&textRow != 0 {
		return ""
	}
	return " (FORMAT binary)"
}

// reader reads rows [i, j), which are of one kind, as COPY wants them.
func (t *txn) reader(i, j int) io.Reader {
	rows := bytes.NewReader(t.buf[t.start(i):t.end[j-1]])
	if t.kinds[i]&textRow != 0 {
		return rows
	}
	return io.MultiReader(bytes.NewReader(binaryHeader), rows, bytes.NewReader(binaryTrailer))
}
