package sqlx

import (
	"context"
	"fmt"
	"slices"

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
	// try writes rows [i, j) behind those found good. refusal is the server's.
	try := func(i, j int) (refusal, err error) {
		err = w.sendRows(ctx, t, i, j, savepoint)
		if err == nil {
			_, err = w.pg.Exec(ctx, "RELEASE mqb").ReadAll()
			return nil, err
		}
		if dial.Classify(err) != dial.ClassData {
			return nil, err
		}
		refusal = err
		_, err = w.pg.Exec(ctx, "ROLLBACK TO mqb; RELEASE mqb").ReadAll()
		return refusal, err
	}
	var search func(i, j int) error
	search = func(i, j int) error {
		refusal, err := try(i, j)
		if refusal == nil || err != nil {
			return err
		}
		if j-i == 1 {
			bad = append(bad, connectors.RowError{Index: i, Err: described(refusal)})
			return nil
		}
		middle := i + (j-i)/2
		if err := search(i, middle); err != nil {
			return err
		}
		return search(middle, j)
	}
	err = search(0, t.Rows())
	// A deferred constraint is met by a row behind as well (a child that stands before
	// its parent): what was refused is tried again, the last one first, beside all
	// that is there by now.
	for again := deferred; again && err == nil; {
		again = false
		for n := len(bad) - 1; n >= 0 && err == nil; n-- {
			var refusal error
			if refusal, err = try(bad[n].Index, bad[n].Index+1); refusal == nil && err == nil {
				bad, again = slices.Delete(bad, n, n+1), true
			}
		}
	}
	return bad, err
}
