package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func ordersClaim(epoch uint64) connectors.Claim {
	return connectors.Claim{
		Route: "orders", RouteUID: "uid-1", Series: "s1", Epoch: epoch, Run: "run", Key: "k",
		Partition: connectors.Partition{ID: "n1/a.csv", PartSource: "file-a.csv-0123456789abcdef"},
		Spec:      &route.Spec{ExistingParts: "fail"},
		Gate:      func() error { return nil },
	}
}

func tryWriter(t testing.TB, dir, format string, claim connectors.Claim) (*parts, error) {
	t.Helper()
	s, err := newSink(&Config{Path: dir, Format: format, NameBy: "source_position"}, claim.Spec, connectors.Env{})
	must(t, err)
	p, err := s.Prepare(t.Context(), claim.Partition)
	must(t, err)
	w, err := p.Open(t.Context(), claim)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { w.Close() })
	return w.(*parts), nil
}

func writer(t testing.TB, dir, format string, claim connectors.Claim) *parts {
	t.Helper()
	w, err := tryWriter(t, dir, format, claim)
	must(t, err)
	return w
}

func batchOf(payloads ...string) *message.Batch {
	b := message.NewBatch()
	for i, p := range payloads {
		b.Append([]byte(p), int64(i), 0)
	}
	return b
}

func stage(t testing.TB, w *parts, payloads ...string) {
	t.Helper()
	must(t, w.Stage(t.Context(), batchOf(payloads...), 0, len(payloads)))
}

func seal(t testing.TB, w *parts, from, end int64) checkpoint.Intent {
	t.Helper()
	in, err := w.Seal(t.Context(), position(from), position(end), "")
	must(t, err)
	return in
}

func TestJSONPartsHoldOneEnvelopeALine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "json", ordersClaim(1))
	stage(t, w, `{"a":1}`, "{\n\"a\":\r\n2}", "text \"q\" ä", "", "7")
	must(t, w.Publish(t.Context(), seal(t, w, 0, 5)))
	want := ""
	for i, p := range []string{`"payload":{"a":1}`, `"payload":{ "a":  2}`, `"payload_base64":"dGV4dCAicSIgw6Q="`, `"payload_base64":""`, `"payload":7`} {
		want += fmt.Sprintf("{\"message_id\":%q,%s}\n", w.enc.id(int64(i)), p)
	}
	if got := objects(t, dir); len(got) != 1 || got["part-file-a.csv-0123456789abcdef-0000000000-00000000000000000000-00000000000000000004.jsonl"] != want {
		t.Fatalf("%q", got)
	}
}

func TestFramedBlockOfJSONIsWrittenAsItStands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, csvFile, "a,b\n1,x\n2,\"y\n\"\n3,z\n")
	b, err := r.mustOpen(message.Position{}).Read(t.Context())
	must(t, err)
	defer b.Release()
	w := writer(t, dir, "raw", ordersClaim(1))
	must(t, w.Stage(t.Context(), b, 0, 2))
	must(t, w.Stage(t.Context(), b, 2, 3))
	must(t, w.Publish(t.Context(), seal(t, w, 0, 3)))
	for _, got := range objects(t, dir) {
		if got != "{\"a\":\"1\",\"b\":\"x\"}\n{\"a\":\"2\",\"b\":\"y\\n\"}\n{\"a\":\"3\",\"b\":\"z\"}\n" {
			t.Fatalf("%q", got)
		}
	}
}

func TestRangeWithoutRecordsIsAnEmptyPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	in := seal(t, w, 5, 9)
	must(t, w.Publish(t.Context(), in))
	if got := objects(t, dir); len(got) != 1 || got[in.Name] != "" || in.First != 5 || in.Last != 8 {
		t.Fatalf("%q %+v", got, in)
	}
	if _, err := w.Seal(t.Context(), position(9), position(9), ""); connectors.Classify(err) != connectors.ClassPermanent {
		t.Fatalf("an empty range was sealed: %v", err)
	}
}

func TestForeignDirectoriesSayWhoseTheyAreAndWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	stage(t, w, "x")
	must(t, w.Publish(t.Context(), seal(t, w, 0, 1)))
	before := objects(t, dir)
	for name, c := range map[string]struct {
		change func(*connectors.Claim)
		want   string
	}{
		"second route":    {func(c *connectors.Claim) { c.Route, c.RouteUID = "invoices", "uid-2" }, "the parts of route orders (uid uid-1)"},
		"re-created":      {func(c *connectors.Claim) { c.RouteUID = "uid-3" }, "an earlier route of the same name"},
		"position reset":  {func(c *connectors.Claim) { c.Series = "s2" }, "before the position of this route was reset"},
		"other partition": {func(c *connectors.Claim) { c.RouteUID, c.Partition.PartSource = "uid-4", "other" }, "an earlier route"},
	} {
		claim := ordersClaim(1)
		c.change(&claim)
		_, err := tryWriter(t, dir, "raw", claim)
		if connectors.Classify(err) != connectors.ClassForeign || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "existing_parts: skip") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !maps.Equal(before, objects(t, dir)) {
		t.Error("the parts changed")
	}
	// Parts without a manifest, as another program leaves them.
	must(t, os.Remove(filepath.Join(dir, manifestName)))
	if _, err := tryWriter(t, dir, "raw", ordersClaim(1)); !errors.Is(err, checkpoint.ErrForeign) || !strings.Contains(err.Error(), "without a manifest") {
		t.Errorf("no manifest: %v", err)
	}
}

func TestTakingADirectoryOverRefusesItsFormerOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	for _, r := range [][2]int64{{0, 3}, {3, 4}, {10, 12}} {
		stage(t, w, "x")
		must(t, w.Publish(t.Context(), seal(t, w, r[0], r[1])))
	}
	next := ordersClaim(1)
	next.Series, next.Spec = "s2", &route.Spec{ExistingParts: "skip"}
	want := []connectors.Range{{First: 0, Last: 3}, {First: 10, Last: 11}}
	for epoch := uint64(1); epoch <= 2; epoch++ {
		next.Epoch = epoch
		w := writer(t, dir, "raw", next)
		if !slices.Equal(w.Covered(), want) {
			t.Fatalf("epoch %d: covered %v, want %v", epoch, w.Covered(), want)
		}
		if epoch == 1 {
			// Its own part is never covered, only witnessed.
			stage(t, w, "y")
			must(t, w.Publish(t.Context(), seal(t, w, 4, 10)))
			next.Record.Position = position(12)
		}
	}
	next.Spec = &route.Spec{ExistingParts: "fail"} // the key may be taken out again
	if w := writer(t, dir, "raw", next); !slices.Equal(w.Covered(), want) {
		t.Fatalf("covered %v", w.Covered())
	}
	if _, err := tryWriter(t, dir, "raw", ordersClaim(5)); !errors.Is(err, checkpoint.ErrForeign) {
		t.Fatalf("the former lineage: %v", err)
	}
	next.Record.Position = position(9)
	if _, err := tryWriter(t, dir, "raw", next); !errors.Is(err, checkpoint.ErrRegressed) || !strings.Contains(err.Error(), "record 9") {
		t.Fatalf("a position inside an own part: %v", err)
	}
}

func TestPartitionsOfOneRouteShareTheManifest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			claim := ordersClaim(1)
			claim.Partition.PartSource = fmt.Sprint("source-", i)
			w, err := tryWriter(t, dir, "raw", claim)
			if err == nil {
				b := batchOf("x")
				if err = w.Stage(t.Context(), b, 0, 1); err == nil {
					var in checkpoint.Intent
					if in, err = w.Seal(t.Context(), position(0), position(1), ""); err == nil {
						err = w.Publish(t.Context(), in)
					}
				}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := len(objects(t, dir)); n != len(errs) {
		t.Fatalf("%d parts", n)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Fatalf("left over: %q", left)
	}
}

func TestLeftoverSpoolsOfEarlierEpochsAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := writer(t, dir, "raw", ordersClaim(3))
	stage(t, old, "x") // killed here: nobody closes it
	other := ordersClaim(1)
	other.Partition.PartSource = "file-b.csv-0123456789abcdef"
	stage(t, writer(t, dir, "raw", other), "x")
	stage(t, writer(t, dir, "raw", ordersClaim(4)), "y")
	left, err := filepath.Glob(filepath.Join(dir, spoolStem+"*"))
	must(t, err)
	if len(left) != 2 || strings.Contains(strings.Join(left, " "), "a.csv-0123456789abcdef-0000000000-00000000000000000003") {
		t.Fatalf("left: %q", left)
	}
	// The former owner wakes up: it may not publish what was taken from it.
	in := seal(t, old, 0, 1)
	if err := old.Publish(t.Context(), in); err == nil {
		t.Fatal("published from a removed spool")
	}
	if n := len(objects(t, dir)); n != 0 {
		t.Fatalf("%d parts", n)
	}
}

func TestPartThatIsThereIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	stage(t, w, "ours")
	in := seal(t, w, 0, 1)
	must(t, os.WriteFile(filepath.Join(dir, in.Name), []byte("theirs\n"), 0o644))
	must(t, w.Publish(t.Context(), in))
	if got := objects(t, dir); got[in.Name] != "theirs\n" {
		t.Fatalf("%q", got)
	}
}

func TestDirectoryThatIsAFileIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	write(t, path, "data")
	for _, dir := range []string{path, filepath.Join(path, "below")} {
		_, err := tryWriter(t, dir, "raw", ordersClaim(1))
		if connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "directory") {
			t.Errorf("%v", err)
		}
		s, serr := newSink(&Config{Path: dir, NameBy: "source_position"}, &route.Spec{}, connectors.Env{})
		must(t, serr)
		if err := s.Check(t.Context()); err == nil {
			t.Error("checked")
		}
	}
}

func TestFileSystemErrorsHaveTheirClass(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return classify(fmt.Errorf("x: %w", &fs.PathError{Err: err})) }
	for err, want := range map[error]connectors.Class{
		syscall.EACCES: connectors.ClassPermanent, syscall.EPERM: connectors.ClassPermanent,
		syscall.ENOSPC: connectors.ClassRetryable, syscall.EDQUOT: connectors.ClassRetryable, syscall.EIO: connectors.ClassRetryable,
	} {
		if got := connectors.Classify(wrap(err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// Staging goes on while the last part is published, from two goroutines.
func TestStageAndPublishAtTheSameTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	sealed := make(chan checkpoint.Intent, 1)
	done := make(chan error, 1)
	go func() {
		for in := range sealed {
			if err := w.Publish(context.Background(), in); err != nil {
				done <- err
				return
			}
			if there, err := w.Exists(context.Background(), in); err != nil || !there {
				done <- fmt.Errorf("%s is not there: %v", in.Name, err)
				return
			}
		}
		done <- nil
	}()
	for n := range int64(50) {
		for k := range 4 {
			stage(t, w, fmt.Sprint(4*n+int64(k)))
		}
		sealed <- seal(t, w, 4*n, 4*n+4)
	}
	close(sealed)
	must(t, <-done)
	got := payloads(t, dir, "raw")
	for i, p := range got {
		if string(p) != fmt.Sprint(i) {
			t.Fatalf("record %d is %s", i, p)
		}
	}
	if len(got) != 200 {
		t.Fatalf("%d records", len(got))
	}
}

func TestCloseFromOutsideEndsTheWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	stage(t, w, "x")
	in := seal(t, w, 0, 1)
	stage(t, w, "y")
	must(t, w.Close())
	if err := w.Stage(t.Context(), batchOf("z"), 0, 1); err == nil {
		t.Error("staged after Close")
	}
	if err := w.Publish(t.Context(), in); err == nil {
		t.Error("published after Close")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 || len(objects(t, dir)) > 0 {
		t.Fatalf("left: %q", left)
	}
}

func TestPartNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		key string
		r   connectors.Range
		ok  bool
	}{
		"part-file-in.csv-c664d08c32927da8-0000000000-00000000000000000000-00000000000000000999.bin": {"file-in.csv-c664d08c32927da8-0000000000", connectors.Range{Last: 999}, true},
		"part-orders-0000000003-00000000000000000007-00000000000000000009.jsonl.gz":                  {"orders-0000000003", connectors.Range{First: 7, Last: 9}, true},
		"part-orders-0000000003-0000000000000000007-00000000000000000009.jsonl":                      {},
		"part-orders": {}, "orders.jsonl": {}, "_mqb-manifest.json": {}, ".spool-x": {},
	} {
		key, r, ok := parsePart(name)
		if key != want.key || r != want.r || ok != want.ok {
			t.Errorf("%s: %q %v %v", name, key, r, ok)
		}
	}
	if n := partName(partStem+"a-0000000000-", 0, 9, "bin"); n != "part-a-0000000000-00000000000000000000-00000000000000000009.bin" {
		t.Error(n)
	}
	long := partSource("n1/" + strings.Repeat("ä", 120))
	if len(partName(partStem+partKey(connectors.Partition{PartSource: long})+"-", 0, 1, "jsonl"))+len(spoolStem)+40 > 255 {
		t.Error("too long for a file name")
	}
}

func TestRegressedRecordSaysWhichPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, dir, "raw", ordersClaim(1))
	stage(t, w, "x")
	in := seal(t, w, 0, 10)
	must(t, w.Publish(t.Context(), in))
	_, err := tryWriter(t, dir, "raw", ordersClaim(2))
	if !errors.Is(err, checkpoint.ErrRegressed) || connectors.Classify(err) != connectors.ClassRegressed || !strings.Contains(err.Error(), in.Name) || !strings.Contains(err.Error(), "record 10") {
		t.Fatal(err)
	}
}
