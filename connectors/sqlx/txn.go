package sqlx

import (
	"context"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// txn is a connectors.Txn: encoded rows, one behind the other.
type txn struct {
	w   *writer
	enc *encoder
	buf []byte
	end []int // end of each row in buf
}

func (t *txn) Add(b *message.Batch, i, j int) error {
	var bad []connectors.RowError
	for ; i < j; i++ {
		next, err := t.enc.append(t.buf, b, i)
		t.buf = next
		if err != nil {
			bad = append(bad, connectors.RowError{Index: i, Err: err})
			continue
		}
		t.end = append(t.end, len(t.buf))
	}
	if bad != nil {
		return &connectors.RowsError{Rows: bad}
	}
	return nil
}

func (t *txn) Rows() int { return len(t.end) }

func (t *txn) Bytes() int { return len(t.buf) }

func (t *txn) start(row int) int {
	if row == 0 {
		return 0
	}
	return t.end[row-1]
}

func (t *txn) Drop(row int) {
	from, n := t.start(row), t.end[row]-t.start(row)
	t.buf = append(t.buf[:from], t.buf[from+n:]...)
	t.end = append(t.end[:row], t.end[row+1:]...)
	for i := row; i < len(t.end); i++ {
		t.end[i] -= n
	}
}

func (t *txn) Truncate(n int) {
	if n < len(t.end) {
		t.buf, t.end = t.buf[:t.start(n)], t.end[:n]
	}
}

func (t *txn) Commit(ctx context.Context, swap connectors.Swap) error {
	return t.w.commit(ctx, t, swap)
}

func (t *txn) Discard() {
	t.buf, t.end = t.buf[:0], t.end[:0]
	t.w.recycle(t)
}
