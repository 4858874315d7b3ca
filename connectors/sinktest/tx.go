package sinktest

import (
	"context"
	"errors"
	"slices"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
)

var txBehaviours = []behaviour{
	{"check changes nothing", always, checkIsQuiet},
	{"committed is visible, in order, and nothing before", always, txVisible},
	{"commit carries the record", always, txRecord},
	{"next transaction gathers while the last one commits", always, txPipelined},
	{"discarded leaves nothing", always, txDiscard},
	{"truncate, then commit", always, txTruncate},
	{"drop, then commit", always, txDrop},
	{"rows that cannot be encoded leave the others", func(s *Subject) bool { return s.Unencodable != nil }, txUnencodable},
	{"refused rows are named and nothing is written", func(s *Subject) bool { return s.Refused != nil }, txRefused},
	{"fenced while writing", always, txFenced},
	{"fenced by another run of the same epoch", always, txSameEpoch},
	{"stale version is no commit", always, txStale},
	{"a commit never creates the record", always, txNeverCreates},
	{"closed gate", always, txGate},
	{"frozen while holding a lock", func(s *Subject) bool { return s.Freeze != nil }, txFrozen},
	{"close while blocked", func(s *Subject) bool { return s.Block != nil }, txCloseBlocked},
}

// begin gathers messages [from, from+n) into a new transaction.
func (o *owner) begin(from, n int) connectors.Txn {
	o.r.Helper()
	txn := o.writer.(connectors.TxWriter).Begin()
	if err := txn.Add(o.r.batch(from, n, nil), 0, n); err != nil {
		o.r.Fatalf("add: %v", err)
	}
	if txn.Rows() != n || txn.Bytes() <= 0 {
		o.r.Errorf("%d rows of %d bytes gathered, want %d", txn.Rows(), txn.Bytes(), n)
	}
	return txn
}

// swap is the change that moves the record to position to.
func (o *owner) swap(to int) connectors.Swap {
	next := o.held
	next.Version++
	next.Position = at(to)
	return connectors.Swap{Key: o.claim.Key, Expected: o.held.Version, Record: next}
}

func (o *owner) tryCommit(txn connectors.Txn, to int) error {
	swap := o.swap(to)
	err := txn.Commit(o.r.ctx(), swap)
	if err == nil {
		o.held = swap.Record
		txn.Discard()
	}
	return err
}

func (o *owner) commit(txn connectors.Txn, to int) {
	o.r.Helper()
	if err := o.tryCommit(txn, to); err != nil {
		o.r.Fatalf("commit: %v", err)
	}
}

// stored fails unless the store holds the record that o knows.
func (o *owner) stored() {
	o.r.Helper()
	rec, err := o.store.Load(o.r.ctx(), o.claim.Key)
	if err != nil {
		o.r.Fatalf("load: %v", err)
	}
	if rec.Version != o.held.Version || rec.Epoch != o.held.Epoch || rec.Run != o.held.Run || rec.Position.Compare(o.held.Position) != 0 {
		o.r.Errorf("the record is at version %d, epoch %d, run %s, position %q; want %d, %d, %s, %q", rec.Version, rec.Epoch, rec.Run,
			rec.Position.Sort, o.held.Version, o.held.Epoch, o.held.Run, o.held.Position.Sort)
	}
}

func txVisible(r *rig) {
	o := r.open(1)
	for from := 0; from < 300; from += 100 {
		txn := o.begin(from, 50)
		if err := txn.Add(r.batch(from+40, 60, nil), 10, 60); err != nil {
			r.Fatal(err)
		}
		r.sees("before the commit", span(0, from)...)
		o.commit(txn, from+100)
		r.sees("after the commit", span(0, from+100)...)
	}
	o.close()
	again := r.open(2)
	defer again.close()
	if again.held.Position.Compare(at(300)) != 0 {
		r.Errorf("the next owner starts at %q, want %q", again.held.Position.Sort, at(300).Sort)
	}
	again.commit(again.begin(300, 10), 310)
	r.sees("after the next owner's commit", span(0, 310)...)
}

func txRecord(r *rig) {
	o := r.open(1)
	defer o.close()
	o.commit(o.begin(0, 5), 9)
	o.stored()
	// A transaction without rows still moves the record: everything was filtered.
	txn := o.writer.(connectors.TxWriter).Begin()
	o.commit(txn, 20)
	o.stored()
	r.sees("after an empty transaction", span(0, 5)...)
}

func txPipelined(r *rig) {
	o := r.open(1)
	defer o.close()
	first := o.begin(0, 10)
	second := o.begin(10, 10)
	o.commit(first, 10)
	third := o.begin(20, 10)
	o.commit(second, 20)
	o.commit(third, 30)
	r.sees("after three transactions", span(0, 30)...)
	o.stored()
}

func txDiscard(r *rig) {
	o := r.open(1)
	defer o.close()
	o.begin(0, 10).Discard()
	r.sees("after Discard")
	o.stored()
	o.commit(o.begin(10, 10), 20)
	r.sees("after the next commit", span(10, 20)...)
}

func txTruncate(r *rig) {
	o := r.open(1)
	defer o.close()
	txn := o.begin(0, 10)
	txn.Truncate(4)
	if txn.Rows() != 4 {
		r.Errorf("%d rows after Truncate(4)", txn.Rows())
	}
	o.commit(txn, 4)
	r.sees("after truncate and commit", span(0, 4)...)
	o.commit(o.begin(4, 3), 7)
	r.sees("after the next commit", span(0, 7)...)
}

func txDrop(r *rig) {
	o := r.open(1)
	defer o.close()
	txn := o.begin(0, 10)
	for _, row := range []int{9, 4, 0} { // from behind, so that the numbers hold
		txn.Drop(row)
	}
	o.commit(txn, 10)
	r.sees("after drop and commit", span(0, 10, 0, 4, 9)...)
}

func txUnencodable(r *rig) {
	o := r.open(1)
	defer o.close()
	txn := o.begin(0, 5)
	b := r.batch(5, 10, map[int]func(int) []byte{7: r.s.Unencodable, 14: r.s.Unencodable})
	if got := r.refused(txn.Add(b, 1, 10)); !slices.Equal(got, []int{2, 9}) {
		r.Errorf("messages %v of the batch are refused, want 2 and 9 (invariant 12)", got)
	}
	if txn.Rows() != 12 {
		r.Errorf("%d rows gathered, want 12", txn.Rows())
	}
	txn.Drop(5) // the first of the second batch: message 6
	o.commit(txn, 15)
	r.sees("beside refused ones", append(span(0, 5), span(8, 14)...)...)
}

func txRefused(r *rig) {
	o := r.open(1)
	defer o.close()
	o.commit(o.begin(0, 3), 3)
	bad := map[int]func(int) []byte{5: r.s.Refused, 11: r.s.Refused}
	add := func() connectors.Txn {
		txn := o.writer.(connectors.TxWriter).Begin()
		if err := txn.Add(r.batch(3, 12, bad), 0, 12); err != nil {
			r.Fatalf("add: %v", err)
		}
		return txn
	}
	// A commit may name all bad rows or the first ones; dropping what it names
	// must get there.
	txn, numbers := add(), span(3, 15)
	for range 3 {
		err := o.tryCommit(txn, 15)
		if err == nil {
			break
		}
		rows := r.refused(err)
		r.sees("after a refused commit", span(0, 3)...)
		o.stored()
		slices.Reverse(rows)
		for _, row := range rows {
			if n := numbers[row]; bad[n] == nil {
				r.Fatalf("message %d is refused, but nothing is wrong with it (invariant 12)", n)
			}
			numbers = slices.Delete(numbers, row, row+1)
			txn.Drop(row)
		}
	}
	r.sees("after dropping the refused rows", append(span(0, 3), span(3, 15, 5, 11)...)...)
	o.stored()
}

// txFenced is the zombie: it wakes between Begin and Commit (invariant 1).
func txFenced(r *rig) {
	old := r.open(1)
	defer old.close()
	old.commit(old.begin(0, 5), 5)
	txn := old.begin(5, 5)
	next := r.open(2)
	defer next.close()
	err := old.tryCommit(txn, 10)
	var fenced *checkpoint.FencedError
	if !errors.As(err, &fenced) || fenced.Epoch != 1 || fenced.Stored != 2 {
		r.Errorf("got %v, want epoch 1 fenced by epoch 2", err)
	}
	r.sees("after a fenced commit", span(0, 5)...)
	next.stored()
	next.commit(next.begin(5, 5), 10)
	if err := old.tryCommit(old.begin(5, 5), 10); !errors.Is(err, checkpoint.ErrFenced) {
		r.Errorf("a fenced writer tried again: %v, want ErrFenced", err)
	}
	r.sees("after the new owner's commit", span(0, 10)...)
}

func txSameEpoch(r *rig) {
	old := r.open(1)
	defer old.close()
	claim := old.claim
	claim.Run = "another"
	if _, err := r.claim(old.store, claim, ""); !errors.Is(err, checkpoint.ErrFenced) {
		r.Errorf("a claim of another run with the same epoch: %v, want ErrFenced (invariant 6)", err)
	}
	old.commit(old.begin(0, 5), 5)
	r.sees("after it", span(0, 5)...)
}

// txStale commits over a version that this very run has left behind, as a
// confused committer would: it must not write the rows.
func txStale(r *rig) {
	o := r.open(1)
	defer o.close()
	stale := o.held
	o.commit(o.begin(0, 5), 5)
	o.commit(o.begin(5, 5), 10)
	now := o.held
	o.held = stale
	if err := o.tryCommit(o.begin(10, 5), 15); err == nil {
		r.Error("a commit over an old version succeeded")
	}
	o.held = now
	r.sees("after it", span(0, 10)...)
	o.stored()
}

func txNeverCreates(r *rig) {
	o := r.open(1)
	defer o.close()
	txn := o.begin(0, 5)
	swap := o.swap(5)
	swap.Key += "-absent"
	if err := txn.Commit(r.ctx(), swap); err == nil {
		r.Error("a commit without a record to swap succeeded")
	}
	r.sees("after it")
	if _, err := o.store.Load(r.ctx(), swap.Key); !errors.Is(err, checkpoint.ErrNotFound) {
		r.Errorf("load: %v, want ErrNotFound", err)
	}
}

func txGate(r *rig) {
	o := r.open(1)
	defer o.close()
	txn := o.begin(0, 5)
	o.shut.Store(true)
	if err := o.tryCommit(txn, 5); !errors.Is(err, connectors.ErrGateClosed) {
		r.Errorf("got %v, want ErrGateClosed", err)
	}
	r.sees("behind a closed gate")
	o.stored()
}

// txFrozen lets a session that the record names hold its lock for ever, as a
// stopped process does: the next owner ends it and goes on.
func txFrozen(r *rig) {
	old := r.open(1)
	old.commit(old.begin(0, 5), 5)
	session, lock := r.s.Freeze(r.T)
	next := old.held
	next.Session = session
	if _, err := checkpoint.Commit(r.ctx(), old.store, old.claim.Key, old.held, next); err != nil {
		r.Fatalf("name the session in the record: %v", err)
	}
	lock(old.claim.Key)
	o := r.open(2)
	defer o.close()
	o.commit(o.begin(5, 5), 10)
	r.sees("after the frozen session was ended", span(0, 10)...)
	old.close()
}

func txCloseBlocked(r *rig) {
	o := r.open(1)
	txn, swap := o.begin(0, 5), o.swap(5)
	o.closeWhileBlocked(func() error { return txn.Commit(context.WithoutCancel(r.Context()), swap) })
	r.sees("after a commit that was cut off")
}
