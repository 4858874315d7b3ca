package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/s3"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/test/harness"
)

// pair is one record seen through a proxy, by an owner, and directly, by its
// successor.
type pair struct {
	proxy  *proxy
	owner  *s3.Store
	direct *s3.Store
	tamper func(change func([]byte) []byte)
	held   checkpoint.Record
	key    string
}

func newPair(t *testing.T) *pair {
	server := harness.S3(t)
	bucket := server.NewBucket(t)
	p := &pair{proxy: newProxy(t, server), key: "c/route/1/0/out"}
	p.direct = open(t, server.URL(bucket))
	p.owner = open(t, harness.S3URL(p.proxy.URL, bucket))
	t.Cleanup(func() {
		_ = p.owner.Close()
		_ = p.direct.Close()
	})
	client := server.Client(t, bucket)
	p.tamper = func(change func([]byte) []byte) { tamper(t, client, p.key+".json", change) }
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

// stored is the record as another process sees it.
func (p *pair) stored(t *testing.T) checkpoint.Record {
	t.Helper()
	rec, err := p.direct.Load(t.Context(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestLostReplyOfAPutIsSuccess(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.proxy.onPut(func(r put) { r.forward(); r.cut() })
	got, err := p.commit(t.Context(), 5)
	if err != nil || got.Version != 2 || p.stored(t).Version != 2 {
		t.Fatalf("version %d, %v; stored %d", got.Version, err, p.stored(t).Version)
	}
	// The ETag of a reply that never came is not known, and not guessed.
	p.proxy.onPut(nil)
	p.held = got
	if got, err = p.commit(t.Context(), 6); err != nil || got.Version != 3 {
		t.Fatalf("version %d, %v", got.Version, err)
	}
}

func TestPutRepeatedOnItsWayIsSuccess(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.proxy.onPut(func(r put) { r.forward(); r.reply(r.forward()) })
	got, err := p.commit(t.Context(), 5)
	if err != nil || p.stored(t).Version != got.Version || got.Version != 2 {
		t.Fatalf("version %d, %v; stored %d", got.Version, err, p.stored(t).Version)
	}
	p.proxy.onPut(func(r put) { p.proxy.onPut(nil); r.forward(); r.reply(r.forward()) })
	if now := p.claim(t, p.owner, 2); now.Epoch != 2 || p.stored(t).Epoch != 2 {
		t.Fatalf("claimed %+v", now)
	}
}

func TestPutIsNotRepeatedByTheSDK(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for name, f := range map[string]func(put){
		"cut": func(r put) { r.cut() },
		"500": func(r put) { r.reply(http.StatusInternalServerError, nil, nil) },
		"slow down": func(r put) {
			r.reply(http.StatusServiceUnavailable, nil, []byte("<Error><Code>SlowDown</Code></Error>"))
		},
	} {
		p.proxy.onPut(f)
		_, err := p.commit(t.Context(), 5)
		if err == nil || p.proxy.seen() != 1 {
			t.Errorf("%s: %d PUTs, %v", name, p.proxy.seen(), err)
		}
		for _, sentinel := range []error{checkpoint.ErrFenced, checkpoint.ErrConflict, checkpoint.ErrRegressed} {
			if errors.Is(err, sentinel) {
				t.Errorf("%s: an unknown outcome is %v", name, err)
			}
		}
	}
}

// The frozen owner of a partition had its PUT on the way when it stopped.
func TestDelayedPutAfterTheSuccessorsClaimIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	arrive, arrived := make(chan struct{}), make(chan int, 1)
	p.proxy.onPut(func(r put) {
		<-arrive
		status, _, _ := r.forward()
		arrived <- status
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.commit(ctx, 5)
		done <- err
	}()
	p.proxy.await(t)
	cancel()
	if err := <-done; err == nil || errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("commit that did not arrive: %v", err)
	}
	now := p.claim(t, p.direct, 2)
	close(arrive)
	if status := <-arrived; status != http.StatusPreconditionFailed {
		t.Errorf("the delayed PUT was answered with %d (invariant 1)", status)
	}
	if got := p.stored(t); got.Epoch != 2 || got.Version != now.Version {
		t.Fatalf("the delayed PUT reverted the record to epoch %d, version %d (invariant 1)", got.Epoch, got.Version)
	}
	p.proxy.onPut(nil)
	if _, err := p.commit(t.Context(), 6); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("the owner that woke up: %v", err)
	}
}

// As above, but the claimer's record is created over nothing.
func TestDelayedCreationAfterAnotherOneIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.key += "2"
	arrive, arrived := make(chan struct{}), make(chan int, 1)
	p.proxy.onPut(func(r put) {
		<-arrive
		status, _, _ := r.forward()
		arrived <- status
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.owner.Swap(ctx, p.key, 0, checkpoint.Record{Epoch: 1, Version: 1}) }()
	p.proxy.await(t)
	cancel()
	if err := <-done; err == nil {
		t.Fatal("created")
	}
	p.claim(t, p.direct, 2)
	close(arrive)
	if status := <-arrived; status != http.StatusPreconditionFailed || p.stored(t).Epoch != 2 {
		t.Fatalf("status %d, %+v", status, p.stored(t))
	}
}

func TestConflictOfConcurrentRequestsIsRetried(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	busy := 3
	p.proxy.onPut(func(r put) {
		if busy--; busy >= 0 {
			r.reply(http.StatusConflict, nil, []byte("<Error><Code>ConditionalRequestConflict</Code></Error>"))
			return
		}
		r.reply(r.forward())
	})
	got, err := p.commit(t.Context(), 5)
	if err != nil || got.Version != 2 || p.proxy.seen() != 4 {
		t.Fatalf("version %d after %d PUTs, %v", got.Version, p.proxy.seen(), err)
	}
	// One that lost meanwhile does not go on.
	p.held = got
	p.proxy.onPut(func(r put) {
		p.claim(t, p.direct, 2)
		p.proxy.onPut(nil)
		r.reply(http.StatusConflict, nil, nil)
	})
	if _, err := p.commit(t.Context(), 6); !errors.Is(err, checkpoint.ErrFenced) || p.proxy.seen() != 0 {
		t.Fatalf("%d more PUTs, %v", p.proxy.seen(), err)
	}
}

// Stores differ in their answer to a swap of nothing: 404, or 412.
func TestGoneRecordIsRegressedWhateverTheAnswer(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusPreconditionFailed} {
		p := newPair(t)
		p.proxy.onPut(func(r put) {
			if got, header, body := r.forward(); got != http.StatusNotFound {
				r.reply(got, header, body)
				return
			}
			r.reply(status, nil, nil)
		})
		p.tamper(func([]byte) []byte { return nil })
		for range 2 { // with the ETag remembered, and without
			err := p.owner.Swap(t.Context(), p.key, 1, checkpoint.Record{Version: 2})
			if !errors.Is(err, checkpoint.ErrRegressed) {
				t.Errorf("%d: %v", status, err)
			}
		}
		if _, err := p.direct.Load(t.Context(), p.key); !errors.Is(err, checkpoint.ErrNotFound) {
			t.Errorf("a swap created the record: %v", err)
		}
	}
}

// A restored bucket may hold another record under the version that this process
// has seen; its ETag tells.
func TestRecordOfAnotherHistoryAtTheSameVersionIsAConflict(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	other := p.held
	other.Run = "of the other history"
	body, err := checkpoint.Encode(other)
	if err != nil {
		t.Fatal(err)
	}
	p.tamper(func([]byte) []byte { return body })
	if err := p.owner.Swap(t.Context(), p.key, 1, checkpoint.Record{Version: 2}); !errors.Is(err, checkpoint.ErrConflict) {
		t.Fatalf("swap: %v", err)
	}
	if got := p.stored(t); got.Run != other.Run {
		t.Fatalf("stored %+v", got)
	}
}

func TestListHasManyPagesAndOnlyRecords(t *testing.T) {
	t.Parallel()
	server := harness.S3(t)
	bucket := server.NewBucket(t)
	s := open(t, server.URL(bucket+"/checkpoints"))
	defer s.Close()
	var want []string
	// More than the thousand that a page holds. "a-" sorts before "a.json" and
	// after "a".
	for i := range 520 {
		want = append(want, fmt.Sprintf("c/r/1/%03d/a", i), fmt.Sprintf("c/r/1/%03d/a-b", i))
	}
	for _, key := range want {
		if err := s.Swap(t.Context(), key, 0, checkpoint.Record{Run: key, Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	client := server.Client(t, bucket)
	for _, object := range []string{"checkpoints/c/r/1/000/a.bak", "elsewhere/c/r/1/000/a.json", "checkpoints-2/c/r/1/000/a.json"} {
		if _, err := client.API.PutObject(t.Context(), &api.PutObjectInput{Bucket: &bucket, Key: aws.String(object), Body: strings.NewReader("x")}); err != nil {
			t.Fatal(err)
		}
	}
	tamper(t, client, "checkpoints/"+want[7]+".json", func(b []byte) []byte { return b[:20] })
	entries, err := s.List(t.Context(), "c/r/")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, e := range entries {
		got = append(got, e.Key)
		if torn := errors.Is(e.Err, checkpoint.ErrRegressed); torn != (i == 7) || !torn && e.Record.Run != e.Key {
			t.Errorf("%s: %+v", e.Key, e)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d records, %q …", len(got), len(want), got[:min(4, len(got))])
	}
	if entries, err := s.List(t.Context(), "c/r/1/000/a.j"); err != nil || len(entries) != 0 {
		t.Errorf("a part of the suffix is no part of a key: %v, %v", entries, err)
	}
}

func TestFrozenAndKilledServerIsAnErrorAndNoVerdict(t *testing.T) {
	t.Parallel()
	server := harness.StartS3(t, harness.S3Version)
	s := open(t, server.URL(server.NewBucket(t)))
	defer s.Close()
	if err := s.Swap(t.Context(), "k", 0, checkpoint.Record{Version: 1}); err != nil {
		t.Fatal(err)
	}
	check := func(why string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, loadErr := s.Load(ctx, "k")
		swapErr := s.Swap(ctx, "k", 1, checkpoint.Record{Version: 2})
		_, listErr := s.List(ctx, "")
		for _, err := range []error{loadErr, swapErr, listErr} {
			if err == nil || errors.Is(err, checkpoint.ErrNotFound) || errors.Is(err, checkpoint.ErrConflict) || errors.Is(err, checkpoint.ErrRegressed) {
				t.Errorf("%s: %v", why, err)
			}
		}
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
	check("frozen")
	server.Process().Kill()
	check("killed")
	server.Restart(t)
	if rec, err := s.Load(t.Context(), "k"); err != nil || rec.Version != 1 {
		t.Fatalf("after the restart: %+v, %v", rec, err)
	}
}

func TestIdentityHoldsNoSecret(t *testing.T) {
	t.Parallel()
	server := harness.S3(t)
	bucket := server.NewBucket(t)
	s := open(t, server.URL(bucket+"/a/b/"))
	defer s.Close()
	if want := "s3://" + bucket + "/a/b?endpoint=" + server.Endpoint; s.Identity() != want {
		t.Fatalf("%s, want %s", s.Identity(), want)
	}
}
