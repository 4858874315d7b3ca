package sqlx

import (
	"context"
	"fmt"

	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
)

const savepoint = "SAVEPOINT mqb"

// refused handles an error of the rows: the transaction is rolled back whole, and
// if the server refused a row for its content the bad ones are looked for.
func (w *writer) refused(ctx context.Context, t *txn, swap *connectors.Swap, op string, err error) error {
	if rollback := w.rollback(ctx); rollback != nil {
		return rollback
	}
	if dial.Code(err) != "" && !w.pg.IsClosed() {
		if altered := w.altered(ctx, t); altered != nil {
			return w.broken(ctx, swap, op, altered)
		}
	}
	if dial.Classify(err) != dial.ClassData {
		return w.broken(ctx, swap, op, err)
	}
	bad, searchErr := w.bisect(ctx, t, op == opCommit)
	if searchErr == nil {
		searchErr = w.altered(ctx, t) // meanwhile
	}
	switch {
	case searchErr != nil:
		return w.broken(ctx, swap, "look for the row that was refused", searchErr)
	case len(bad) == 0:
		// It was the state of the table (a row of somebody else), gone by now.
		return fmt.Errorf("route %s: sqlx %s of partition %s: refused once, accepted when tried again: %w", w.claim.Route, op, w.claim.Partition.ID, described(err))
	}
	return &connectors.RowsError{Rows: bad}
}

// bisect finds the rows that the server refuses, in a fresh transaction that is
// rolled back. Savepoints keep the rows found good, so that a row which collides
// with one before it in the same transaction is seen: log n statements a bad row.
// deferred: the error came with COMMIT, from a constraint that was checked then.
func (w *writer) bisect(ctx context.Context, t *txn, deferred bool) (bad []connectors.RowError, err error) {
	w.singles = max(w.singles, 1) // what is looked for is a row, not a repeated key
	begin := "BEGIN"
	if deferred {
		begin = "BEGIN; SET CONSTRAINTS ALL IMMEDIATE"
	}
	if _, err := w.pg.Exec(ctx, begin).ReadAll(); err != nil {
		return nil, err
	}
	defer func() {
		if e := w.rollback(ctx); err == nil {
			err = e
		}
	}()
	var search func(i, j int) error
	search = func(i, j int) error {
		err := w.sendRows(ctx, t, i, j, savepoint)
		if err == nil {
			_, err = w.pg.Exec(ctx, "RELEASE mqb").ReadAll()
			return err
		}
		if dial.Classify(err) != dial.ClassData {
			return err
		}
		if _, err := w.pg.Exec(ctx, "ROLLBACK TO mqb; RELEASE mqb").ReadAll(); err != nil {
			return err
		}
		if j-i == 1 {
			bad = append(bad, connectors.RowError{Index: i, Err: described(err)})
			return nil
		}
		middle := i + (j-i)/2
		if err := search(i, middle); err != nil {
			return err
		}
		return search(middle, j)
	}
	err = search(0, t.Rows())
	return bad, err
}
