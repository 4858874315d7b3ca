package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

func TestAppendCapabilities(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, mkfifo(fifo))
	for _, x := range []struct {
		cfg  Config
		want route.SinkCapabilities
	}{
		{Config{Path: "x", Fsync: "batch"}, route.SinkCapabilities{Tier: route.TierDeterministic, Append: true, Durable: true}},
		{Config{Path: "x", Fsync: "periodic"}, route.SinkCapabilities{Tier: route.TierDeterministic, Append: true, Durable: true}},
		{Config{Path: "x", Fsync: "off"}, route.SinkCapabilities{Tier: route.TierDeterministic, Append: true}},
		{Config{Path: "x", NameBy: "source_position"}, route.SinkCapabilities{Tier: route.TierDeterministic, Parts: true, Durable: true}},
		{Config{Path: "-"}, route.SinkCapabilities{Tier: route.TierNone}},
		{Config{Path: fifo}, route.SinkCapabilities{Tier: route.TierNone}},
	} {
		got := x.cfg.sinkCapabilities()
		if got.Why == "" || got.Locality != route.NodeLocal {
			t.Errorf("%+v: %+v", x.cfg, got)
		}
		if got.Tier != x.want.Tier || got.Append != x.want.Append || got.Durable != x.want.Durable || got.Parts != x.want.Parts {
			t.Errorf("%+v: %+v", x.cfg, got)
		}
	}
}

func TestAPipeIsWrittenTo(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, mkfifo(fifo))
	s, err := newSink(&Config{Path: fifo, Format: "csv", CSV: CSVConfig{Header: true}}, &route.Spec{}, connectors.Env{})
	must(t, err)
	got := make(chan string, 1)
	go func() {
		b, _ := os.ReadFile(fifo)
		got <- string(b)
	}()
	p, err := s.Prepare(t.Context(), connectors.Partition{})
	must(t, err)
	w, err := p.Open(t.Context(), ordersClaim(1))
	must(t, err)
	if _, ok := w.(connectors.StatefulWriter); ok {
		t.Error("a pipe has no state")
	}
	second, err := p.Open(t.Context(), ordersClaim(1))
	must(t, err)
	put(t, w.(connectors.PlainWriter), `{"a":1,"b":2}`)
	put(t, second.(connectors.PlainWriter), `{"b":4,"a":3}`)
	must(t, w.Close())
	must(t, second.Close())
	if out := <-got; out != "a,b\n1,2\n3,4\n" {
		t.Errorf("%q", out)
	}
	claim := ordersClaim(1)
	claim.Spec = &route.Spec{RequiredDelivery: route.EffectivelyOnce}
	if _, err := p.Open(t.Context(), claim); connectors.Classify(err) != connectors.ClassPermanent {
		t.Errorf("%v", err)
	}
	// Nobody reads: waited for as long as the context lasts.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Open(ctx, ordersClaim(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// Several partitions, each with a writer of its own, and letters that are whole.
func TestDeadLettersOfSeveralPartitions(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "dead.jsonl")
	must(t, os.Mkdir(filepath.Dir(path), 0o755))
	write(t, path, `{"half":`)
	s, err := newSink(&Config{Path: path, Format: "normal"}, &route.Spec{}, connectors.Env{})
	must(t, err)
	const writers, each = 6, 30
	var wg sync.WaitGroup
	for k := range writers {
		claim := ordersClaim(1)
		claim.Leg, claim.Partition.ID = connectors.LegDeadLetters, fmt.Sprint("p", k)
		p, err := s.Prepare(t.Context(), claim.Partition)
		must(t, err)
		w, err := p.Open(t.Context(), claim)
		must(t, err)
		defer w.Close()
		wg.Go(func() {
			for i := range each {
				b := batchOf(strings.Repeat("x", 3000), "y")
				b.PutMeta(0, metaID, fmt.Appendf(nil, "%d-%d", k, i))
				b.PutMeta(1, metaID, fmt.Appendf(nil, "%d-%d-b", k, i))
				if err := w.(connectors.PlainWriter).Write(t.Context(), b, 0, 2); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	rest, ok := strings.CutPrefix(contentOf(t, path), "{\"half\":\n")
	if !ok {
		t.Fatal("a letter was joined to the half of another one")
	}
	ids := map[string]bool{}
	for line := range strings.Lines(rest) {
		var e struct {
			ID string `json:"message_id"`
		}
		must(t, json.Unmarshal([]byte(line), &e))
		ids[e.ID] = true
	}
	if len(ids) != 2*writers*each {
		t.Errorf("%d letters, want %d", len(ids), 2*writers*each)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, cfg := range []Config{{Path: path, NameBy: "source_position"}, {Path: path + ".gz"}, {Path: path, Format: "csv", CSV: CSVConfig{Header: true}}} {
		s, err := newSink(&cfg, &route.Spec{}, connectors.Env{})
		must(t, err)
		p, err := s.Prepare(t.Context(), connectors.Partition{})
		must(t, err)
		claim := ordersClaim(1)
		claim.Leg = connectors.LegDeadLetters
		if _, err := p.Open(t.Context(), claim); connectors.Classify(err) != connectors.ClassPermanent {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestEnvelopesWithJSONComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	payloads := []string{`{"a": 1}`, `[1,2]`, "7", "null", `"text"`, "plain", "", "\xff\x00", " {\n}\n", `{"a":`}
	want := slices.Clone(payloads)
	want[8] = "{ }"
	for _, format := range []string{"normal", "text", "envelope", "envelope_text", "json", "envelope_json"} {
		path := filepath.Join(t.TempDir(), "out")
		w := appending(t, Config{Path: path, Format: format}, ordersClaim(1))
		put(t, w, payloads...)
		must(t, w.Close())
		b := batchOf()
		for line := range bytes.Lines([]byte(contentOf(t, path))) {
			addEnvelope(b, bytes.TrimSuffix(line, []byte("\n")), 0, 0, strings.HasSuffix(format, "json"))
		}
		if b.Len() != len(payloads) {
			t.Fatalf("%s: %d records", format, b.Len())
		}
		for i, p := range want {
			if !strings.HasSuffix(format, "json") {
				p = payloads[i]
			}
			if got := string(b.Payload(i)); strings.TrimSpace(got) != strings.TrimSpace(p) {
				t.Errorf("%s: payload %q came back as %q", format, p, got)
			}
		}
	}
	// As the dialect writes bytes that are no text.
	b := batchOf()
	addEnvelope(b, []byte(`{"message_id":"1","payload":[112,255],"metadata":{"mq_bridge.payload_bytes":"1"}}`), 0, 0, false)
	if got := b.Payload(0); string(got) != "p\xff" || b.MetaLen(0) != 1 {
		t.Errorf("%q", got)
	}
}

func mkfifo(path string) error { return exec.Command("mkfifo", path).Run() }
