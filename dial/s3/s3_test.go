package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	api "github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/mqbridge/mqb/dial/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, url string) (*s3.Client, error) {
	t.Helper()
	cfg, err := s3.Parse(url)
	if err != nil {
		return nil, err
	}
	c, err := cfg.Open(t.Context())
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

func TestURLs(t *testing.T) {
	t.Setenv("AWS_REGION", "eu-central-1")
	for url, want := range map[string]string{
		"s3://bucket":                    "s3://bucket",
		"s3://bucket/":                   "s3://bucket",
		"s3://my.bucket_1/a/b/?region=x": "s3://my.bucket_1/a/b",
		"s3://b/a%20b":                   "s3://b/a b",
		"s3://k:s%2Fx@b/p?endpoint=HTTP://Host:9000/":        "s3://b/p?endpoint=http://host:9000",
		"s3://b?endpoint=https%3A%2F%2Fh%2Fpath":             "s3://b?endpoint=https://h/path",
		"s3://b/p?endpoint=http%3A%2F%2Fh%3A9000&region=a-1": "s3://b/p?endpoint=http://h:9000",
	} {
		c, err := open(t, url)
		if err != nil || c.Address() != want {
			t.Errorf("%s: %v, %v, want %s", url, c, err, want)
		}
	}
}

func TestURLErrorsShowNoSecret(t *testing.T) {
	for _, url := range []string{
		"https://k:hunter2@b", "s3:///p", "s3://k:hunter2@b:80/p", "s3://k:hunter/2@b/p", "s3://k:hunter2@b/%zz", "s3://hunter2@b/p",
		"s3://k:hunter2@b?endpoint=h:9000", "s3://b?endpoint=http://k:hunter2@h", "s3://k:hunter2@b?endpoint=", "s3://k:hunter2@b?regoin=x",
		"s3://k:hunter2@b?endpoint=http://h?token=hunter2", "s3://b?region=a&region=b", "s3://k:hunter2@b?%zz", "s3://k:hunter2@b#x",
	} {
		_, err := s3.Parse(url)
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestRegionIsAskedForOnlyWhereItMatters(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	if _, err := open(t, "s3://b"); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("no region: %v", err)
	}
	if c, err := open(t, "s3://b?endpoint=http://h"); err != nil || c.API.Options().Region == "" {
		t.Errorf("no region at an endpoint: %v", err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://user:hunter2@h:1")
	if c, err := open(t, "s3://b"); err != nil || c.Address() != "s3://b?endpoint=http://h:1" {
		t.Errorf("endpoint of the environment: %v, %v", c, err)
	}
}

func TestStatusAndCode(t *testing.T) {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprint(w, "<Error><Code>SlowDown</Code></Error>")
	}))
	c, err := open(t, "s3://k:s@b?endpoint="+srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		_, err := c.API.GetObject(t.Context(), &api.GetObjectInput{Bucket: &c.Bucket, Key: aws.String("k")}, s3.Once)
		return err
	}
	if err := get(); s3.Status(err) != http.StatusServiceUnavailable || s3.Code(err) != "SlowDown" || requests != 1 {
		t.Errorf("%d, %q after %d requests: %v", s3.Status(err), s3.Code(err), requests, err)
	}
	srv.Close()
	for _, err := range []error{get(), nil, errors.New("x"), context.Canceled} {
		if s3.Status(err) != 0 || s3.Code(err) != "" {
			t.Errorf("%v: %d, %q", err, s3.Status(err), s3.Code(err))
		}
	}
}

func TestRedirectIsAnAnswer(t *testing.T) {
	srv := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", http.StatusTemporaryRedirect))
	defer srv.Close()
	c, err := open(t, "s3://k:s@b?endpoint="+srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.API.PutObject(t.Context(), &api.PutObjectInput{Bucket: &c.Bucket, Key: aws.String("k"), Body: strings.NewReader("x")}, s3.Once)
	if s3.Status(err) != http.StatusTemporaryRedirect {
		t.Fatalf("%v", err)
	}
}
