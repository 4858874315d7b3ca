package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/mongodb"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

// pair is one record seen through a proxy, by an owner, and directly, by its
// successor.
type pair struct {
	proxy         *proxy
	owner, direct *mongodb.Store
	held          checkpoint.Record
	key           string
}

func newPair(t *testing.T) *pair {
	server := harness.Mongo(t)
	db := server.NewDatabase(t)
	p := &pair{proxy: newProxy(t, server.Addr), key: "c/route/1/0/out"}
	p.direct = open(t, server.URL(db))
	p.owner = open(t, harness.MongoURL(p.proxy.addr, db))
	t.Cleanup(func() {
		_ = p.owner.Close()
		_ = p.direct.Close()
	})
	p.held = p.claim(t, p.owner, 1)
	return p
}

func (p *pair) claim(t *testing.T, s checkpoint.Store, epoch uint64) checkpoint.Record {
	t.Helper()
	c, err := checkpoint.Claim(t.Context(), s, checkpoint.ClaimRequest{
		Key: p.key, ClusterUID: "c", RouteUID: "r", Series: "s", Generation: 1, Epoch: epoch, Run: fmt.Sprint("run", epoch),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.Record
}

func (p *pair) commit(ctx context.Context, to int64) (checkpoint.Record, error) {
	next := p.held
	next.Position = message.Position{Sort: message.SortKey(to)}
	return checkpoint.Commit(ctx, p.owner, p.key, p.held, next)
}

func (p *pair) stored(t *testing.T) checkpoint.Record {
	t.Helper()
	rec, err := p.direct.Load(t.Context(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestLostReplyOfAnUpdateIsSuccess(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.proxy.onWrite(func(l *link, message []byte) { l.forward(message) }) // and no reply: the connection ends
	got, err := p.commit(t.Context(), 5)
	if err != nil || got.Version != 2 || p.stored(t).Version != 2 {
		t.Fatalf("version %d, %v; stored %d", got.Version, err, p.stored(t).Version)
	}
	if now := p.claim(t, p.owner, 2); p.stored(t).Version != now.Version {
		t.Fatalf("claimed %+v", now)
	}
}

func TestUpdateThatNeverArrivedIsNoVerdict(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.proxy.onWrite(func(*link, []byte) {})
	_, err := p.commit(t.Context(), 5)
	if err == nil || errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrConflict) || errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatalf("commit: %v", err)
	}
	p.proxy.onWrite(nil)
	if p.held, err = p.commit(t.Context(), 5); err != nil || p.held.Version != 2 {
		t.Fatalf("again: %+v, %v", p.held, err)
	}
}

// The frozen owner of a partition had its update on the way when it stopped.
func TestDelayedUpdateAfterTheSuccessorsClaimIsRefused(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"update": "c/route/1/0/out", "creation": "c/route/1/1/out"} {
		p := newPair(t)
		p.key = key
		sent, arrive, reply := make(chan struct{}), make(chan struct{}), make(chan bson.Raw, 1)
		p.proxy.onWrite(func(l *link, message []byte) {
			close(sent)
			<-arrive
			reply <- l.forward(message)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			if name == "update" {
				_, err := p.commit(ctx, 5)
				done <- err
				return
			}
			done <- p.owner.Swap(ctx, p.key, 0, checkpoint.Record{ClusterUID: "c", Epoch: 1, Version: 1})
		}()
		<-sent
		cancel()
		if err := <-done; err == nil || errors.Is(err, checkpoint.ErrFenced) {
			t.Fatalf("%s that did not arrive: %v", name, err)
		}
		now := p.claim(t, p.direct, 2)
		close(arrive)
		if got := <-reply; got.Lookup("value").Type == bson.TypeEmbeddedDocument || name == "creation" && got.Lookup("writeErrors").Type == 0 {
			t.Errorf("the delayed %s was done: %v (invariant 1)", name, got)
		}
		if got := p.stored(t); got.Epoch != 2 || got.Version != now.Version {
			t.Fatalf("the delayed %s left epoch %d, version %d (invariant 1)", name, got.Epoch, got.Version)
		}
		p.proxy.onWrite(nil)
		if name == "creation" {
			continue
		}
		if _, err := p.commit(t.Context(), 6); !errors.Is(err, checkpoint.ErrFenced) {
			t.Fatalf("the owner that woke up: %v", err)
		}
	}
}

// A URL of an application may ask for less than a checkpoint needs.
func TestURLDoesNotWeakenDurability(t *testing.T) {
	t.Parallel()
	server := harness.Mongo(t)
	p := newProxy(t, server.Addr)
	s := open(t, harness.MongoURL(p.addr, server.NewDatabase(t))+"&w=1&journal=false&readPreference=secondaryPreferred")
	defer s.Close()
	for v := range uint64(2) {
		if err := s.Swap(t.Context(), "k", v, checkpoint.Record{Version: v + 1}); err != nil {
			t.Fatal(err)
		}
	}
	writes := 0
	for _, c := range p.commands() {
		if c.Lookup("insert").Type == 0 && c.Lookup("findAndModify").Type == 0 {
			continue
		}
		writes++
		if w, _ := c.Lookup("writeConcern", "w").StringValueOK(); w != "majority" {
			t.Errorf("written with %s", c.Lookup("writeConcern"))
		}
		if j, _ := c.Lookup("writeConcern", "j").BooleanOK(); !j {
			t.Errorf("written with %s", c.Lookup("writeConcern"))
		}
	}
	if writes != 2 {
		t.Fatalf("%d writes seen", writes)
	}
}

func TestGoneDocumentIsRegressedNotCreated(t *testing.T) {
	t.Parallel()
	server := harness.Mongo(t)
	s := open(t, server.URL(server.NewDatabase(t)))
	defer s.Close()
	if err := s.Swap(t.Context(), "k", 3, checkpoint.Record{Version: 4}); !errors.Is(err, checkpoint.ErrRegressed) {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context(), "k"); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
}

func TestListGoesOnAfterATornRecord(t *testing.T) {
	t.Parallel()
	server := harness.Mongo(t)
	db := server.NewDatabase(t)
	s := open(t, server.URL(db))
	defer s.Close()
	var want []string
	for i := range 300 { // more than a first batch
		want = append(want, fmt.Sprintf("c/r/1/%03d", i))
	}
	for _, key := range append(slices.Clone(want), "c/r2/1/0", "c/q/1/0") {
		if err := s.Swap(t.Context(), key, 0, checkpoint.Record{Run: key, Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	records := server.Database(t, db).Collection(mongodb.DefaultCollection)
	tamper(t, records, want[7], func(b []byte) []byte { return b[:20] })
	entries, err := s.List(t.Context(), "c/r/")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, e := range entries {
		got = append(got, e.Key)
		if torn := errors.Is(e.Err, checkpoint.ErrRegressed); torn != (i == 7) || !torn && e.Record.Run != e.Key {
			t.Errorf("%+v", e)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d records", len(got), len(want))
	}
}

func TestFrozenServerIsAnErrorAndNoVerdict(t *testing.T) {
	t.Parallel()
	server := harness.StartMongo(t)
	s := open(t, server.URL(server.NewDatabase(t)))
	defer s.Close()
	if err := s.Swap(t.Context(), "k", 0, checkpoint.Record{Version: 1}); err != nil {
		t.Fatal(err)
	}
	server.Process().Freeze()
	// A signal stops a process soon, not at once.
	harness.Eventually(t, time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.Load(ctx, "k"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, f := range []func() error{
		func() error { _, err := s.Load(ctx, "k"); return err },
		func() error { return s.Swap(ctx, "k", 1, checkpoint.Record{Version: 2}) },
		func() error { _, err := s.List(ctx, ""); return err },
	} {
		if err := f(); err == nil || errors.Is(err, checkpoint.ErrNotFound) || errors.Is(err, checkpoint.ErrConflict) || errors.Is(err, checkpoint.ErrRegressed) {
			t.Errorf("frozen: %v", err)
		}
	}
	server.Process().Thaw()
	// The swap may have arrived before its caller went away, or not.
	if rec, err := s.Load(t.Context(), "k"); err != nil || rec.Version < 1 || rec.Version > 2 {
		t.Fatalf("thawed: %+v, %v", rec, err)
	}
}

func TestIdentityHoldsNoSecret(t *testing.T) {
	t.Parallel()
	server := harness.Mongo(t)
	s := open(t, server.URL("db/coll"))
	defer s.Close()
	if want := "mongodb://" + server.Addr + "/db/coll"; s.Identity() != want {
		t.Fatalf("%s, want %s", s.Identity(), want)
	}
}
