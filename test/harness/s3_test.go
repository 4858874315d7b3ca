package harness

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func TestS3KeepsItsObjectsOverAKill(t *testing.T) {
	s := StartS3(t, S3Version)
	bucket := s.NewBucket(t)
	c := s.Client(t, bucket)
	if _, err := c.API.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("a/b"), Body: strings.NewReader("x")}); err != nil {
		t.Fatal(err)
	}
	s.Process().Kill()
	s.Restart(t)
	out, err := c.API.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: aws.String("a/b")})
	if err != nil || aws.ToInt64(out.ContentLength) != 1 {
		t.Fatalf("%v, %v", out, err)
	}
}
