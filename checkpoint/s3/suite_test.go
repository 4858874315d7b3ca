package s3_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/checkpoint/s3"
	"github.com/mqbridge/mqb/checkpoint/storetest"
	dial "github.com/mqbridge/mqb/dial/s3"
	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Steps: 6, Workers: 8, Timeout: time.Minute,
		New: func(t *testing.T) *storetest.Subject {
			server := harness.S3(t)
			bucket := server.NewBucket(t)
			client := server.Client(t, bucket)
			url := server.URL(bucket + "/some/prefix")
			return &storetest.Subject{
				Open: func(t *testing.T) checkpoint.Store { return open(t, url) },
				Tamper: func(t *testing.T, key string, change func([]byte) []byte) {
					tamper(t, client, "some/prefix/"+key+".json", change)
				},
			}
		},
	})
}

func open(t *testing.T, url string) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tamper(t *testing.T, c *dial.Client, object string, change func([]byte) []byte) {
	t.Helper()
	ctx := context.Background()
	var old []byte
	out, err := c.API.GetObject(ctx, &api.GetObjectInput{Bucket: &c.Bucket, Key: &object})
	var absent *types.NoSuchKey
	switch {
	case err == nil:
		if old, err = io.ReadAll(out.Body); err != nil {
			t.Fatal(err)
		}
		_ = out.Body.Close()
	case !errors.As(err, &absent):
		t.Fatal(err)
	}
	before := bytes.Clone(old)
	body := change(old)
	switch {
	case body == nil:
		_, err = c.API.DeleteObject(ctx, &api.DeleteObjectInput{Bucket: &c.Bucket, Key: &object})
	case bytes.Equal(body, before):
		return
	default:
		_, err = c.API.PutObject(ctx, &api.PutObjectInput{Bucket: &c.Bucket, Key: aws.String(object), Body: bytes.NewReader(body)})
	}
	if err != nil {
		t.Fatal(err)
	}
}
