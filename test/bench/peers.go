package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mqbridge/mqb/test/harness"
)

// A peer is another program that does some of the jobs. Each gets the settings
// that were the fastest of those tried on two CPUs.
type peer interface {
	name() string
	// install makes it ready, with what it needs in the cache of the tests.
	install(ctx context.Context, p *program) error
	// variant runs the task. Where the peer cannot do it, why says so.
	variant(w *work, t task) (v variant, why string, err error)
}

// The keys are what -peers takes; the order is that of the tables.
var allPeers = []struct {
	key  string
	peer peer
}{
	{"mqbridge", &mqBridge{}}, {"duckdb", &duckDB{}}, {"benthos", &benthos{}},
	{"sling", &sling{}}, {"connect", &connect{}}, {"psql", &psql{}},
}

// peerNames is the flag: the peers that are asked for.
type peerNames []string

func (n *peerNames) String() string   { return strings.Join(*n, ",") }
func (n *peerNames) IsBoolFlag() bool { return true }

func (peerNames) all() (keys []string) {
	for _, p := range allPeers {
		keys = append(keys, p.key)
	}
	return keys
}

func (n *peerNames) Set(value string) error {
	*n = strings.Split(value, ",")
	if value == "true" {
		*n = n.all()
	}
	for _, k := range *n {
		if !slices.Contains(n.all(), k) {
			return fmt.Errorf("unknown peer %q", k)
		}
	}
	return nil
}

// install makes those that were asked for ready.
func (n peerNames) install(ctx context.Context) (ready []peer, err error) {
	p := &program{ctx: ctx}
	defer p.end()
	for _, a := range allPeers {
		if !slices.Contains(n, a.key) {
			continue
		}
		if err := a.peer.install(ctx, p); err != nil {
			return nil, fmt.Errorf("install %s: %w", a.peer.name(), err)
		}
		ready = append(ready, a.peer)
	}
	return ready, nil
}

// command runs one step of an installation.
func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// python returns the directory of a virtual environment with one package.
func python(ctx context.Context, p *program, pkg string) string {
	return harness.Cached(p, "peer-"+strings.ReplaceAll(pkg, "==", "-"), func(dir string) error {
		if err := command(ctx, "python3", "-m", "venv", dir); err != nil {
			return fmt.Errorf("%w\n(Debian: python3-venv)", err)
		}
		return command(ctx, filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "-q", pkg)
	})
}

// landed says when the output has all lines, for programs that wait for more.
func landed(t task) func(context.Context) (bool, error) {
	var read, lines int64
	buf := make([]byte, 256<<10)
	return func(context.Context) (bool, error) {
		f, err := os.Open(t.out)
		if errors.Is(err, fs.ErrNotExist) {
			read, lines = 0, 0 // a new run
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer f.Close()
		for {
			n, err := f.ReadAt(buf, read)
			read += int64(n)
			lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
			if errors.Is(err, io.EOF) {
				return lines >= int64(t.rows), nil
			}
			if err != nil {
				return false, err
			}
		}
	}
}

// script is the path of a file of this directory.
func script(name string) string { return filepath.Join("test", "bench", "peers", name) }

// mqBridge is mq-bridge's own release build, as its Python package.
type mqBridge struct {
	venv string
	runs int
}

const mqBridgeVersion = "1.2.0"

func (*mqBridge) name() string { return "mq-bridge " + mqBridgeVersion }

func (m *mqBridge) install(ctx context.Context, p *program) error {
	m.venv = python(ctx, p, "mq-bridge=="+mqBridgeVersion)
	return nil
}

func (m *mqBridge) variant(_ *work, t task) (variant, string, error) {
	// Its program's own defaults, and the end of a run at the end of the input.
	const settings = "concurrency: 4, batch_size: 1024, exit_on_empty: true"
	v := variant{bin: filepath.Join(m.venv, "bin", "python"), args: func() []string {
		in, out := t.endpoints(mqBridgeField)
		// Its client stops fetching for a second when its queue is full.
		in = strings.Replace(in, "kafka: {", `kafka: {consumer_options: [["fetch.queue.backoff.ms", "10"]], `, 1)
		return []string{script("mqbridge.py"), fmt.Sprintf("job: {%s, input: {%s}, output: {%s}}", settings, in, out)}
	}}
	if t.kind == kafkaToJSONL || t.kind == kafkaProjected {
		// It waits for some seconds at the end of a topic, which is no work. When it
		// is told to end it leaves its group only after a while: each run has its own.
		v.until = landed(t)
		args := v.args
		v.args = func() []string {
			m.runs++
			t.group = fmt.Sprintf("%s-mq-bridge-%d", group, m.runs)
			return args()
		}
	}
	return v, "", nil
}

// duckDB is the engine as its Python package.
type duckDB struct{ venv string }

const duckDBVersion = "2.0.1"

func (*duckDB) name() string { return "DuckDB " + duckDBVersion }

func (d *duckDB) install(ctx context.Context, p *program) error {
	d.venv = python(ctx, p, "duckdb=="+duckDBVersion)
	return nil
}

func (d *duckDB) variant(_ *work, t task) (variant, string, error) {
	switch t.kind {
	case kafkaToJSONL, kafkaProjected, jsonlToKafka:
		return variant{}, "has no Kafka connector", nil
	case jsonlCopied, jsonlUpserted:
		return variant{}, "its PostgreSQL extension is not in the package; it downloads it while it runs", nil
	}
	return variant{bin: filepath.Join(d.venv, "bin", "python"), args: func() []string {
		return []string{script("duckdb_job.py"), t.kind.String(), t.in, t.out}
	}}, "", nil
}

// benthos is the engine with the components of its open core.
type benthos struct{ bin string }

const benthosVersion = "4.60.0"

func (*benthos) name() string { return "Benthos " + benthosVersion }

func (b *benthos) install(ctx context.Context, p *program) error {
	dir := harness.Cached(p, "peer-benthos-"+benthosVersion, func(dir string) error {
		return command(ctx, "go", "build", "-C", script("benthos"), "-o", dir+"/benthos", ".")
	})
	b.bin = filepath.Join(dir, "benthos")
	return nil
}

func (b *benthos) variant(_ *work, t task) (variant, string, error) {
	switch t.kind {
	case csvToJSONL, csvToTyped, jsonlToJSONL:
	case kafkaToJSONL, kafkaProjected, jsonlToKafka:
		return variant{}, "its open core has no Kafka connector", nil
	case jsonlCopied, jsonlUpserted:
		return variant{}, "its open core has no SQL connector", nil
	default:
		return variant{}, "its open core has no zstd", nil
	}
	return variant{bin: b.bin, env: []string{"IN=" + t.in, "OUT=" + t.out}, args: func() []string {
		return []string{"run", script(filepath.Join("benthos", t.kind.String()+".yaml"))}
	}}, "", nil
}

// psql is PostgreSQL's own client: what one connection can do at most.
type psql struct{ bin string }

func (*psql) name() string { return `psql \copy` }

func (q *psql) install(context.Context, *program) (err error) {
	q.bin = "/usr/lib/postgresql/15/bin/psql"
	if _, err = os.Stat(q.bin); err != nil {
		err = fmt.Errorf("%w (Debian: postgresql-client-15)", err)
	}
	return err
}

func (q *psql) variant(_ *work, t task) (variant, string, error) {
	copied := fmt.Sprintf(`\copy %%s FROM '%s' (FORMAT csv, HEADER true)`, t.csv)
	var steps []string
	switch t.kind {
	case jsonlCopied:
		steps = []string{fmt.Sprintf(copied, "orders")}
	case jsonlUpserted:
		set := make([]string, 0, len(columns))
		for _, c := range columns[1:] {
			set = append(set, c+" = excluded."+c)
		}
		steps = []string{
			"CREATE TEMP TABLE incoming (LIKE orders)",
			fmt.Sprintf(copied, "incoming"),
			"INSERT INTO orders SELECT * FROM incoming ON CONFLICT (id) DO UPDATE SET " + strings.Join(set, ", "),
		}
	default:
		return variant{}, "reads and writes PostgreSQL only", nil
	}
	args := []string{"-X", "-q", "-v", "ON_ERROR_STOP=1", t.postgres}
	for _, s := range steps {
		args = append(args, "-c", s)
	}
	return variant{bin: q.bin, args: func() []string { return args }}, "", nil
}
