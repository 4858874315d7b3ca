package simulation

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/lease"
)

// ledger sees every record and every epoch at the moment it is written, wherever
// that is, and holds it against what was written before.
type ledger struct {
	w    *world
	keys lease.Keys

	mu       sync.Mutex
	records  map[string]checkpoint.Record // by checkpoint key, as written last
	runs     map[string]map[uint64]string // by checkpoint key: which run wrote under an epoch
	counters map[string]uint64            // by key of the coordinator
	owned    map[string]map[uint64]string // by owner key: which instance had an epoch
	restored bool                         // the counters went back: they may give epochs twice
	term     int64                        // of the scheduler, the highest that was taken
}

func newLedger(w *world) *ledger {
	return &ledger{w: w, keys: w.keys, records: map[string]checkpoint.Record{}, runs: map[string]map[uint64]string{},
		counters: map[string]uint64{}, owned: map[string]map[uint64]string{}}
}

// record is what is stored under key.
func (l *ledger) record(key string) checkpoint.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[key]
}

// txn runs a transaction of the coordinator and looks at what it wrote.
func (l *ledger) txn(ops []lease.Op, run func() (lease.Result, error)) (lease.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.owners(ops)
	res, err := run()
	if err != nil || !res.Succeeded {
		return res, err
	}
	for _, op := range ops {
		if op.Kind != lease.OpPut {
			continue
		}
		switch {
		case strings.HasPrefix(op.Key, l.keys.Checkpoints()):
			rec, err := checkpoint.Decode(op.Value)
			if err != nil {
				l.w.failf("a record that cannot be read was written: %v", err)
				continue
			}
			l.written(strings.TrimPrefix(op.Key, l.keys.Checkpoints()), rec)
		case strings.Contains(op.Key, "/epochs/"):
			l.counted(op.Key, string(op.Value))
		case strings.HasPrefix(op.Key, l.keys.Owners()):
			if o, err := lease.Decode[lease.Owner](op.Value); err == nil {
				l.acquired(op.Key, o, before[op.Key])
			}
		case op.Key == l.keys.Scheduler():
			if leader, err := lease.Decode[lease.Leader](op.Value); err == nil {
				l.elected(leader)
			}
		case strings.HasPrefix(op.Key, l.keys.Assignments()):
			if a, err := lease.Decode[lease.Assignment](op.Value); err == nil && a.Term < l.term {
				l.w.failf("%s is written in term %d, the scheduler's is %d", op.Key, a.Term, l.term)
			}
		}
	}
	return res, nil
}

// owners are those that stand under the owner keys which ops write.
func (l *ledger) owners(ops []lease.Op) map[string]lease.Owner {
	out := map[string]lease.Owner{}
	for _, op := range ops {
		if op.Kind == lease.OpPut && strings.HasPrefix(op.Key, l.keys.Owners()) {
			if kv, _, _ := l.w.operator.Client.Get(context.Background(), op.Key); kv != nil {
				out[op.Key], _ = lease.Decode[lease.Owner](kv.Value)
			}
		}
	}
	return out
}

// swap runs the swap of a store outside the coordinator, in the same order as all others.
func (l *ledger) swap(key string, rec checkpoint.Record, run func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := run(); err != nil {
		return err
	}
	l.written(key, rec)
	return nil
}

// written checks one landed record. Called under l.mu.
func (l *ledger) written(key string, rec checkpoint.Record) {
	last, exists := l.records[key]
	l.records[key] = rec
	fail := func(format string, args ...any) {
		l.w.failf("record %s, version %d by epoch %d run %s: %s", key, rec.Version, rec.Epoch, rec.Run, fmt.Sprintf(format, args...))
	}
	if l.runs[key] == nil {
		l.runs[key] = map[uint64]string{}
	}
	if run, used := l.runs[key][rec.Epoch]; used && run != rec.Run {
		fail("an epoch was used by two runs (invariant 6): %s before", run)
	}
	l.runs[key][rec.Epoch] = rec.Run
	if exists {
		switch {
		case rec.Epoch < last.Epoch:
			fail("written after a claim with epoch %d (invariant 1)", last.Epoch)
		case rec.Version != last.Version+1:
			fail("follows version %d (invariant 1)", last.Version)
		case rec.Series == last.Series && rec.Position.Compare(last.Position) < 0:
			fail("the position goes back from %s to %s (invariant 10)", last.Position.Sort, rec.Position.Sort)
		case rec.Generation < last.Generation:
			fail("the generation goes back from %d", last.Generation)
		}
	}
	n, _ := rec.Position.Number()
	for _, in := range rec.Intents {
		if from, _ := in.From.Number(); from < n || in.End.Compare(in.From) <= 0 {
			fail("promises [%s, %s) at position %d (invariant 3)", in.From.Sort, in.End.Sort, n)
		}
	}
	r, part := l.w.find(key)
	if r == nil {
		fail("no such partition")
		return
	}
	if missing := r.missing(part, n); len(missing) > 0 {
		fail("the position %d is over records that are not in the sink (invariant 3): %v", n, missing)
	}
}

// counted checks a counter of epochs. Called under l.mu.
func (l *ledger) counted(key, value string) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n <= l.counters[key] && !l.restored {
		l.w.failf("counter %s goes from %d to %s (invariant 6)", key, l.counters[key], value)
	}
	l.counters[key] = n
}

// elected checks a scheduler's term. Called under l.mu.
func (l *ledger) elected(leader lease.Leader) {
	if leader.Term <= l.term {
		l.w.failf("%s is the scheduler in term %d, which is behind %d", leader.Node, leader.Term, l.term)
	}
	l.term = leader.Term
}

// acquired checks an owner and its epoch. Called under l.mu.
func (l *ledger) acquired(key string, o, before lease.Owner) {
	if before.Instance != "" && before.Instance != o.Instance {
		l.w.failf("%s takes %s, which %s holds since epoch %d", o.Instance, key, before.Instance, before.Epoch)
	}
	if l.owned[key] == nil {
		l.owned[key] = map[uint64]string{}
	}
	if by, twice := l.owned[key][o.Epoch]; twice && !l.restored {
		l.w.failf("epoch %d of %s goes to %s and went to %s (invariant 6)", o.Epoch, key, o.Instance, by)
	}
	l.owned[key][o.Epoch] = o.Instance
}

// goBack is a coordinator that comes back from a backup.
func (l *ledger) goBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restored = true
}

// settled checks what a source is told. Called outside l.mu.
func (l *ledger) settled(key string, position int64) {
	if durable, _ := l.record(key).Position.Number(); position > durable {
		l.w.failf("the source of %s is told of %d, durable is %d (invariant 2)", key, position, durable)
	}
}

// promised checks that a part which is about to appear stands in the record: only
// then does it not matter who creates it (invariant 1).
func (l *ledger) promised(key string, epoch uint64, name string) {
	rec := l.record(key)
	if !slices.ContainsFunc(rec.Intents, func(in checkpoint.Intent) bool { return in.Name == name }) {
		l.w.failf("epoch %d creates part %s, which the record of epoch %d does not promise (invariant 1)", epoch, name, rec.Epoch)
	}
}

// open checks that a gate which lets a write through belongs to a lease that lives:
// a node that cannot prove its lease writes nothing.
func (l *ledger) open(p *process) {
	kv, _, _ := l.w.operator.Client.Get(context.Background(), l.keys.Node(p.name))
	if kv != nil {
		if n, err := lease.Decode[lease.Node](kv.Value); err == nil && n.Instance == p.instance() {
			return
		}
	}
	l.w.failf("%s writes through an open gate and has no lease", p.instance())
}
