// Package s3 keeps checkpoint records in a bucket, one object a record. The
// comparison is the store's own, part of the PUT: If-None-Match creates,
// If-Match swaps. A store that does not compare, or compares before the body has
// arrived, is refused when it is opened (see probe.go).
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/cenkalti/backoff/v5"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"github.com/mqbridge/mqb/checkpoint"
	dial "github.com/mqbridge/mqb/dial/s3"
)

// callTimeout bounds one call, with its retries.
const callTimeout = 10 * time.Second

// suffix ends the names of records. It tells them from other objects below the
// prefix, and no record's name is then a folder of another's in a store that
// keeps objects as files.
const suffix = ".json"

// Store implements checkpoint.Store. It is no SessionEnder: a writer that froze
// in the middle of a PUT holds nothing that another one waits for.
//
// A swap is asked for by version and compared by ETag. The store remembers, of
// each record, one version and its ETag as they came in one answer; a swap of
// another version reads the record first. An ETag never stands for two versions,
// since the version is in the body.
//
// Requests that write are made once. Where something between us and the store
// repeats them, a write that succeeded is answered with 412; that is ErrConflict
// here, and checkpoint.Commit and Claim find their own record when they read.
type Store struct {
	client *dial.Client
	prefix string
	seen   *lru.Cache[string, version]
}

type version struct {
	number uint64
	etag   string
}

// remembered is the number of records whose ETags are kept; one more costs a read
// before its next swap.
const remembered = 16 << 10

var _ checkpoint.Store = (*Store)(nil)

// Open connects to the bucket and prefix of an s3:// URL (dial/s3.Config) and, the
// first time in this process, probes it: *UnsafeError if it cannot keep records.
// It needs the permissions GetObject, PutObject and ListBucket; with DeleteObject
// it removes what the probe left. The caller closes the store.
func Open(ctx context.Context, url string) (*Store, error) {
	s, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := s.probeOnce(ctx); err != nil {
		s.client.Close()
		return nil, err
	}
	return s, nil
}

func open(ctx context.Context, url string) (*Store, error) {
	cfg, err := dial.Parse(url)
	if err != nil {
		return nil, err
	}
	client, err := cfg.Open(ctx)
	if err != nil {
		return nil, err
	}
	seen, err := lru.New[string, version](remembered)
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, seen: seen}
	if client.Prefix != "" {
		s.prefix = client.Prefix + "/"
	}
	return s, nil
}

func (s *Store) object(key string) string { return s.prefix + key + suffix }

// Load implements checkpoint.Store.
func (s *Store) Load(ctx context.Context, key string) (checkpoint.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rec, _, err := s.load(ctx, key)
	return rec, err
}

// load reads a record and the ETag that stands for it.
func (s *Store) load(ctx context.Context, key string) (checkpoint.Record, string, error) {
	out, err := s.client.API.GetObject(ctx, &api.GetObjectInput{Bucket: &s.client.Bucket, Key: aws.String(s.object(key))})
	var absent *types.NoSuchKey
	switch {
	case errors.As(err, &absent):
		s.seen.Remove(key)
		return checkpoint.Record{}, "", checkpoint.ErrNotFound
	case err != nil:
		return checkpoint.Record{}, "", fmt.Errorf("load %s: %w", key, err)
	}
	defer out.Body.Close()
	body, err := io.ReadAll(io.LimitReader(out.Body, checkpoint.MaxRecordBytes+1))
	if err != nil {
		return checkpoint.Record{}, "", fmt.Errorf("load %s: %w", key, err)
	}
	rec, err := checkpoint.Decode(body)
	if err != nil {
		s.seen.Remove(key)
		return rec, "", err
	}
	etag := aws.ToString(out.ETag)
	s.remember(key, rec.Version, etag)
	return rec, etag, nil
}

func (s *Store) remember(key string, number uint64, etag string) {
	if etag == "" {
		s.seen.Remove(key)
		return
	}
	s.seen.Add(key, version{number, etag})
}

// etag returns the ETag of the expected version of a record. It says nothing of
// what is stored when the swap arrives: that is compared there (invariant 1).
func (s *Store) etag(ctx context.Context, key string, expected uint64) (string, error) {
	if v, ok := s.seen.Get(key); ok && v.number == expected {
		return v.etag, nil
	}
	rec, etag, err := s.load(ctx, key)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		return "", fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	case err != nil:
		return "", err
	case rec.Version != expected:
		return "", checkpoint.ErrConflict
	case etag == "":
		return "", fmt.Errorf("swap %s: the store gave the record no ETag", key)
	}
	return etag, nil
}

// Swap implements checkpoint.Store. After any error the store may still hold the
// request somewhere on its way; it arrives under its condition or not at all.
func (s *Store) Swap(ctx context.Context, key string, expected uint64, rec checkpoint.Record) error {
	if rec.Version != expected+1 {
		return fmt.Errorf("swap %s: version %d cannot follow version %d", key, rec.Version, expected)
	}
	body, err := checkpoint.Encode(rec)
	if err != nil {
		return fmt.Errorf("swap %s: %w", key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 5*time.Millisecond, 500*time.Millisecond
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := s.put(ctx, key, expected, rec.Version, body)
		if dial.Status(err) == http.StatusConflict {
			// Two requests met inside the store and this one was not done: it is
			// made again, from a fresh look at the record.
			return struct{}{}, err
		}
		if err != nil {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(callTimeout))
	return err
}

func (s *Store) put(ctx context.Context, key string, expected, number uint64, body []byte) error {
	in := &api.PutObjectInput{
		Bucket: &s.client.Bucket, Key: aws.String(s.object(key)),
		Body: bytes.NewReader(body), ContentType: aws.String("application/json"),
	}
	switch {
	case !checkpoint.Fenced:
	case expected == 0:
		in.IfNoneMatch = aws.String("*")
	default:
		etag, err := s.etag(ctx, key, expected)
		if err != nil {
			return err
		}
		in.IfMatch = &etag
	}
	out, err := s.client.API.PutObject(ctx, in, dial.Once)
	if err == nil {
		s.remember(key, number, aws.ToString(out.ETag))
		return nil
	}
	s.seen.Remove(key)
	switch dial.Status(err) {
	case http.StatusPreconditionFailed, http.StatusNotFound:
		return s.whyNot(ctx, key, expected, err)
	}
	return fmt.Errorf("swap %s: %w", key, err)
}

// whyNot looks at the record after a condition that did not hold. Stores answer a
// swap of nothing with 404 or with 412.
func (s *Store) whyNot(ctx context.Context, key string, expected uint64, refusal error) error {
	_, _, err := s.load(ctx, key)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound) && expected > 0:
		return fmt.Errorf("swap %s: %w: the record is gone", key, checkpoint.ErrRegressed)
	case errors.Is(err, checkpoint.ErrRegressed):
		return fmt.Errorf("swap %s: %w", key, err)
	case dial.Status(refusal) == http.StatusPreconditionFailed:
		return checkpoint.ErrConflict
	}
	return fmt.Errorf("swap %s: %w", key, refusal)
}

// listWorkers is how many records of a List are read at a time.
const listWorkers = 8

// List implements checkpoint.Store. It reads each record by itself, so that a
// record may be newer than another that is listed with it.
func (s *Store) List(ctx context.Context, prefix string) ([]checkpoint.Entry, error) {
	keys, err := s.keys(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	entries := make([]checkpoint.Entry, len(keys))
	gone := make([]bool, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(listWorkers)
	for i, key := range keys {
		g.Go(func() error {
			entries[i].Key = key
			entries[i].Record, entries[i].Err = s.Load(ctx, key)
			switch err := entries[i].Err; {
			case errors.Is(err, checkpoint.ErrNotFound):
				gone[i] = true
			case err != nil && !errors.Is(err, checkpoint.ErrRegressed) && !errors.Is(err, checkpoint.ErrForeign):
				return err
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	kept := entries[:0]
	for i, e := range entries {
		if !gone[i] {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

func (s *Store) keys(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	pages := api.NewListObjectsV2Paginator(s.client.API, &api.ListObjectsV2Input{
		Bucket: &s.client.Bucket, Prefix: aws.String(s.prefix + prefix),
	})
	for pages.HasMorePages() {
		page, err := s.page(ctx, pages)
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			key, ok := strings.CutSuffix(strings.TrimPrefix(aws.ToString(o.Key), s.prefix), suffix)
			// The prefix may have matched a part of the suffix.
			if ok && strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
	}
	// The order of the objects is that of their names, suffix included.
	slices.Sort(keys)
	return keys, nil
}

func (s *Store) page(ctx context.Context, pages *api.ListObjectsV2Paginator) (*api.ListObjectsV2Output, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return pages.NextPage(ctx)
}

// Identity implements checkpoint.Store: bucket, prefix and endpoint.
func (s *Store) Identity() string { return s.client.Address() }

// Close ends idle connections.
func (s *Store) Close() error {
	s.client.Close()
	return nil
}
