package leasetest

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/mqbridge/mqb/lease"
)

// The checker itself: what one store cannot have done must be refused.
func TestHistoriesThatNoStoreHasAreRefused(t *testing.T) {
	write := func(call, ret int64, value int, a answer, compares ...guess) porcupine.Operation {
		return porcupine.Operation{Input: question{compares: compares, ops: []change{{value: value}}}, Output: a, Call: call, Return: ret}
	}
	read := func(call, ret int64, c cell, rev int64) porcupine.Operation {
		return porcupine.Operation{Input: question{}, Output: answer{cell: c, revision: rev}, Call: call, Return: ret}
	}
	done := func(rev int64) answer { return answer{succeeded: true, revision: rev} }
	absent := guess{field: lease.FieldVersion}
	for _, c := range []struct {
		name    string
		history []porcupine.Operation
		want    porcupine.CheckResult
	}{
		{"one after the other", []porcupine.Operation{
			write(0, 1, 7, done(1)), read(2, 3, cell{7, 1}, 1), write(4, 5, 8, done(2)), read(6, 7, cell{8, 2}, 2),
		}, porcupine.Ok},
		{"a stale read", []porcupine.Operation{
			write(0, 1, 7, done(1)), write(2, 3, 8, done(2)), read(4, 5, cell{7, 1}, 1),
		}, porcupine.Illegal},
		{"a lost write", []porcupine.Operation{
			write(0, 1, 7, done(1)), read(2, 3, cell{}, 1),
		}, porcupine.Illegal},
		{"two winners of one comparison", []porcupine.Operation{
			write(0, 9, 7, done(1), absent), write(0, 9, 8, done(2), absent),
		}, porcupine.Illegal},
		{"a revision used twice", []porcupine.Operation{
			write(0, 1, 7, done(1)), write(2, 3, 8, done(1)),
		}, porcupine.Illegal},
		{"a comparison that failed and was carried out", []porcupine.Operation{
			write(0, 1, 7, done(1)), write(2, 3, 8, done(2), absent),
		}, porcupine.Illegal},
		{"a comparison that holds and was refused", []porcupine.Operation{
			write(0, 1, 7, answer{}, absent), read(2, 3, cell{}, 0),
		}, porcupine.Illegal},
		{"a write that was carried out twice", []porcupine.Operation{
			write(0, 1, 7, done(1)), read(2, 3, cell{7, 2}, 2),
		}, porcupine.Illegal},
		{"a write that was lost, done later and not seen before", []porcupine.Operation{
			write(0, 5, 7, done(1)), read(2, 3, cell{}, 0), read(4, 6, cell{7, 1}, 1),
		}, porcupine.Ok},
	} {
		if got := porcupine.CheckOperationsTimeout(historyModel(), c.history, decideWithin); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
