package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/checker"
	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// ctl runs mqbctl without a cluster and returns its exit code and all it said.
func ctl(t *testing.T, args ...string) (int, string) {
	t.Helper()
	out, err := fleet.Run(t.Context(), filepath.Join(fleettest.Build(t, fleettest.Hooks), "mqbctl"), args...)
	var exit *fleet.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.Code, string(out) + exit.Stderr
	case err != nil:
		t.Fatal(err)
	}
	return 0, string(out)
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("it does not say %q:\n%s", w, text)
		}
	}
}

// A configuration error stops at validate, with its place, all of them at once.
func TestInvalidSpecsNameFileLineColumnAndTheNearestKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := fleettest.Write(t, dir, "bad.yaml", `routes:
  r:
    input:
      file: {path: "in.csv", fromat: csv}
    output:
      file: {path: out, format: raw, name_by: source_position}
    batch_size: many
    shared_storage: true
`)
	code, text := ctl(t, "validate", spec)
	if code != 3 {
		t.Errorf("exit %d, want 3", code)
	}
	says(t, text, "bad.yaml:4:", "fromat", "format", "bad.yaml:7:", "batch_size")
}

// A dlq is opened at the first dead letter, at night: validate --connect finds what
// is wrong with it before.
func TestADLQThatCannotBeReachedIsFoundByValidateConnect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := fleettest.Write(t, dir, "spec.yaml", fmt.Sprintf(`input: {static: x}
output:
  middlewares: [{dlq: {endpoint: {kafka: {url: "127.0.0.1:1", topic: dead}}}}]
  file: {path: %q, format: raw}
`, filepath.Join(dir, "out.jsonl")))
	code, text := ctl(t, "validate", spec, "--connect")
	if code != 4 {
		t.Errorf("exit %d, want 4", code)
	}
	says(t, text, "dlq", "127.0.0.1:1")
}

func TestMissingFileIsFoundByValidateConnectAndByRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := fleettest.Write(t, dir, "spec.yaml", fleettest.Parts("r", filepath.Join(dir, "absent.csv"), filepath.Join(dir, "out")))
	if code, text := ctl(t, "validate", spec); code != 0 {
		t.Errorf("validate alone looked at the file: exit %d: %s", code, text)
	}
	code, text := ctl(t, "validate", spec, "--connect")
	if code == 0 {
		t.Error("validate --connect found nothing")
	}
	says(t, text, "absent.csv")
}

func TestUnreachableSystemsAreNamedByValidateConnect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr := closedPort(t)
	spec := fleettest.Write(t, dir, "spec.yaml", fmt.Sprintf(`routes:
  r:
    input:
      kafka: {url: "%s", topic: orders}
    output:
      sqlx: {url: "postgres://mqb:secret@%s/db", table: orders}
`, addr, addr))
	code, text := ctl(t, "validate", spec, "--connect")
	if code == 0 {
		t.Error("validate --connect found nothing")
	}
	says(t, text, addr)
	if strings.Contains(text, "secret") {
		t.Errorf("the password is printed:\n%s", text)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A broker that is away when a route starts is waited for, with back-off and a
// visible reason; when it comes, the route goes on by itself.
func TestUnreachableBrokerAtStartIsRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	pg := harness.Postgres(t)
	db := pg.NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE orders (id bigint)`)
	kafka := harness.StartKafka(t, harness.KafkaOptions{})
	topic := kafka.Topic(t, 1)
	kafka.ProduceN(t, topic, 0, 0, 10)
	harness.PostgresExec(t, db, `CREATE TABLE payloads (payload text)`)
	kafka.Process().Kill()
	fleettest.Apply(t, f, fmt.Sprintf(`routes:
  r:
    input:
      kafka: {url: "%s", topic: "%s", group_id: g}
    output:
      sqlx: {url: "%s", table: payloads}
`, kafka.Addr, topic, db))
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		out, err := f.Ctl(t.Context(), "routes", "-o", "json")
		if err == nil && !strings.Contains(string(out), kafka.Addr) {
			err = fmt.Errorf("the reason is not shown: %s", out)
		}
		return err
	}))
	kafka.Restart(t)
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		if n := harness.PostgresValue[int](t, db, `SELECT count(*) FROM payloads`); n != 10 {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	}))
}

// A malformed row stops the route before it, with file, line and byte; with
// on_error: drop it costs that row alone (invariant 12).
func TestMalformedRowCostsThatRowAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := fleettest.Write(t, dir, "in.csv", "id,note\n1,a\n2,b\n3,c,too,many\n4,d\n")
	csv := func(extra ...string) string {
		return strings.Replace(fleettest.Parts("r", in, filepath.Join(dir, "out"), extra...), "format: csv", "format: csv, csv: {on_mismatch: fail}", 1)
	}
	spec := fleettest.Write(t, dir, "stop.yaml", csv())
	code, text := ctl(t, "run", spec, "--data-dir", filepath.Join(dir, "state"))
	if code != 1 {
		t.Errorf("exit %d, want 1: %s", code, text)
	}
	says(t, text, "in.csv:4", "byte 16", "on_error")
	r, err := checker.Parts(filepath.Join(dir, "out"), 2)
	fleettest.Must(t, err)
	if !r.OK() {
		t.Errorf("the good rows before it: %s", r)
	}
	spec = fleettest.Write(t, dir, "drop.yaml", csv("on_error: drop"))
	if code, text := ctl(t, "run", spec, "--data-dir", filepath.Join(dir, "state")); code != 0 {
		t.Errorf("exit %d: %s", code, text)
	}
	r, err = checker.Parts(filepath.Join(dir, "out"), 4)
	fleettest.Must(t, err)
	if r.Records != 3 || r.Missing != 1 || r.Doubled != 0 {
		t.Errorf("with on_error: drop: %s", r)
	}
}

func TestRecordOverMaxRecordBytesCostsThatRecordAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := fleettest.Write(t, dir, "in.jsonl", `{"id":1}`+"\n"+`{"id":2,"pad":"`+strings.Repeat("x", 5000)+`"}`+"\n"+`{"id":3}`+"\n")
	spec := func(extra ...string) string {
		return strings.Replace(fleettest.Parts("r", in, filepath.Join(dir, "out"), append(extra, "max_record_bytes: 4096")...), "format: csv", "format: json", 1)
	}
	code, text := ctl(t, "run", fleettest.Write(t, dir, "stop.yaml", spec()), "--data-dir", filepath.Join(dir, "state"))
	if code != 1 {
		t.Errorf("exit %d, want 1: %s", code, text)
	}
	says(t, text, "in.jsonl:2", "max_record_bytes")
	if code, text := ctl(t, "run", fleettest.Write(t, dir, "drop.yaml", spec("on_error: drop")), "--data-dir", filepath.Join(dir, "state")); code != 0 {
		t.Errorf("exit %d: %s", code, text)
	}
	r, err := checker.Parts(filepath.Join(dir, "out"), 3)
	fleettest.Must(t, err)
	if r.Records != 2 || r.Doubled != 0 {
		t.Errorf("with on_error: drop: %s", r)
	}
}

// A full disk is waited for; when there is room again, the route goes on by
// itself and nothing is lost or doubled.
func TestDiskFullWhileWritingAPartLosesNothing(t *testing.T) {
	t.Parallel()
	f := fleettest.New(t, fleettest.Hooks)
	fleettest.Start(t, f, "n1")
	disk := filepath.Join(f.Dir, "disk")
	fleettest.Must(t, os.MkdirAll(disk, 0o755))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { f.StopAll(); _ = exec.Command("umount", disk).Run() })
	in := fleettest.CSV(t, f.Dir, "in.csv", 1, 60_000) // ~2.5 MB as JSON
	filler := fleettest.Write(t, disk, "filler", strings.Repeat("x", 1<<20))
	out := filepath.Join(disk, "out")
	fleettest.Apply(t, f, fleettest.Parts("r", in, out, "roll: {bytes: 256KiB}"))
	fleettest.Must(t, fleet.Eventually(t.Context(), time.Minute, func() error {
		s, err := f.Ctl(t.Context(), "leases", "-o", "json")
		if err == nil && !strings.Contains(string(s), "disk full") {
			err = fmt.Errorf("the full disk is not shown: %s", s)
		}
		return err
	}))
	fleettest.Must(t, os.Remove(filler))
	if o, err := exec.Command("mount", "-o", "remount,size=16m", disk).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, o)
	}
	fleettest.Must(t, f.Until(t.Context(), 2*time.Minute, "r is done", func(l fleet.Leases) bool { return l.Count("done", "") == 1 }))
	fleettest.CheckParts(t, out, 60_000)
	fleettest.NoSpools(t, out)
}
