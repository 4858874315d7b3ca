package sqlx

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	dial "github.com/mqbridge/mqb/dial/postgres"
)

// shape is what a run takes for granted of a table, as a digest that the server
// makes: which table the name means, its columns, their types and defaults. Rows
// are encoded by it, in part in the binary form, where the server would read the
// bits of one type as another; so every transaction that wrote to the table asks
// the server, in the flight of its COMMIT, whether it is still so. What it wrote to
// is locked against ALTER TABLE until then. A run whose table was altered ends, and
// the next one looks at the table again.
type shape struct {
	table  string // as SQL; "": not known, nothing is asked
	digest int64
}

// digestSQL is the digest of table $1.
const digestSQL = `SELECT coalesce(hashtextextended(string_agg(concat_ws(' ', attrelid, attnum, atttypid, atttypmod, attcollation,
	atthasdef, attidentity, attgenerated, quote_ident(attname)), ' ' ORDER BY attnum), 0), 0)
	FROM pg_attribute WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped`

// shapeSQL fails (division by zero) unless table $1 has the digest $2, so that a
// COMMIT behind it in the same flight commits nothing.
const shapeSQL = `SELECT 1/CASE WHEN (` + digestSQL + `) = $2::text::bigint THEN 1 ELSE 0 END`

// shapeName is the prepared statement of shapeSQL.
const shapeName = "mqb_shape"

// verify appends the question to a batch. A batch in which it fails has as many
// results as there are statements in front of it.
func (s shape) verify(batch *pgconn.Batch, look *pgconn.StatementDescription) {
	batch.ExecStatement(look, s.args(), nil, nil)
}

// readShape is called before the table is looked at, so that what is changed in
// between is noticed by the first transaction.
func readShape(ctx context.Context, conn *pgx.Conn, table string) (shape, error) {
	s := shape{table: table}
	return s, conn.QueryRow(ctx, digestSQL, table).Scan(&s.digest)
}

func (s shape) args() [][]byte {
	return [][]byte{[]byte(s.table), strconv.AppendInt(nil, s.digest, 10)}
}

// shapes are those of the tables that t writes to.
func (w *writer) shapes(t *txn) []shape {
	var all []shape
	if t.Rows() > 0 {
		s := w.plan.shape
		if x := w.target.Load(); x != nil {
			s = x.table.shape
		}
		if s.table != "" {
			all = append(all, s)
		}
	}
	if t.letters != nil {
		all = append(all, t.letters.w.shapes(t.letters)...)
	}
	return all
}

var errAltered = errors.New("was altered while the route ran: nothing of this transaction was written, the table is looked at again")

// altered returns an error if a table of t is not what the rows were encoded for:
// then no error of the server says anything about a row. Called outside of a
// transaction.
func (w *writer) altered(ctx context.Context, t *txn) error {
	for _, s := range w.shapes(t) {
		switch err := w.pg.ExecPrepared(ctx, shapeName, s.args(), nil, nil).Read().Err; {
		case dial.Code(err) == dial.CodeDivisionByZero:
			return fmt.Errorf("table %s %w", s.table, errAltered)
		case err != nil:
			return err
		}
	}
	return nil
}
