package sqlx

import (
	"context"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

// rowEncoder appends messages as rows. On an error dst is returned as it was. For
// one goroutine at a time.
type rowEncoder interface {
	append(dst []byte, b *message.Batch, i int) ([]byte, rowKind, error)
}

// txn is a connectors.Txn: encoded rows, one behind the other.
type txn struct {
	w     *writer
	enc   rowEncoder
	buf   []byte
	end   []int // end of each row in buf
	kinds []rowKind
	// raw: there was no table when the transaction began, so the rows are payloads
	// until it commits.
	raw bool

	letters *txn // of the writer's dead; nil without any
}

var _ connectors.LetterTxn = (*txn)(nil)

// TakesLetters implements connectors.LetterTxn.
func (t *txn) TakesLetters() bool { return t.w.dead != nil }

// AddLetters implements connectors.LetterTxn.
func (t *txn) AddLetters(b *message.Batch, i, j int) error {
	if t.letters == nil {
		t.letters = t.w.dead.Begin().(*txn)
	}
	if err := t.letters.Add(b, i, j); err != nil {
		return t.w.lettersRefused(err)
	}
	return nil
}

func (t *txn) Add(b *message.Batch, i, j int) error {
	var bad []connectors.RowError
	for ; i < j; i++ {
		next, kind, err := t.enc.append(t.buf, b, i)
		t.buf = next
		if err != nil {
			bad = append(bad, connectors.RowError{Index: i, Err: err})
			continue
		}
		t.end = append(t.end, len(t.buf))
		t.kinds = append(t.kinds, kind)
	}
	if bad != nil {
		return &connectors.RowsError{Rows: bad}
	}
	return nil
}

func (t *txn) Rows() int { return len(t.end) }

func (t *txn) Bytes() int {
	if t.letters != nil {
		return len(t.buf) + len(t.letters.buf)
	}
	return len(t.buf)
}

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
	t.kinds = append(t.kinds[:row], t.kinds[row+1:]...)
	for i := row; i < len(t.end); i++ {
		t.end[i] -= n
	}
}

func (t *txn) Truncate(n int) {
	if n < len(t.end) {
		t.buf, t.end, t.kinds = t.buf[:t.start(n)], t.end[:n], t.kinds[:n]
	}
}

func (t *txn) Commit(ctx context.Context, swap connectors.Swap) error {
	return t.w.commit(ctx, t, &swap)
}

func (t *txn) Discard() {
	if t.letters != nil {
		t.letters.Discard()
		t.letters = nil
	}
	t.clear()
	t.w.recycle(t)
}

func (t *txn) clear() { t.buf, t.end, t.kinds = t.buf[:0], t.end[:0], t.kinds[:0] }
