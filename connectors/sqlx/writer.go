package sqlx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/mqbridge/mqb/checkpoint"
	ckpt "github.com/mqbridge/mqb/checkpoint/postgres"
	"github.com/mqbridge/mqb/connectors"
	dial "github.com/mqbridge/mqb/dial/postgres"
	"github.com/mqbridge/mqb/hook"
)

// writer is a connectors.TxWriter on one connection.
type writer struct {
	sink  *sink
	conn  *pgx.Conn
	pg    *pgconn.PgConn
	claim connectors.Claim
	store *ckpt.Store
	fence *pgconn.StatementDescription
	look  *pgconn.StatementDescription
	plan
	// name begins the names of the prepared statements and of the temporary table:
	// two writers share a session where a dlq is in the same database.
	name string
	// dead writes the dead letters of the route inside its transactions; nil where
	// they go elsewhere, and in a writer of letters.
	dead *writer

	// target is set with columns: auto; nil until a table that is missing was made.
	target  atomic.Pointer[target]
	ignored ignored

	busy   sync.Mutex // held by the commit under way, which has the connection
	closed atomic.Bool

	rowsPrepared map[int]bool // statements for n rows; with busy
	values       [][]byte     // scratch; with busy
	widest       []int16      // formats for the widest statement; with busy
	staged       int          // rows that the temporary tables took since they were empty; with busy
	singles      int          // transactions yet to be written row by row; with busy

	mu   sync.Mutex
	free []*txn
}

var _ connectors.TxWriter = (*writer)(nil)

const fenceName = "mqb_fence"

// The two flights of a commit, as errors name them.
const (
	opRows   = "write rows"
	opCommit = "commit"
	// opLetters is part of the first.
	opLetters = "write dead letters"
)

// The names of writers.
const (
	rowsName    = "mqb_rows"
	lettersName = "mqb_letters"
)

// rowName names the prepared statement for n rows.
func rowName(writer string, n int) string { return writer + "_" + strconv.Itoa(n) }

// formatOf: text, which the server types, but for bytes, which it takes as they are.
func formatOf(oid uint32) int16 {
	if oid == pgtype.ByteaOID {
		return pgx.BinaryFormatCode
	}
	return pgx.TextFormatCode
}

// maxFree is how many used transactions keep their buffers: one is filled while
// another commits.
const maxFree = 2

// maxFreeBytes is how large a kept buffer may be: a transaction gathers about 8 MiB.
const maxFreeBytes = 32 << 20

func (w *writer) Begin() connectors.Txn {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &txn{w: w}
	if n := len(w.free); n > 0 {
		t, w.free = w.free[n-1], w.free[:n-1]
	}
	if t.enc == nil || t.raw {
		t.enc, t.raw = w.newEncoder()
	}
	return t
}

// newEncoder makes the encoder of a transaction; raw as in txn.
func (w *writer) newEncoder() (enc rowEncoder, raw bool) {
	if w.stmt != nil {
		if w.copy && w.stmt.tokens == nil {
			if c := wholeCodec(w.types[0]); c != codecNone {
				return wholeRows{c}, false
			}
		}
		return newEncoder(w.stmt, w.types, w.copy, w.claim.Record.Source+"/"+w.claim.Partition.ID), false
	}
	if x := w.target.Load(); x != nil {
		return newObjects(x, w.ignore), false
	}
	return payloads{}, true
}

func (w *writer) recycle(t *txn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) < maxFree && cap(t.buf) <= maxFreeBytes {
		w.free = append(w.free, t)
	}
}

// Close ends the session in order when it is idle; under a commit it cuts the
// connection, whose server notices within a second.
func (w *writer) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	if w.busy.TryLock() {
		defer w.busy.Unlock()
		return closeConn(w.conn)
	}
	err := w.pg.Conn().Close()
	w.busy.Lock()
	defer w.busy.Unlock()
	return err
}

// ignored are the names of fields that were logged as having no column.
type ignored struct {
	mu    sync.Mutex
	names map[string]bool
}

// ignore logs a field without a column, once in the life of a writer.
func (w *writer) ignore(name string) {
	w.ignored.mu.Lock()
	defer w.ignored.mu.Unlock()
	if w.ignored.names[name] || len(w.ignored.names) == maxLeft {
		return
	}
	if w.ignored.names == nil {
		w.ignored.names = map[string]bool{}
	}
	w.ignored.names[name] = true
	w.claim.Log.Warn("a field of the messages has no column and is left out", "table", w.target.Load().table.name, "field", name,
		"hint", "add the column, or set extra_column")
}

// commit is one transaction: the rows first, then in one flight the fence and the
// COMMIT, so that the record is locked for as short as can be and a process that
// freezes between them leaves no half of it. A nil swap is a transaction of rows
// alone: dead letters, whose position is the route's.
func (w *writer) commit(ctx context.Context, t *txn, swap *connectors.Swap) error {
	w.busy.Lock()
	defer w.busy.Unlock()
	t.compact()
	var fence [][]byte
	if swap != nil {
		var err error
		if fence, err = ckpt.FenceArgs(swap.Key, swap.Expected, swap.Record); err != nil {
			return w.failed(opCommit, err)
		}
	}
	if t.raw && t.Rows() > 0 {
		if err := w.encodeRaw(ctx, t); err != nil {
			return err
		}
	}
	if l := t.letters; l != nil && l.raw && l.Rows() > 0 {
		if err := l.w.encodeRaw(ctx, l); err != nil {
			return w.lettersRefused(err)
		}
	}
	if err := w.writeRows(ctx, t); err != nil {
		return w.refused(ctx, t, swap, opRows, err)
	}
	if l := t.letters; l != nil && l.Rows() > 0 {
		l.w.singles = 1 // a second try would be one of the rows too
		if err := l.w.sendRows(ctx, l, 0, l.Rows(), ""); err != nil {
			if rollback := w.rollback(ctx); rollback != nil {
				return rollback
			}
			if altered := w.altered(ctx, t); altered != nil {
				err = altered
			}
			return w.broken(ctx, swap, opLetters, err)
		}
	}
	hook.At("tx.rows-sent")
	if err := w.claim.Gate(); err != nil {
		return errors.Join(err, w.rollback(ctx))
	}
	batch, shapes := &pgconn.Batch{}, w.shapes(t)
	for _, s := range shapes {
		s.verify(batch, w.look)
	}
	want := len(shapes) + 1
	if swap != nil {
		batch.ExecStatement(w.fence, fence, nil, nil)
		want++
	}
	batch.ExecParams("COMMIT", nil, nil, nil, nil)
	hook.At("tx.before-fence")
	results, err := w.pg.ExecBatch(ctx, batch).ReadAll()
	if err == nil {
		// COMMIT of a transaction that failed answers ROLLBACK, without an error.
		if n := len(results); n != want || results[n-1].CommandTag.String() != "COMMIT" {
			err = fmt.Errorf("the server answered %d results, the last not COMMIT", n)
		}
	}
	switch {
	case err == nil:
		hook.At("tx.committed")
		return nil
	case dial.Code(err) == dial.CodeDivisionByZero && len(results) < len(shapes):
		err = fmt.Errorf("table %s %w", shapes[len(results)].table, errAltered)
	case swap != nil && dial.Code(err) == dial.CodeDivisionByZero && len(results) == len(shapes):
		return w.fenced(ctx, *swap)
	case dial.Classify(err) == dial.ClassData:
		return w.refused(ctx, t, swap, opCommit, err) // a deferred constraint
	}
	// When the reply was lost the outcome is unknown; the next claim reads it.
	if rollback := w.rollback(ctx); rollback != nil {
		return rollback
	}
	return w.broken(ctx, swap, opCommit, err)
}

// broken is failed for an error that may come from a successor which ended our
// session: if the record says so, that is what is returned.
func (w *writer) broken(ctx context.Context, swap *connectors.Swap, op string, err error) error {
	if class := dial.Classify(err); swap == nil || w.closed.Load() || class != dial.ClassConnection && class != dial.ClassSuspect {
		return w.failed(op, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	held := swap.Record
	held.Version = swap.Expected
	if verdict := checkpoint.Resolve(ctx, w.store, swap.Key, held); errors.Is(verdict, checkpoint.ErrFenced) {
		return w.failed(op, fmt.Errorf("%w: %v", verdict, err))
	}
	return w.failed(op, err)
}

// askWithin bounds the question who holds the record when a connection broke: the
// server may be what is gone.
const askWithin = 2 * time.Second

// fenced says who holds the record that the fence did not match.
func (w *writer) fenced(ctx context.Context, swap connectors.Swap) error {
	if err := w.rollback(ctx); err != nil {
		return err
	}
	held := swap.Record
	held.Version = swap.Expected
	err := checkpoint.Resolve(ctx, w.store, swap.Key, held)
	if !errors.Is(err, checkpoint.ErrFenced) && !errors.Is(err, checkpoint.ErrRegressed) {
		err = errors.Join(checkpoint.ErrConflict, err)
	}
	return w.failed(opCommit, err)
}

// rollback ends a transaction that failed. Nil also when the connection is gone,
// and the transaction with it.
func (w *writer) rollback(ctx context.Context) error {
	if w.pg.IsClosed() || w.pg.TxStatus() == 'I' {
		return nil
	}
	_, err := w.pg.Exec(ctx, "ROLLBACK").ReadAll()
	if err != nil && !w.pg.IsClosed() {
		return w.failed("roll back", err)
	}
	return nil
}

func (w *writer) failed(op string, err error) error {
	if w.closed.Load() {
		return fmt.Errorf("route %s: sqlx %s: closed: %w", w.claim.Route, op, context.Canceled)
	}
	return w.sink.classed(op+" of partition "+w.claim.Partition.ID, err)
}

// singlesAfterRepeat is how many transactions are written row by row after one in
// which a key came twice within a statement: such keys tend to come again.
const singlesAfterRepeat = 64

// writeRows begins the transaction and writes its rows. A statement of several
// rows that must not meet a key twice is a try: if it does, the rows are written
// one by one, so that the later one updates the earlier; in an upsert by columns
// the last row of each key is picked out.
func (w *writer) writeRows(ctx context.Context, t *txn) error {
	w.singles = max(0, w.singles-1)
	err := w.sendRows(ctx, t, 0, t.Rows(), "BEGIN")
	once := w.stmt == nil || w.stmt.once
	if !once || w.singles > 0 || dial.Code(err) != dial.CodeCardinality {
		return err
	}
	if err := w.rollback(ctx); err != nil {
		return err
	}
	w.singles = singlesAfterRepeat
	return w.sendRows(ctx, t, 0, t.Rows(), "BEGIN")
}

// sendRows writes rows [i, j) of t, in the same flight behind the statement
// first (BEGIN, SAVEPOINT).
func (w *writer) sendRows(ctx context.Context, t *txn, i, j int, first string) error {
	switch x := w.target.Load(); {
	case i == j: // only the position moves
		_, err := w.pg.Exec(ctx, first).ReadAll()
		return err
	case x != nil:
		return w.sendTarget(ctx, x, t, i, j, first)
	case w.copy:
		// Rows of a statement are all of one kind.
		sql := behind(first, "COPY "+w.stmt.copyTo+" FROM STDIN"+formatClause(t.kinds[i]))
		_, err := w.pg.CopyFrom(ctx, t.reader(i, j), sql)
		return err
	}
	if err := w.prepareRows(ctx, j-i); err != nil {
		return err
	}
	p := w.pg.StartPipeline(ctx)
	if first != "" {
		p.SendQueryParams(first, nil, nil, nil, nil)
	}
	width := w.stmt.width()
	sent := 0
	for i < j {
		n := w.rowsFor(j - i)
		w.values = w.values[:0]
		for at := t.start(i); at < t.end[i+n-1]; {
			size := int32(binary.BigEndian.Uint32(t.buf[at:]))
			at += 4
			if size < 0 {
				w.values = append(w.values, nil)
				continue
			}
			w.values = append(w.values, t.buf[at:at+int(size):at+int(size)])
			at += int(size)
		}
		for len(w.widest) < n*width {
			w.widest = append(w.widest, w.formats...)
		}
		p.SendQueryPrepared(rowName(w.name, n), w.values, w.widest[:n*width], nil)
		i += n
		if at := t.end[i-1]; at-sent >= flushBytes {
			sent = at
			if err := p.Flush(); err != nil {
				return err
			}
		}
	}
	if err := p.Sync(); err != nil {
		return err
	}
	return p.Close()
}

// behind is two statements in one flight; each may be "".
func behind(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + "; " + second
}

// flushBytes is how much of a pipeline is sent at once, so that the driver's
// buffer stays small.
const flushBytes = 256 << 10

// rowsFor is how many rows the next statement holds: full ones, then an eighth of
// that, then single rows, so that few statements have to be prepared.
func (w *writer) rowsFor(left int) int {
	if w.stmt.once && w.singles > 0 {
		return 1
	}
	for n := w.stmt.rows(); n > 1; n /= 8 {
		if n <= left {
			return n
		}
	}
	return 1
}

// prepareRows prepares the statements that n rows take, the first time they do.
func (w *writer) prepareRows(ctx context.Context, n int) error {
	for n > 0 {
		k := w.rowsFor(n)
		if !w.rowsPrepared[k] {
			var types []uint32
			for range k {
				for _, t := range w.types {
					types = append(types, t.oid)
				}
			}
			if _, err := w.pg.Prepare(ctx, rowName(w.name, k), w.stmt.sqlOf(k), types); err != nil {
				return err
			}
			w.rowsPrepared[k] = true
		}
		n %= k
	}
	return nil
}
