package deploy

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/harness"
)

// engine is a Docker engine of the test's own. It lives in namespaces of its own
// for networks, mounts and processes, so that the machine's addresses, forwarding
// and firewall stay as they are, and everything in it ends with its first process,
// however the test ends.
type engine struct {
	dir string
	env []string // how clients find it
}

// Debian's own: there may be others of the name in $PATH.
const docker, dockerCompose = "/usr/bin/docker", "/usr/bin/docker-compose"

func startEngine(t *testing.T) *engine {
	t.Helper()
	harness.Install(t, "docker.io", "docker-compose", "make")
	dir, err := os.MkdirTemp("", "mqb-engine-") // t.TempDir is too long for sockets
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	e := &engine{dir: dir, env: []string{
		"DOCKER_HOST=unix://" + filepath.Join(dir, "docker.sock"),
		"DOCKER_BUILDKIT=0", // Debian has no buildx
		"DOCKER_CONFIG=" + filepath.Join(dir, "client"),
	}}
	config := filepath.Join(dir, "daemon.json")
	must(t, os.WriteFile(config, []byte(`{"deprecated-key-path": "`+filepath.Join(dir, "key.json")+`"}`), 0o600))
	group := filepath.Base(dir)
	// An empty /run hides what the engine would share with another one, and systemd,
	// without which it looks after the control groups itself.
	p := harness.Start(t, harness.Spec{
		Name: "dockerd",
		Path: "unshare",
		Args: []string{"--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
			"sh", "-c", `mount -t tmpfs tmpfs /run && exec dockerd "$@"`, "dockerd",
			"--config-file", config, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
			"--pidfile", filepath.Join(dir, "pid"), "--host", "unix://" + filepath.Join(dir, "docker.sock"),
			"--bridge", "none", "--cgroup-parent", group, "--log-level", "warn"},
		Ready: func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, docker, "version")
			cmd.Env = append(os.Environ(), e.env...)
			return cmd.Run()
		},
	})
	t.Cleanup(func() {
		// unshare keeps SIGTERM from itself; with it goes every process of the engine.
		p.Kill()
		removeControlGroups(t, group)
	})
	return e
}

// removeControlGroups removes what containers leave behind that were not removed.
func removeControlGroups(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, 10*time.Second, func() error {
		var errs []error
		for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			tops, err := filepath.Glob(pattern)
			errs = append(errs, err)
			for _, top := range tops {
				inner, err := filepath.Glob(filepath.Join(top, "*", "cgroup.procs"))
				errs = append(errs, err)
				for _, f := range inner {
					errs = append(errs, os.Remove(filepath.Dir(f)))
				}
				errs = append(errs, os.Remove(top))
			}
		}
		return errors.Join(errs...)
	})
}

func (e *engine) docker(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := command(t, 30*time.Second, e.env, docker, args...)
	return strings.TrimSpace(out), err
}

// volume is the directory of a volume. Mounts of the engine are not seen from
// here, but volumes are plain directories.
func (e *engine) volume(name string) string {
	return filepath.Join(e.dir, "data", "volumes", name, "_data")
}

// image builds an image of static programs; the first one is what it starts.
func (e *engine) image(t *testing.T, name string, programs ...string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		copyFile(t, p, filepath.Join(dir, filepath.Base(p)))
	}
	text := "FROM scratch\nCOPY . /bin/\nENTRYPOINT [\"/bin/" + filepath.Base(programs[0]) + "\"]\n"
	dockerfile := filepath.Join(t.TempDir(), "Dockerfile")
	must(t, os.WriteFile(dockerfile, []byte(text), 0o600))
	_, err := command(t, time.Minute, e.env, docker, "build", "-q", "-t", name, "-f", dockerfile, dir)
	must(t, err)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, errors.Join(err, out.Close()))
}
