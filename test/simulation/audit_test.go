package simulation

import (
	"bytes"
	"strings"

	"github.com/mqbridge/mqb/lease"
	"github.com/mqbridge/mqb/route"
)

// audit holds a cluster at rest against the invariants of docs/design.md. Each is
// an assertion here, or one at the place where it can be broken:
//
//	 1  ledger.written: no record is written by an epoch below the one that claimed
//	    it; ledger.promised: no part appears that the record does not promise
//	 2  ledger.settled: no source is told of more than is durable
//	 3  ledger.written: when a position is written, all before it is in the sink
//	 4  audit: the counters of every partition add up, whatever it went through
//	 5  journal: what ends a run without fault of its own is no error in the log, and
//	    converge: a fenced node goes on with what is still its own
//	 6  ledger.counted, acquired, written: an epoch goes to one run
//	 7  start: each life of a node has a session clock of its own. package time is
//	    one for the whole bubble, so wall clocks that disagree are not simulated
//	 8  process: the budget holds four batches; end: all of it comes back
//	 9  audit: every status says exactly-once, as the routes require
//	10  ledger.written: no position goes back; epilogue: a record or a source that
//	    went back stops the partition and says so
//	11  journal, audit: the password of the routes is in no log and no status
//	12  audit: every good record is there, once, beside those that were dropped;
//	    epilogue: another route goes on
func (w *world) audit() {
	w.exactlyOnce()
	for _, name := range w.able() {
		for _, s := range w.alive[name].status() {
			w.countersAddUp(name, s)
			if s.Guarantee != string(route.ExactlyOnce) {
				w.failf("%s/%s is %s on %s (invariant 9)", s.Route, s.Partition, s.Guarantee, name)
			}
		}
	}
	w.secretKept()
}

// exactlyOnce: the sinks fail at once when a record comes twice or out of order;
// here nothing may be missing, and nothing may be there that should not.
func (w *world) exactlyOnce() {
	for _, r := range w.routes {
		for i, l := range r.logs {
			_, end, _ := l.bounds()
			if missing := r.missing(i, end); len(missing) > 0 {
				w.failf("%s/%s: lost: %v", r.name, partitionID(i), missing)
			}
			want := 0
			for n := range end {
				if kindOf(n) == kindWritten {
					want++
				}
			}
			if got := r.count(i); got != want {
				w.failf("%s/%s: %d records in the sink, want %d (invariant 12)", r.name, partitionID(i), got, want)
			}
		}
	}
}

func (w *world) countersAddUp(node string, s lease.PartitionStatus) {
	c := s.Counters
	if c.Read != c.Written+c.Covered+c.Filtered+c.Deduplicated+c.DeadLettered+c.Dropped+c.Returned {
		w.failf("%s/%s on %s: the counters do not add up (invariant 4): %+v", s.Route, s.Partition, node, c)
	}
}

// secretKept: the routes' keys hold the specs with their secrets; nothing else of
// the coordinator does.
func (w *world) secretKept() {
	kvs, _, err := w.operator.List(w.t.Context(), w.keys.Prefix())
	if err != nil {
		w.failf("list: %v", err)
	}
	for _, kv := range kvs {
		if !isRoute(w.keys, kv.Key) && holdsSecret(kv.Value) {
			w.failf("a secret is in %s (invariant 11)", kv.Key)
		}
	}
}

func isRoute(k lease.Keys, key string) bool { return strings.HasPrefix(key, k.Routes()) }

func holdsSecret(value []byte) bool { return bytes.Contains(value, []byte(secret)) }
