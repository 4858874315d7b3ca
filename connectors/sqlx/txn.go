package sqlx

import (
	"context"
	"slices"
	"sort"

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
	// gone are rows that were dropped and still stand in buf, in rising order: a
	// transaction may lose thousands of them, and each would move all behind it.
	gone []int
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
	t.compact()
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

func (t *txn) Rows() int { return len(t.end) - len(t.gone) }

func (t *txn) Bytes() int {
	t.compact()
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
	// The one that is row-th among those that stay. Rows come in rising order, or in
	// falling order as a pipeline drops them: neither may cost a copy of all rows each.
	k := sort.Search(len(t.gone), func(k int) bool { return t.gone[k]-k > row })
	t.gone = slices.Insert(t.gone, k, row+k)
}

// compact takes the rows that are gone out of buf.
func (t *txn) compact() {
	if len(t.gone) == 0 {
		return
	}
	kept, size, next, from := 0, 0, 0, 0
	for i, end := range t.end {
		if next < len(t.gone) && t.gone[next] == i {
			next++
		} else {
			size += copy(t.buf[size:], t.buf[from:end])
			t.end[kept], t.kinds[kept] = size, t.kinds[i]
			kept++
		}
		from = end
	}
	t.buf, t.end, t.kinds, t.gone = t.buf[:size], t.end[:kept], t.kinds[:kept], t.gone[:0]
}

func (t *txn) Truncate(n int) {
	t.compact()
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

func (t *txn) clear() {
	t.buf, t.end, t.kinds, t.gone = t.buf[:0], t.end[:0], t.kinds[:0], t.gone[:0]
}
