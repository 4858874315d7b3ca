package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// copies runs mqbctl copy with its state in dir.
func copies(t *testing.T, dir string, args ...string) string {
	t.Helper()
	args = append([]string{"copy", "--data-dir", filepath.Join(dir, "state")}, args...)
	out, err := fleet.Run(t.Context(), filepath.Join(fleettest.Build(t, ""), "mqbctl"), args...)
	if err != nil {
		var exit *fleet.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", args, exit.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}

// A drain is over when each partition is at the end that it had, not when nothing
// comes for a moment; a limit and a resume take neither more nor less.
func TestCopyThroughKafkaIntoPostgresDrainsAllOfIt(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	dir := t.TempDir()
	kafka, pg := harness.Kafka(t), harness.Postgres(t)
	topic := kafka.Topic(t, 4)
	db := pg.NewDatabase(t)
	harness.PostgresExec(t, db, `CREATE TABLE orders (id bigint, name text)`)
	var text strings.Builder
	text.WriteString("id,name\n")
	for i := range rows {
		fmt.Fprintf(&text, "%d,x%d\n", i, i)
	}
	in, uri := fleettest.Write(t, dir, "in.csv", text.String()), fmt.Sprintf("kafka://%s/%s", kafka.Addr, topic)

	copies(t, dir, in, uri)
	out := filepath.Join(dir, "out-${partition}.jsonl")
	written := func() (all []byte) {
		files, err := filepath.Glob(filepath.Join(dir, "out-*.jsonl"))
		fleettest.Must(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			fleettest.Must(t, err)
			all = append(all, b...)
		}
		return all
	}
	for _, args := range [][]string{{"--limit", "1"}, {"--limit", "7777"}, {"--drain"}, {"--drain"}} {
		copies(t, dir, append([]string{uri, out, "--resume"}, args...)...)
		want := map[string]int{"1": 1, "7777": 7778}[args[len(args)-1]]
		if n := bytes.Count(written(), []byte("\n")); want > 0 && n != want {
			t.Fatalf("%v: %d lines", args, n)
		}
	}
	var ids []int64
	for line := range bytes.Lines(written()) {
		ids = append(ids, gjson.GetBytes(line, "id").Int())
	}
	slices.Sort(ids)
	if len(ids) != rows || ids[0] != 0 || ids[rows-1] != rows-1 || len(slices.Compact(ids)) != rows {
		t.Errorf("%d lines", len(ids))
	}

	copies(t, dir, uri, db+"?table=orders&columns=auto", "--drain")
	if n := harness.PostgresValue[int](t, db, `SELECT count(DISTINCT id) FROM orders WHERE name = 'x' || id`); n != rows {
		t.Errorf("%d rows", n)
	}
	if n := harness.PostgresValue[int](t, db, `SELECT count(*) FROM orders`); n != rows {
		t.Errorf("%d rows", n)
	}
}
