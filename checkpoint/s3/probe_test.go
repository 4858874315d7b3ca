package s3_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	api "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/mqbridge/mqb/checkpoint/s3"
	"github.com/mqbridge/mqb/test/harness"
)

// refused opens a store that must be refused, and returns what it did.
func refused(t *testing.T, url string) string {
	t.Helper()
	s, err := s3.Open(t.Context(), url)
	if err == nil {
		_ = s.Close()
		t.Fatal("the store was accepted")
	}
	var unsafe *s3.UnsafeError
	if !errors.As(err, &unsafe) {
		t.Fatalf("no verdict: %v", err)
	}
	if !strings.HasPrefix(err.Error(), "s3://") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the message does not name the store, or shows its secret: %v", err)
	}
	t.Log(err)
	return unsafe.Did
}

// All sequential requests to this server are answered rightly.
func TestStoreThatComparesWhenThePutBeginsIsRefused(t *testing.T) {
	t.Parallel()
	server := harness.StartS3(t, harness.RacyS3Version)
	if did := refused(t, server.URL(server.NewBucket(t))); !strings.HasPrefix(did, "races If-") {
		t.Errorf("it is said that it %s", did)
	}
}

func TestProbeLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := harness.S3(t)
	bucket := server.NewBucket(t)
	_ = open(t, server.URL(bucket)).Close()
	list, err := server.Client(t, bucket).API.ListObjectsV2(t.Context(), &api.ListObjectsV2Input{Bucket: &bucket})
	if err != nil || len(list.Contents) != 0 {
		t.Fatalf("%v, %v", list.Contents, err)
	}
}

func TestProbedOnceInAProcess(t *testing.T) {
	t.Parallel()
	var puts atomic.Int64
	m := newBucket(func(r *http.Request) {
		if r.Method == http.MethodPut {
			puts.Add(1)
		}
	}, fault{})
	url := m.serve(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { _ = open(t, url).Close() })
	}
	wg.Wait()
	once := puts.Load()
	_ = open(t, url).Close()
	if once == 0 || puts.Load() != once || once > 12 {
		t.Errorf("%d PUTs for five stores, %d after a sixth", once, puts.Load())
	}
}

func TestRefusedStoreIsProbedAgain(t *testing.T) {
	t.Parallel()
	m := newBucket(nil, fault{ignoreNoneMatch: true})
	url := m.serve(t)
	refused(t, url)
	m.upgrade()
	_ = open(t, url).Close()
}

func TestStoreIsRefusedForWhatItDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault fault
		want  string
	}{
		"ignores If-None-Match":                {fault{ignoreNoneMatch: true}, "ignores If-None-Match: *"},
		"ignores If-Match":                     {fault{ignoreMatch: true}, "ignores If-Match"},
		"ignores If-Match only over an object": {fault{staleMatch: true}, "ignores If-Match"},
		"races creation":                       {fault{raceNoneMatch: true}, "races If-None-Match"},
		"races swaps":                          {fault{raceMatch: true}, "races If-Match"},
		"answers 412 and writes all the same":  {fault{revert: true}, "reverts objects"},
		"does not know the header":             {fault{unknown: true}, "does not know If-"},
		"has no ETags":                         {fault{noETag: true}, "no ETag"},
		"no condition ever holds":              {fault{never: true}, "refuses every PUT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if did := refused(t, newBucket(nil, c.fault).serve(t)); !strings.Contains(did, c.want) {
				t.Errorf("it is said that it %s, want %q", did, c.want)
			}
		})
	}
}

func TestProbeThatCannotReachTheStoreIsNoVerdict(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"forbidden": http.StatusForbidden, "broken": http.StatusInternalServerError, "no bucket": http.StatusNotFound} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				answer(w, status, "NoSuchBucket")
			}))
			t.Cleanup(srv.Close)
			s, err := s3.Open(t.Context(), harness.S3URL(srv.URL, "bucket"))
			var unsafe *s3.UnsafeError
			if err == nil || errors.As(err, &unsafe) {
				t.Fatalf("%v, %v", s, err)
			}
		})
	}
}

// bucket is a store in memory with faults that no real server at hand has.
type bucket struct {
	seen func(*http.Request)

	mu      sync.Mutex
	fault   fault
	objects map[string][]byte
}

// fault is what a bucket does wrong; the zero value is a good store.
type fault struct {
	ignoreNoneMatch, ignoreMatch bool
	// staleMatch takes any ETag for an object that is there.
	staleMatch bool
	// raceNoneMatch and raceMatch compare when the request begins.
	raceNoneMatch, raceMatch bool
	revert                   bool // compares after it wrote
	unknown, noETag, never   bool
}

func newBucket(seen func(*http.Request), f fault) *bucket {
	return &bucket{seen: seen, fault: f, objects: map[string][]byte{}}
}

func (b *bucket) serve(t *testing.T) string {
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	return harness.S3URL(srv.URL, "bucket")
}

func (b *bucket) upgrade() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault{}
}

func etag(body []byte) string {
	sum := md5.Sum(body)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

func answer(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code></Error>")
}

// allowed compares a PUT's condition with what is stored.
func (b *bucket) allowed(r *http.Request) int {
	none, match := r.Header.Get("If-None-Match"), r.Header.Get("If-Match")
	old, exists := b.objects[r.URL.Path]
	switch {
	case none == "" && match == "":
	case b.fault.never:
		return http.StatusPreconditionFailed
	case none != "" && exists && !b.fault.ignoreNoneMatch:
		return http.StatusPreconditionFailed
	case match != "" && !exists && !b.fault.ignoreMatch:
		return http.StatusNotFound
	case match != "" && exists && match != etag(old) && !b.fault.ignoreMatch && !b.fault.staleMatch:
		return http.StatusPreconditionFailed
	}
	return http.StatusOK
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.seen != nil {
		b.seen(r)
	}
	b.mu.Lock()
	before, f := b.allowed(r), b.fault
	b.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if object, ok := b.objects[r.URL.Path]; ok {
			w.Header().Set("ETag", etag(object))
			_, _ = io.Copy(w, bytes.NewReader(object))
			return
		}
		answer(w, http.StatusNotFound, "NoSuchKey")
	case http.MethodDelete:
		delete(b.objects, r.URL.Path)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodPut:
		if f.unknown {
			answer(w, http.StatusNotImplemented, "NotImplemented")
			return
		}
		status := b.allowed(r)
		_, exists := b.objects[r.URL.Path]
		if f.raceNoneMatch && r.Header.Get("If-None-Match") != "" || f.raceMatch && r.Header.Get("If-Match") != "" {
			status = before
		}
		if status == http.StatusOK || f.revert && exists {
			b.objects[r.URL.Path] = body
		}
		switch {
		case status == http.StatusNotFound:
			answer(w, status, "NoSuchKey")
		case status != http.StatusOK:
			answer(w, status, "PreconditionFailed")
		case !f.noETag:
			w.Header().Set("ETag", etag(body))
		}
	}
}
