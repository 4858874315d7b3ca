package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/mqbridge/mqb/checkpoint"
)

func tampers(s *Subject) bool { return s.Tamper != nil }

var behaviours = []behaviour{
	{"load, swap, list", nil, loadSwapList},
	{"records of other keys are apart", nil, oddKeys},
	{"every field comes back", nil, everyField},
	{"create meets a record", nil, createConflict},
	{"swap meets another version", nil, versionConflict},
	{"version must follow", nil, versionFollows},
	{"swap finds the record gone", tampers, swapGone},
	{"one winner of each version", nil, oneWinner},
	{"concurrent claims never lower the epoch", nil, concurrentClaims},
	{"claim, commit, claim", nil, claimCommit},
	{"lost reply is success", nil, lostReply},
	{"late write of a try that was given up is no success of the next one", nil, lateWrite},
	{"refused call may be repeated", nil, refusedCall},
	{"stale epoch", nil, staleEpoch},
	{"stale run of the same epoch", nil, staleRun},
	{"record went back", tampers, regressed},
	{"record below the floor", nil, belowFloor},
	{"foreign cluster, route, series, store", nil, foreign},
	{"foreign source", nil, foreignSource},
	{"stale generation; intents keep theirs", nil, generations},
	{"torn record", tampers, torn},
	{"commit never creates", nil, neverCreates},
	{"set fences the owner", nil, setFences},
	{"tombstone", nil, tombstone},
	{"moved", nil, moved},
	{"too large", nil, tooLarge},
	{"locked by a frozen session", func(s *Subject) bool { return s.LockRecord != nil }, locked},
}

func bare(version uint64) checkpoint.Record {
	return checkpoint.Record{V: 1, ClusterUID: "cluster", RouteUID: "route", Series: "s1", Epoch: 1, Run: "r", Version: version}
}

func loadSwapList(r *rig) {
	if _, err := r.store.Load(r.ctx, r.key); !errors.Is(err, checkpoint.ErrNotFound) {
		r.Errorf("load of nothing: %v, want ErrNotFound", err)
	}
	if got, err := r.store.List(r.ctx, r.key); err != nil || len(got) != 0 {
		r.Errorf("list of nothing: %v, %v", got, err)
	}
	other := r.s.Open(r.T) // another node sees the same
	defer other.Close()
	for v := uint64(0); v < 5; v++ {
		if err := r.store.Swap(r.ctx, r.key, v, bare(v+1)); err != nil {
			r.Fatalf("swap over version %d: %v", v, err)
		}
		if got, err := other.Load(r.ctx, r.key); err != nil || !same(got, bare(v+1)) {
			r.Fatalf("load after swap: %+v, %v", got, err)
		}
	}
	if id := r.store.Identity(); id == "" || id != other.Identity() || strings.Contains(id, "@") {
		r.Errorf("identity %q, then %q: must be stable and without user or password", id, other.Identity())
	}
}

func oddKeys(r *rig) {
	names := []string{"", "/", "/a", "/a/b", "/a%2Fb", "/ä", "/a b", "/A", "/z_", "/z%", "b"}
	for _, n := range names {
		rec := bare(1)
		rec.Run = n
		if err := r.store.Swap(r.ctx, r.key+n, 0, rec); err != nil {
			r.Fatalf("create %q: %v", r.key+n, err)
		}
	}
	for prefix, want := range map[string]func(string) bool{
		r.key:         func(string) bool { return true },
		r.key + "/a":  func(n string) bool { return strings.HasPrefix(n, "/a") },
		r.key + "/z_": func(n string) bool { return n == "/z_" },
		r.key + "/z%": func(n string) bool { return n == "/z%" },
	} {
		got, err := r.store.List(r.ctx, prefix)
		if err != nil {
			r.Fatal(err)
		}
		var keys, wanted []string
		for _, e := range got {
			keys = append(keys, e.Key)
			if e.Err != nil || r.key+e.Record.Run != e.Key {
				r.Errorf("entry %q holds the record of %q (%v)", e.Key, e.Record.Run, e.Err)
			}
		}
		for _, n := range names {
			if want(n) {
				wanted = append(wanted, r.key+n)
			}
		}
		slices.Sort(wanted)
		if !slices.Equal(keys, wanted) {
			r.Errorf("list %q: %q, want %q", prefix, keys, wanted)
		}
	}
}

func everyField(r *rig) {
	rec := checkpoint.Record{
		V: 1, ClusterUID: "c", RouteUID: "r", Series: "s", Generation: 7, Epoch: 1 << 40, Run: "run \"x\"", Version: 1,
		Position: at(5),
		Intents: []checkpoint.Intent{{
			From: at(5), End: at(9), First: 5, Last: 8, Name: "a/ü.jsonl", Generation: 7, Records: 4, Bytes: 99, Digest: "crc32c:00000001",
		}},
		Source: "inode 5", Session: "12/34", SinkState: []byte{0, 1, 254, 255}, MovedTo: "s3", Tombstone: true,
	}
	if err := r.store.Swap(r.ctx, r.key, 0, rec); err != nil {
		r.Fatal(err)
	}
	r.stored(rec)
}

func createConflict(r *rig) {
	if err := r.store.Swap(r.ctx, r.key, 0, bare(1)); err != nil {
		r.Fatal(err)
	}
	other := bare(1)
	other.Run = "other"
	r.is(r.store.Swap(r.ctx, r.key, 0, other), checkpoint.ErrConflict, "create over a record")
	r.stored(bare(1))
}

func versionConflict(r *rig) {
	for v := range uint64(3) {
		if err := r.store.Swap(r.ctx, r.key, v, bare(v+1)); err != nil {
			r.Fatal(err)
		}
	}
	for _, v := range []uint64{1, 2, 4, 9} {
		rec := bare(v + 1)
		rec.Epoch = 99 // no epoch makes up for a version
		r.is(r.store.Swap(r.ctx, r.key, v, rec), checkpoint.ErrConflict, "swap over another version")
	}
	r.stored(bare(3))
}

func versionFollows(r *rig) {
	if err := r.store.Swap(r.ctx, r.key, 0, bare(1)); err != nil {
		r.Fatal(err)
	}
	for _, v := range []uint64{0, 1, 3} {
		if err := r.store.Swap(r.ctx, r.key, 1, bare(v)); err == nil {
			r.Errorf("version %d was written over version 1", v)
		}
	}
	r.stored(bare(1))
}

func swapGone(r *rig) {
	if err := r.store.Swap(r.ctx, r.key, 0, bare(1)); err != nil {
		r.Fatal(err)
	}
	r.s.Tamper(r.T, r.key, func([]byte) []byte { return nil })
	r.is(r.store.Swap(r.ctx, r.key, 1, bare(2)), checkpoint.ErrRegressed, "swap of a record that is gone")
	if _, err := r.store.Load(r.ctx, r.key); !errors.Is(err, checkpoint.ErrNotFound) {
		r.Errorf("load: %v, want ErrNotFound", err)
	}
}

func oneWinner(r *rig) {
	const writers, rounds = 6, 20
	for v := range uint64(rounds) {
		var wg sync.WaitGroup
		errs := make([]error, writers)
		for w := range writers {
			wg.Go(func() {
				rec := bare(v + 1)
				rec.Run = string(rune('a' + w))
				errs[w] = r.store.Swap(r.ctx, r.key, v, rec)
			})
		}
		wg.Wait()
		winner := -1
		for w, err := range errs {
			switch {
			case err == nil && winner >= 0:
				r.Fatalf("version %d has two winners (invariant 1)", v+1)
			case err == nil:
				winner = w
			case !errors.Is(err, checkpoint.ErrConflict):
				r.Fatalf("loser of version %d: %v, want ErrConflict", v+1, err)
			}
		}
		if winner < 0 {
			r.Fatalf("version %d has no winner", v+1)
		}
		got, err := r.store.Load(r.ctx, r.key)
		if err != nil || got.Run != string(rune('a'+winner)) {
			r.Fatalf("the record is %s's (%v), the winner was %c", got.Run, err, 'a'+winner)
		}
	}
}

// concurrentClaims lets owners claim with rising epochs at once while each
// commits until it is fenced. Watched from beside, the epoch never falls.
func concurrentClaims(r *rig) {
	const owners = 8
	r.claim(1)
	var wg sync.WaitGroup
	for e := uint64(2); e < 2+owners; e++ {
		wg.Go(func() {
			c, err := r.tryClaim(r.store, e)
			for n := 0; err == nil && n < 10; n++ {
				c.Record, err = r.tryCommit(r.store, c.Record, int(e)*100+n)
			}
			if err != nil && !errors.Is(err, checkpoint.ErrFenced) {
				r.Errorf("owner of epoch %d: %v, want ErrFenced or nothing", e, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	last := bare(0)
	for watching := true; watching; {
		select {
		case <-done:
			watching = false
		default:
		}
		now, err := r.store.Load(r.ctx, r.key)
		if err != nil {
			r.Fatal(err)
		}
		if now.Version < last.Version || now.Epoch < last.Epoch {
			r.Errorf("the record went from version %d, epoch %d to %d, %d (invariant 1)", last.Version, last.Epoch, now.Version, now.Epoch)
		}
		last = now
	}
	if last.Epoch != 1+owners {
		r.Errorf("the highest epoch %d did not win, %d did", 1+owners, last.Epoch)
	}
}

func claimCommit(r *rig) {
	first := r.claim(1)
	if first.Resumed || first.Record.Version != 1 || first.Record.Epoch != 1 || !first.Record.Position.IsZero() {
		r.Errorf("first claim: %+v", first)
	}
	held := r.commit(r.commit(first.Record, 5), 9)
	if held.Version != 3 {
		r.Errorf("version %d after a claim and two commits", held.Version)
	}
	second := r.claim(2)
	if !second.Resumed || second.Record.Version != 4 || second.Record.Epoch != 2 || second.Record.Position.Compare(at(9)) != 0 {
		r.Errorf("second claim: %+v", second)
	}
	again := r.claim(2) // the same run may ask twice
	r.stored(again.Record)
	r.commit(again.Record, 10)
}

func lostReply(r *rig) {
	f := &faulty{Store: r.store, next: lose}
	c, err := r.tryClaim(f, 1)
	if err != nil {
		r.Fatalf("claim whose reply was lost: %v", err)
	}
	r.stored(c.Record)
	f.next = conflict
	if c, err = r.tryClaim(f, 2); err != nil {
		r.Fatalf("claim that met itself: %v", err)
	}
	r.stored(c.Record)
	held := c.Record
	for i, fault := range []fault{lose, conflict} {
		f.next = fault
		if held, err = r.tryCommit(f, held, i+1); err != nil {
			r.Fatalf("commit: %v", err)
		}
		r.stored(held)
	}
}

// lateWrite gives up on a commit that is still on its way, and commits something
// else; version and run alone cannot tell the two apart.
func lateWrite(r *rig) {
	f := &faulty{Store: r.store, next: delay}
	held := r.claim(1).Record
	if _, err := r.tryCommit(f, held, 5); err == nil {
		r.Fatal("a commit that did not arrive succeeded")
	}
	if err := f.late(); err != nil {
		r.Fatal(err)
	}
	held = r.commit(held, 9)
	if held.Position.Compare(at(9)) != 0 {
		r.Errorf("committed %q, want %q", held.Position.Sort, at(9).Sort)
	}
	r.commit(held, 10)
}

func refusedCall(r *rig) {
	f := &faulty{Store: r.store}
	held := r.claim(1).Record
	f.next = refuse
	got, err := r.tryCommit(f, held, 5)
	if err == nil || errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrRegressed) {
		r.Errorf("commit that was not written: %v, want a plain error", err)
	}
	if !same(got, held) {
		r.Errorf("a failed commit returned %+v, want what was held", got)
	}
	r.stored(held)
	r.commit(held, 5)
	f.next = refuse
	if _, err := r.tryClaim(f, 2); err == nil || errors.Is(err, checkpoint.ErrFenced) {
		r.Errorf("claim that was not written: %v, want a plain error", err)
	}
	r.claim(2)
}

func staleEpoch(r *rig) {
	held := r.commit(r.claim(1).Record, 5)
	now := r.claim(3).Record
	_, err := r.tryCommit(r.store, held, 6)
	var fenced *checkpoint.FencedError
	if !errors.As(err, &fenced) || fenced.Epoch != 1 || fenced.Stored != 3 {
		r.Errorf("commit of a stale epoch: %v, want epoch 1 fenced by 3 (invariant 1)", err)
	}
	_, err = r.tryClaim(r.store, 2)
	r.is(err, checkpoint.ErrFenced, "claim of a stale epoch")
	r.stored(now)
	r.commit(now, 7)
	_, err = r.tryCommit(r.store, held, 6)
	r.is(err, checkpoint.ErrFenced, "commit of a stale epoch after the new owner's")
}

func staleRun(r *rig) {
	held := r.claim(1).Record
	_, err := r.tryClaim(r.store, 1, func(q *checkpoint.ClaimRequest) { q.Run = "other" })
	r.is(err, checkpoint.ErrFenced, "claim of another run with the same epoch (invariant 6)")
	r.stored(held)
	// A commit of that other run, at the very version.
	stale := held
	stale.Run = "other"
	r.commit(held, 5)
	_, err = r.tryCommit(r.store, stale, 6)
	r.is(err, checkpoint.ErrFenced, "commit of another run with the same epoch")
}

func regressed(r *rig) {
	held := r.commit(r.claim(1).Record, 1)
	var backup []byte
	r.s.Tamper(r.T, r.key, func(b []byte) []byte { backup = slices.Clone(b); return b })
	held = r.commit2(held, 2)
	held = r.commit2(held, 3)
	r.s.Tamper(r.T, r.key, func([]byte) []byte { return backup })
	_, err := r.tryCommit(r.store, held, 4)
	r.is(err, checkpoint.ErrRegressed, "commit over a restored record")
	_, err = r.tryClaim(r.store, 2, func(q *checkpoint.ClaimRequest) {
		q.Floor = &checkpoint.Floor{Store: r.store.Identity(), Epoch: 1, Version: held.Version}
	})
	r.is(err, checkpoint.ErrRegressed, "claim of a restored record")
	r.s.Tamper(r.T, r.key, func([]byte) []byte { return nil })
	_, err = r.tryCommit(r.store, held, 4)
	r.is(err, checkpoint.ErrRegressed, "commit over a record that is gone")
}

// commit2 commits without a look: some stores already refuse to read what Tamper wrote.
func (r *rig) commit2(held checkpoint.Record, to int) checkpoint.Record {
	r.Helper()
	got, err := r.tryCommit(r.store, held, to)
	if err != nil {
		r.Fatalf("commit: %v", err)
	}
	return got
}

func belowFloor(r *rig) {
	floor := func(epoch, version uint64) func(*checkpoint.ClaimRequest) {
		return func(q *checkpoint.ClaimRequest) {
			q.Floor = &checkpoint.Floor{Store: r.store.Identity(), Epoch: epoch, Version: version}
		}
	}
	_, err := r.tryClaim(r.store, 2, floor(1, 1))
	r.is(err, checkpoint.ErrRegressed, "claim of a record that is gone")
	held := r.commit(r.claim(3).Record, 1)
	_, err = r.tryClaim(r.store, 4, floor(3, held.Version+1))
	r.is(err, checkpoint.ErrRegressed, "claim below the floor's version")
	_, err = r.tryClaim(r.store, 5, floor(4, held.Version))
	r.is(err, checkpoint.ErrRegressed, "claim below the floor's epoch")
	r.stored(held)
	r.claim(6, floor(3, held.Version))
}

func foreign(r *rig) {
	held := r.claim(1).Record
	for why, change := range map[string]func(*checkpoint.ClaimRequest){
		"another cluster": func(q *checkpoint.ClaimRequest) { q.ClusterUID = "other" },
		"another route":   func(q *checkpoint.ClaimRequest) { q.RouteUID = "other" },
		"another series":  func(q *checkpoint.ClaimRequest) { q.Series = "other" },
		"another store":   func(q *checkpoint.ClaimRequest) { q.Floor = &checkpoint.Floor{Store: "elsewhere"} },
	} {
		_, err := r.tryClaim(r.store, 2, change)
		r.is(err, checkpoint.ErrForeign, why)
	}
	r.stored(held)
}

func foreignSource(r *rig) {
	identify := func(want, id string, err error) func(*checkpoint.ClaimRequest) {
		return func(q *checkpoint.ClaimRequest) {
			q.Identify = func(_ context.Context, recorded string) (string, error) {
				if recorded != want {
					r.Errorf("asked about the source %q, the record names %q", recorded, want)
				}
				return id, err
			}
		}
	}
	held := r.claim(1, identify("", "file-1", nil)).Record
	if held.Source != "file-1" {
		r.Errorf("the record names the source %q", held.Source)
	}
	_, err := r.tryClaim(r.store, 2, identify("file-1", "", checkpoint.ErrForeign))
	r.is(err, checkpoint.ErrForeign, "another source")
	r.stored(held)
	r.claim(3, identify("file-1", "file-1", nil))
}

func generations(r *rig) {
	gen := func(n uint64) func(*checkpoint.ClaimRequest) {
		return func(q *checkpoint.ClaimRequest) { q.Generation = n }
	}
	held := r.claim(1, gen(2)).Record
	_, err := r.tryClaim(r.store, 2, gen(1))
	r.is(err, checkpoint.ErrStaleGeneration, "an older generation")
	next := held
	next.Intents = []checkpoint.Intent{{From: at(0), End: at(5), Name: "p", Generation: 2}}
	if _, err = checkpoint.Commit(r.ctx, r.store, r.key, held, next); err != nil {
		r.Fatal(err)
	}
	got := r.claim(3, gen(3)).Record
	if got.Generation != 2 || len(got.Intents) != 1 {
		r.Errorf("a claim over an open intent has generation %d and %d intents, want 2 and 1", got.Generation, len(got.Intents))
	}
	done := got
	done.Intents, done.Position = nil, at(5)
	if _, err = checkpoint.Commit(r.ctx, r.store, r.key, got, done); err != nil {
		r.Fatal(err)
	}
	if got := r.claim(4, gen(3)).Record; got.Generation != 3 {
		r.Errorf("a claim without intents stays at generation %d", got.Generation)
	}
}

func torn(r *rig) {
	base := r.key
	for why, damage := range map[string]func([]byte) []byte{
		"half of it":  func(b []byte) []byte { return b[:len(b)/2] },
		"one bit":     func(b []byte) []byte { b[len(b)/3] ^= 1; return b },
		"no checksum": func([]byte) []byte { return []byte(`{"v":1}`) },
	} {
		r.key = base + "/" + why
		held := r.commit(r.claim(1).Record, 1)
		if err := r.store.Swap(r.ctx, r.key+"/other", 0, bare(1)); err != nil {
			r.Fatal(err)
		}
		r.s.Tamper(r.T, r.key, damage)
		_, err := r.store.Load(r.ctx, r.key)
		r.is(err, checkpoint.ErrRegressed, why+": load")
		_, err = r.tryClaim(r.store, 2)
		r.is(err, checkpoint.ErrRegressed, why+": claim")
		entries, err := r.store.List(r.ctx, r.key)
		if err != nil || len(entries) != 2 {
			r.Fatalf("%s: list: %d entries, %v", why, len(entries), err)
		}
		r.is(entries[0].Err, checkpoint.ErrRegressed, why+": list")
		if entries[1].Err != nil {
			r.Errorf("%s: the record beside it: %v (invariant 12)", why, entries[1].Err)
		}
		// A store that compares a column of its own may let the very next version
		// through, which repairs the record; any other one must not pass.
		held.Version += 5
		if _, err = r.tryCommit(r.store, held, 2); err == nil {
			r.Errorf("%s: a commit at another version went through", why)
		}
	}
}

func neverCreates(r *rig) {
	held := bare(4)
	_, err := r.tryCommit(r.store, held, 5)
	r.is(err, checkpoint.ErrRegressed, "commit without a record")
	if _, err := r.store.Load(r.ctx, r.key); !errors.Is(err, checkpoint.ErrNotFound) {
		r.Errorf("load: %v, want ErrNotFound", err)
	}
}

func setFences(r *rig) {
	held := r.commit(r.claim(1).Record, 50)
	rec, err := checkpoint.Set(r.ctx, r.store, request(r.key, 2, "operator"), at(10))
	if err != nil {
		r.Fatal(err)
	}
	r.stored(rec)
	_, err = r.tryCommit(r.store, held, 60)
	r.is(err, checkpoint.ErrFenced, "commit after an operator's set")
	if c := r.claim(3); c.Record.Position.Compare(at(10)) != 0 || !c.Resumed {
		r.Errorf("claim after set: %+v", c)
	}
}

func tombstone(r *rig) {
	held := r.commit(r.claim(1, func(q *checkpoint.ClaimRequest) {
		q.Identify = func(context.Context, string) (string, error) { return "old", nil }
	}).Record, 50)
	if _, err := checkpoint.Delete(r.ctx, r.store, request(r.key, 2, "operator")); err != nil {
		r.Fatal(err)
	}
	rec, err := r.store.Load(r.ctx, r.key)
	if err != nil || !rec.Tombstone || rec.Version <= held.Version {
		r.Fatalf("after delete: %+v, %v; want a tombstone at a higher version", rec, err)
	}
	_, err = r.tryCommit(r.store, held, 60)
	r.is(err, checkpoint.ErrFenced, "commit after a delete")
	_, err = r.tryClaim(r.store, 1)
	r.is(err, checkpoint.ErrFenced, "claim of the epoch before the delete")
	c := r.claim(3, func(q *checkpoint.ClaimRequest) {
		q.Series = "s2"
		q.Identify = func(_ context.Context, recorded string) (string, error) {
			if recorded != "" {
				r.Errorf("a tombstone remembers the source %q", recorded)
			}
			return "new", nil
		}
	})
	if c.Resumed || c.Record.Tombstone || !c.Record.Position.IsZero() || c.Record.Version != rec.Version+1 {
		r.Errorf("claim after a delete: %+v", c)
	}
}

func moved(r *rig) {
	held := r.commit(r.claim(1).Record, 5)
	next := held
	next.MovedTo = "postgres://elsewhere"
	if _, err := checkpoint.Commit(r.ctx, r.store, r.key, held, next); err != nil {
		r.Fatal(err)
	}
	_, err := r.tryClaim(r.store, 2)
	r.is(err, checkpoint.ErrMoved, "claim of a record that moved")
}

func tooLarge(r *rig) {
	held := r.claim(1).Record
	next := held
	next.SinkState = make([]byte, checkpoint.MaxRecordBytes)
	_, err := checkpoint.Commit(r.ctx, r.store, r.key, held, next)
	r.is(err, checkpoint.ErrTooLarge, "commit of a record over the bound")
	r.stored(held)
	next.SinkState = make([]byte, checkpoint.MaxRecordBytes*7/10) // base64 adds a third
	held, err = checkpoint.Commit(r.ctx, r.store, r.key, held, next)
	if err != nil {
		r.Fatalf("commit of a record just below the bound: %v", err)
	}
	r.stored(held)
}

func locked(r *rig) {
	session, lock := r.s.LockRecord(r.T)
	held := r.commit(r.claim(1, func(q *checkpoint.ClaimRequest) { q.Session = session }).Record, 5)
	lock(r.key)
	c := r.claim(2)
	if c.Record.Position.Compare(held.Position) != 0 {
		r.Errorf("claimed at %q, want %q", c.Record.Position.Sort, held.Position.Sort)
	}
	r.commit(c.Record, 6)
}
