package deploy

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/harness"
)

// stack is deploy/compose.yml with the test's file over it.
type stack struct {
	*engine
	next int64 // the id of the next row
}

const (
	project = "mqbtest"
	inputs  = 20
)

func (s *stack) compose(t *testing.T, args ...string) (string, error) {
	t.Helper()
	env := append([]string{
		"MQB_IMAGE=mqb-test",
		"MQB_TEST_ROUTES=" + filepath.Join(root(t), "test/deploy/testdata/routes.yaml"),
	}, s.env...)
	files := []string{"-p", project, "-f", "deploy/compose.yml", "-f", "test/deploy/testdata/override.yml"}
	return command(t, 90*time.Second, env, dockerCompose, append(files, args...)...)
}

// scale brings the service mqbd to n containers and returns their names, which
// are the nodes'.
func (s *stack) scale(t *testing.T, n int) []string {
	t.Helper()
	_, err := s.compose(t, "up", "-d", "--no-build", "--scale", "mqbd="+strconv.Itoa(n))
	must(t, err)
	nodes := s.nodes(t)
	if len(nodes) != n {
		t.Fatalf("%d containers instead of %d", len(nodes), n)
	}
	return nodes
}

func (s *stack) nodes(t *testing.T, filters ...string) []string {
	t.Helper()
	args := []string{"ps", "-q", "--filter", "label=com.docker.compose.service=mqbd"}
	for _, f := range filters {
		args = append(args, "--filter", f)
	}
	out, err := s.docker(t, args...)
	must(t, err)
	return strings.Fields(out)
}

// write appends rows to each of the inputs.
func (s *stack) write(t *testing.T, rows int64) {
	t.Helper()
	for i := range inputs {
		path := filepath.Join(s.volume(project+"_files"), "in", fmt.Sprintf("orders-%02d.csv", i))
		var b strings.Builder
		if _, err := os.Stat(path); err != nil {
			b.WriteString("id,customer\n")
		}
		for range rows {
			fmt.Fprintf(&b, "%d,somebody\n", s.next)
			s.next++
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must(t, err)
		_, err = f.WriteString(b.String())
		must(t, err)
		must(t, f.Close())
	}
}

// leases asks in a container, as there is no other way in.
func (s *stack) leases(t *testing.T, in string) (fleet.Leases, error) {
	t.Helper()
	out, err := s.docker(t, "exec", in, "mqbctl", "leases", "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct{ Leases fleet.Leases }
	return v.Leases, json.Unmarshal([]byte(out), &v)
}

// spread waits until the nodes hold all partitions, one more or less each.
func (s *stack) spread(t *testing.T, nodes []string) fleet.Leases {
	t.Helper()
	var l fleet.Leases
	must(t, fleet.Eventually(t.Context(), time.Minute, func() (err error) {
		if l, err = s.leases(t, nodes[0]); err != nil {
			return err
		}
		var each []int
		held := 0
		for _, n := range nodes {
			k := l.Count("running", n) + l.Count("done", n)
			each = append(each, k)
			held += k
		}
		if held != inputs || len(l) != inputs || slices.Max(each)-slices.Min(each) > 1 {
			return fmt.Errorf("%v of %d partitions on %v: %v", each, len(l), nodes, l)
		}
		return nil
	}))
	return l
}

// healthy waits until the health check of every container is content.
func (s *stack) healthy(t *testing.T) {
	t.Helper()
	harness.Eventually(t, time.Minute, func() error {
		out, err := s.docker(t, "ps", "-a", "--format", "{{.Names}} {{.Status}}")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "(healthy)") {
				return fmt.Errorf("not healthy: %s", line)
			}
		}
		return nil
	})
}

// Images are built here from static programs; the networks reach nothing outside.
func TestComposeFiles(t *testing.T) {
	e := startEngine(t)
	_, err := command(t, 4*time.Minute, e.env, "make", "image", "DOCKER="+docker, "IMAGE=mqb-test")
	must(t, err)
	t.Run("the routes of compose.yml are exactly-once", func(t *testing.T) {
		out, err := command(t, time.Minute, []string{"DB_PASSWORD=x", "S3_SECRET=x"}, "bin/image/mqbctl", "explain", "deploy/routes.yaml")
		must(t, err)
		for _, line := range []string{"payments: exactly-once\n", "orders: exactly-once\n"} {
			if !strings.Contains(out, line) {
				t.Errorf("no %q in\n%s", line, out)
			}
		}
	})
	t.Run("one node comes back on its volume", func(t *testing.T) { oneNode(t, e) })
	t.Run("scaled cluster survives a killed container", func(t *testing.T) { scaledCluster(t, e) })
}

// oneNode is compose.dev.yml: its state is in a volume, so a new container finds
// the routes and positions of the one before.
func oneNode(t *testing.T, e *engine) {
	compose := func(args ...string) (string, error) {
		files := []string{"-p", "mqbdev", "-f", "deploy/compose.dev.yml", "-f", "test/deploy/testdata/internal.yml"}
		return command(t, time.Minute, append([]string{"MQB_IMAGE=mqb-test"}, e.env...), dockerCompose, append(files, args...)...)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := compose("logs", "--no-color", "--tail=60")
			t.Log(out)
		}
		if _, err := compose("down", "-v", "-t", "2"); err != nil {
			t.Error(err)
		}
	})
	done := func() {
		t.Helper()
		must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
			out, err := compose("exec", "-T", "mqbd", "mqbctl", "leases")
			if err == nil && !(strings.Contains(out, "done") && strings.Contains(out, "orders.csv")) {
				err = fmt.Errorf("not done:\n%s", out)
			}
			return err
		}))
	}
	_, err := compose("up", "-d", "--no-build")
	must(t, err)
	files := e.volume("mqbdev_files")
	must(t, os.WriteFile(filepath.Join(files, "in", "orders.csv"), []byte("id\n1\n2\n"), 0o644))
	const routes = `{routes: {orders: {input: {file: {path: "/files/in/*.csv", format: csv}}, output: {file: {path: /files/out, format: raw, name_by: source_position}}, roll: {age: 1s}}}}`
	must(t, os.WriteFile(filepath.Join(files, "routes.yaml"), []byte(routes), 0o644))
	must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		_, err := compose("exec", "-T", "mqbd", "mqbctl", "apply", "-f", "/files/routes.yaml")
		return err
	}))
	done()
	_, err = compose("up", "-d", "--no-build", "--force-recreate")
	must(t, err)
	done()
	report, err := checker.Parts(filepath.Join(files, "out"), 2)
	must(t, err)
	if !report.OK() {
		t.Error(report)
	}
}

// scaledCluster is compose.yml: scaled from three nodes to five while routes run,
// then a container is killed.
func scaledCluster(t *testing.T, e *engine) {
	s := &stack{engine: e, next: 1}
	mqbd := filepath.Join(root(t), "bin", "image", "mqbd")
	s.image(t, "mqb-test-etcd", harness.EtcdBinary(t), mqbd)
	s.image(t, "mqb-test-versitygw", harness.S3Binary(t), mqbd)

	t.Cleanup(func() {
		if t.Failed() {
			out, _ := s.compose(t, "logs", "--no-color", "--tail=60")
			t.Log(out)
		}
		if _, err := s.compose(t, "down", "-v", "-t", "2"); err != nil {
			t.Error(err)
		}
	})
	three := s.scale(t, 3)
	s.write(t, 1500)
	s.spread(t, three)
	s.healthy(t)
	out, err := s.docker(t, "inspect", "-f", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}", three[0])
	must(t, err)
	if out != "65532:65532 true" {
		t.Errorf("user and read-only root: %s", out)
	}

	five := s.scale(t, 5)
	s.write(t, 500)
	s.spread(t, five)

	// compose exec goes to the first container, so another one is killed.
	first := s.nodes(t, "label=com.docker.compose.container-number=1")[0]
	victim := five[slices.IndexFunc(five, func(n string) bool { return n != first })]
	rest := slices.DeleteFunc(slices.Clone(five), func(n string) bool { return n == victim })
	s.write(t, 1500)
	var before fleet.Leases
	must(t, fleet.Eventually(t.Context(), time.Minute, func() (err error) {
		before, err = s.leases(t, first)
		if err == nil && before.Count("running", victim) == 0 {
			err = fmt.Errorf("%s is not at work: %v", victim, before)
		}
		return err
	}))
	_, err = s.docker(t, "kill", victim)
	must(t, err)
	after := s.spread(t, rest)
	for _, was := range before {
		for _, is := range after {
			if was.Owner == victim && is.Partition == was.Partition && is.Epoch <= was.Epoch {
				t.Errorf("%s moved without a new epoch: %d, then %d", is.Partition, was.Epoch, is.Epoch)
			}
		}
	}
	table, err := s.compose(t, "exec", "-T", "mqbd", "mqbctl", "leases")
	must(t, err)
	for _, n := range rest {
		if !strings.Contains(table, n) {
			t.Errorf("%s is not in the table:\n%s", n, table)
		}
	}
	if strings.Contains(table, victim) {
		t.Errorf("the killed %s is in the table:\n%s", victim, table)
	}
	t.Log("after the kill of " + victim + ":\n" + table)

	s.write(t, 500)
	parts := filepath.Join(s.volume(project+"_files"), "out")
	var report checker.Report
	must(t, fleet.Eventually(t.Context(), 90*time.Second, func() (err error) {
		report, err = checker.Parts(parts, s.next-1)
		if err == nil && report.Missing > 0 {
			err = fmt.Errorf("%s", report)
		}
		return err
	}))
	if !report.OK() {
		t.Error(report)
	}
	t.Log(report)
	records := 0
	must(t, filepath.WalkDir(s.volume(project+"_s3"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "/checkpoints/") {
			records++
		}
		return err
	}))
	if records != inputs {
		t.Errorf("%d records in S3 for %d partitions", records, inputs)
	}

	// What a preStop hook does, in an image without a shell.
	_, err = s.docker(t, "exec", rest[1], "mqbd", "drain")
	must(t, err)
	l, err := s.leases(t, rest[0])
	must(t, err)
	if l.Count("", rest[1]) != 0 {
		t.Errorf("%s is not empty: %v", rest[1], l)
	}
	// SIGTERM hands over within the time that compose gives.
	_, err = s.compose(t, "stop", "mqbd")
	must(t, err)
	for _, n := range rest {
		code, err := s.docker(t, "inspect", "-f", "{{.State.ExitCode}}", n)
		must(t, err)
		if code != "0" {
			t.Errorf("%s ended with %s", n, code)
		}
	}
}
