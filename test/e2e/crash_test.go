package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/mqbridge/mqb/test/fleet"
	"github.com/mqbridge/mqb/test/fleet/fleettest"
	"github.com/mqbridge/mqb/test/harness"
)

// crashRounds is how often a run is killed at each place before one may finish.
const crashRounds = 10

// killed runs a route again and again, each time killed at step, then once to its
// end. A pass is drawn for each round, so that the kill comes early and late.
// between is called after each kill.
func killed(t *testing.T, step string, run []string, between func(round int)) {
	t.Helper()
	ctl := filepath.Join(fleettest.Build(t, fleettest.Hooks), "mqbctl")
	fires := 0
	for round := range crashRounds {
		pass := 1 + rand.IntN(4)
		if step == "run.claimed" {
			pass = 1 // once a run
		}
		env, fired := fleettest.Hooked(t, fmt.Sprintf("%s@%d=kill", step, pass))
		out, err := runWith(t.Context(), env, ctl, run...)
		if _, none := os.Stat(fired); none == nil {
			fires++
		} else if err != nil {
			t.Fatalf("round %d at %s: %v\n%s", round, step, err, out)
		}
		if between != nil {
			between(round)
		}
	}
	if fires < 3 {
		t.Errorf("the run was killed at %s %d times only", step, fires)
	}
	if _, err := fleet.Run(t.Context(), ctl, run...); err != nil {
		t.Fatal(err)
	}
}

// slowly is a route of crashRows rows that takes long enough, about a second, to be
// killed everywhere. It commits a position for each hundred rows or so.
func slowly(in, output string, keys ...string) string {
	return fmt.Sprintf(`routes:
  r:
    input:
      middlewares: [{limiter: {messages_per_second: 4000}}]
      file: {path: "%s", format: csv}
    output:
%s
    batch_size: 50
    checkpoint_interval: 10ms
    exit_on_empty: true
    %s`, in, output, strings.Join(keys, "\n    "))
}

const crashRows = 4000

// kill -9 between any two steps of appending, ten times in a row: every row is in
// the file once, in order, in every format.
func TestKillBetweenAnyTwoStepsOfAnAppend(t *testing.T) {
	t.Parallel()
	formats := map[string]struct {
		keys string
		read func(t *testing.T, path string) []int
	}{
		"jsonl":      {"format: raw", func(t *testing.T, path string) []int { return jsonIDs(t, readFile(t, path)) }},
		"csv":        {"format: csv", csvIDs},
		"jsonl.gz":   {"format: raw, compression: gzip", func(t *testing.T, path string) []int { return jsonIDs(t, unpacked(t, path)) }},
		"jsonl.zst":  {"format: raw, compression: zstd", func(t *testing.T, path string) []int { return jsonIDs(t, unpacked(t, path)) }},
		"normal.lz4": {"format: normal, compression: lz4", func(t *testing.T, path string) []int { return jsonIDs(t, payloads(t, unpacked(t, path))) }},
	}
	for ext, f := range formats {
		for _, step := range []string{"append.synced", "commit.before-write", "run.claimed", "after.position-committed"} {
			if ext != "jsonl" && step != "append.synced" {
				continue // the steps are the same; what differs is what a cut leaves
			}
			t.Run(ext+"/"+step, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				out := filepath.Join(dir, "out."+ext)
				in := fleettest.CSV(t, dir, "in.csv", 0, crashRows)
				spec := fleettest.Write(t, dir, "spec.yaml", slowly(in, fmt.Sprintf("      file: {path: %q, %s}", out, f.keys)))
				killed(t, step, []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}, nil)
				inOrder(t, f.read(t, out))
			})
		}
	}
}

// What another program wrote before us stays in front, whatever is cut.
func TestAnAppendThatIsKilledKeepsWhatWasInTheFileBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const before = "{\"id\":\"before\"}\n"
	out := fleettest.Write(t, dir, "out.jsonl", before)
	in := fleettest.CSV(t, dir, "in.csv", 0, crashRows)
	spec := fleettest.Write(t, dir, "spec.yaml", slowly(in, fmt.Sprintf("      file: {path: %q, format: raw}", out)))
	killed(t, "append.synced", []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}, nil)
	text := readFile(t, out)
	if !bytes.HasPrefix(text, []byte(before)) {
		t.Fatalf("the file begins with %.40q", text)
	}
	inOrder(t, jsonIDs(t, text[len(before):]))
}

// Records that the table refuses, ten kills around the dead letters, and a table
// that changes its mind in between: each record is in the table once or in the dlq,
// never in both, never in neither. Letters may be there twice, with the same id.
func TestKillAroundDeadLettersPutsNoRecordInBothPlacesOrInNone(t *testing.T) {
	t.Parallel()
	pg := harness.Postgres(t)
	for kind, steps := range map[string][]string{
		"file":                       {"dlq.verdicts-committed", "dlq.written", "tx.before-fence"},
		"table elsewhere":            {"dlq.written"},
		"table in the same database": {"tx.before-fence", "tx.committed"},
	} {
		for _, step := range steps {
			t.Run(kind+"/"+step, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				db := pg.NewDatabase(t)
				harness.PostgresExec(t, db, `CREATE TABLE rows (id bigint CONSTRAINT odd CHECK (id % 7 <> 3), note text)`)
				letterDB := db
				if kind == "table elsewhere" {
					letterDB = pg.NewDatabase(t)
				}
				harness.PostgresExec(t, letterDB, `CREATE TABLE letters (id text PRIMARY KEY, payload text)`)
				in := fleettest.CSV(t, dir, "in.csv", 0, crashRows)
				dead := filepath.Join(dir, "dead.jsonl")
				dlq := fmt.Sprintf("file: {path: %q, format: normal}", dead)
				if kind != "file" {
					dlq = fmt.Sprintf("sqlx: {url: %q, insert_query: \"INSERT INTO letters (id, payload) VALUES (${metadata:mqb.id}, ${metadata:mqb.dlq.error}) ON CONFLICT DO NOTHING\"}", letterDB)
				}
				spec := fleettest.Write(t, dir, "spec.yaml", slowly(in, fmt.Sprintf(`      middlewares: [{dlq: {endpoint: {%s}}}]
      sqlx: {url: %q, insert_query: "INSERT INTO rows (id, note) VALUES (${payload:id}, ${payload:note})"}`, dlq, db)))
				killed(t, step, []string{"run", spec, "--data-dir", filepath.Join(dir, "state")}, func(round int) {
					// The table changes its mind: a record that was judged must not land
					// in it afterwards.
					harness.PostgresExec(t, db, fmt.Sprintf(`ALTER TABLE rows DROP CONSTRAINT odd;
						ALTER TABLE rows ADD CONSTRAINT odd CHECK (id %% 7 <> %d) NOT VALID`, 3+round%2))
				})
				where := map[int]int{}
				conn := harness.PostgresConnect(t, db)
				rows, err := conn.Query(t.Context(), `SELECT id FROM rows`)
				fleettest.Must(t, err)
				for rows.Next() {
					var id int
					fleettest.Must(t, rows.Scan(&id))
					where[id]++
				}
				fleettest.Must(t, rows.Err())
				letters := map[int]bool{}
				if kind == "file" {
					for line := range bytes.Lines(readFile(t, dead)) {
						letters[letterOrdinal(t, line)] = true
					}
				} else {
					ids, err := harness.PostgresConnect(t, letterDB).Query(t.Context(), `SELECT id FROM letters`)
					fleettest.Must(t, err)
					for ids.Next() {
						var id string
						fleettest.Must(t, ids.Scan(&id))
						n, err := strconv.Atoi(id[strings.LastIndexByte(id, '/')+1:])
						fleettest.Must(t, err)
						letters[n] = true
					}
					fleettest.Must(t, ids.Err())
				}
				if len(letters) == 0 {
					t.Fatal("no dead letters")
				}
				for n := range letters {
					where[n]++
				}
				for n := range crashRows {
					if where[n] != 1 {
						t.Errorf("record %d is in %d places (dead letter: %t)", n, where[n], letters[n])
					}
				}
			})
		}
	}
}

// inOrder fails unless ids are 0 to crashRows, each once.
func inOrder(t *testing.T, ids []int) {
	t.Helper()
	for i, id := range ids {
		if id != i {
			t.Fatalf("row %d is %d (of %d rows)", i, id, len(ids))
		}
	}
	if len(ids) != crashRows {
		t.Fatalf("%d rows, want %d", len(ids), crashRows)
	}
}

func jsonIDs(t *testing.T, text []byte) (ids []int) {
	t.Helper()
	for line := range bytes.Lines(text) {
		var row struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(line, &row); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("line %d is %q: %v", len(ids)+1, line, err)
		}
		n, err := strconv.Atoi(row.ID)
		fleettest.Must(t, err)
		ids = append(ids, n)
	}
	return ids
}

// payloads takes messages out of their envelopes.
func payloads(t *testing.T, text []byte) (out []byte) {
	t.Helper()
	for line := range bytes.Lines(text) {
		var e struct{ Payload string }
		fleettest.Must(t, json.Unmarshal(line, &e))
		out = append(append(out, e.Payload...), '\n')
	}
	return out
}

// letterOrdinal is the number of the record that a dead letter in its envelope is of.
func letterOrdinal(t *testing.T, line []byte) int {
	t.Helper()
	var e struct {
		ID       string            `json:"message_id"`
		Metadata map[string]string `json:"metadata"`
	}
	fleettest.Must(t, json.Unmarshal(line, &e))
	n, err := strconv.Atoi(e.Metadata["mqb.dlq.ordinal"])
	if err != nil || e.Metadata["mqb.dlq.error"] == "" || !strings.HasSuffix(e.ID, fmt.Sprintf("/%d", n)) {
		t.Fatalf("letter %s", line)
	}
	return n
}

func csvIDs(t *testing.T, path string) (ids []int) {
	t.Helper()
	rows, err := csv.NewReader(bytes.NewReader(readFile(t, path))).ReadAll()
	fleettest.Must(t, err)
	if len(rows) == 0 || !slices.Equal(rows[0], []string{"id", "note"}) {
		t.Fatalf("the header is %v", rows[0])
	}
	for _, row := range rows[1:] {
		n, err := strconv.Atoi(row[0])
		fleettest.Must(t, err)
		if want := fmt.Sprintf("row, %d", n); row[1] != want {
			t.Fatalf("row %d has the note %q", n, row[1])
		}
		ids = append(ids, n)
	}
	return ids
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	fleettest.Must(t, err)
	return text
}

// unpacked reads a compressed file to its last byte.
func unpacked(t *testing.T, path string) []byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(readFile(t, path))
	var err error
	switch filepath.Ext(path) {
	case ".gz":
		r, err = gzip.NewReader(r)
	case ".zst":
		r, err = zstd.NewReader(r)
	case ".lz4":
		r = lz4.NewReader(r)
	}
	fleettest.Must(t, err)
	text, err := io.ReadAll(r)
	fleettest.Must(t, err)
	return text
}
