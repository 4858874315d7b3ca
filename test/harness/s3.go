package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	dial "github.com/mqbridge/mqb/dial/s3"
)

// The versions of versitygw that tests use. The older one compares the condition
// of a PUT when it begins and writes when it ends.
const (
	S3Version      = "1.8.0"
	RacyS3Version  = "1.7.0"
	s3AccessKey    = "mqb-test"
	s3SecretKey    = "secret/of+the-tests"
	versitygwBuild = "github.com/versity/versitygw/cmd/versitygw"
)

// S3Server is a versitygw, an S3 server over a directory of its own. It keeps its
// port and its data when it is stopped or killed and started again. Safe for
// concurrent use.
type S3Server struct {
	// Endpoint is http://host:port.
	Endpoint string
	// DataDir holds a directory for each bucket.
	DataDir string

	spec    Spec
	buckets atomic.Int64
	mu      sync.Mutex
	proc    *Process
}

var sharedS3 struct {
	once   sync.Once
	server *S3Server
	err    error
}

// S3 returns the S3 server that the tests of this binary share; use NewBucket for
// a place of one's own, and StartS3 to harm a server. Main ends the shared one.
func S3(t testing.TB) *S3Server {
	t.Helper()
	s := &sharedS3
	s.once.Do(func() {
		dir, err := os.MkdirTemp("", "mqb-s3-")
		if err != nil {
			s.err = err
			return
		}
		s.server, s.err = newS3(dir, S3Version)
		atEnd(func() {
			if s.err == nil {
				s.server.Process().Kill()
			}
			_ = os.RemoveAll(dir)
		})
	})
	if s.err != nil {
		t.Fatalf("harness: s3: %v", s.err)
	}
	return s.server
}

// StartS3 starts an S3 server of a version that ends with the test.
func StartS3(t testing.TB, version string) *S3Server {
	t.Helper()
	s, err := newS3(t.TempDir(), version)
	if err != nil {
		t.Fatalf("harness: s3: %v", err)
	}
	t.Cleanup(func() {
		s.Process().Kill()
		if t.Failed() {
			t.Logf("last output of versitygw:\n%s", s.Process().Log())
		}
	})
	return s
}

func newS3(dir, version string) (*S3Server, error) {
	bin, err := cached("versitygw-"+version, func(dir string) error { return buildVersitygw(dir, version) })
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	s := &S3Server{Endpoint: "http://" + addr, DataDir: data}
	s.spec = Spec{
		Name: "versitygw",
		Path: filepath.Join(bin, "versitygw"),
		Args: []string{"--port", addr, "--quiet", "--health", "/health", "posix", data},
		Env:  []string{"ROOT_ACCESS_KEY=" + s3AccessKey, "ROOT_SECRET_KEY=" + s3SecretKey},
		Dir:  dir,
		Ready: func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/health", nil)
			if err != nil {
				return err
			}
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
			if err != nil {
				return err
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			return nil
		},
	}
	s.proc, err = start(context.Background(), s.spec)
	return s, err
}

// buildVersitygw builds it from the module that pins its version.
func buildVersitygw(dir, version string) error {
	module, err := serverModule("versitygw")
	if err != nil {
		return err
	}
	args := []string{"build", "-o", filepath.Join(dir, "versitygw")}
	if version != S3Version {
		args = append(args, "-modfile=v"+version+".mod")
	}
	cmd := exec.Command("go", append(args, versitygwBuild)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// serverModule is the directory test/servers/name.
func serverModule(name string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/mqbridge/mqb").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "test", "servers", name), nil
}

// Process is the server's current life: freeze, thaw, kill or stop it there.
func (s *S3Server) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// Restart ends the server, if it still runs, and starts it again on its data.
func (s *S3Server) Restart(t testing.TB) {
	t.Helper()
	s.Process().Stop()
	p, err := start(t.Context(), s.spec)
	if err != nil {
		t.Fatalf("harness: restart: %v", err)
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
}

// NewBucket creates an empty bucket and returns its name.
func (s *S3Server) NewBucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("bucket-%d", s.buckets.Add(1))
	if _, err := s.Client(t, name).API.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatalf("harness: create bucket: %v", err)
	}
	return name
}

// URL is the s3:// URL, credentials included, of a bucket or of bucket/prefix.
func (s *S3Server) URL(path string) string { return S3URL(s.Endpoint, path) }

// S3URL is URL for another endpoint of the same server, a proxy.
func S3URL(endpoint, path string) string {
	return "s3://" + s3AccessKey + ":" + url.QueryEscape(s3SecretKey) + "@" + path + "?region=us-east-1&endpoint=" + url.QueryEscape(endpoint)
}

// Client returns a client that is closed with the test.
func (s *S3Server) Client(t testing.TB, path string) *dial.Client {
	t.Helper()
	cfg, err := dial.Parse(s.URL(path))
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	c, err := cfg.Open(t.Context())
	if err != nil {
		t.Fatalf("harness: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}
