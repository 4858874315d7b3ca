package file

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/mqbridge/mqb/message"
)

// dialectPayloads are the payloads of the records in testdata/dialect, which
// mq-bridge 1.2.0 wrote, the same into each file.
var dialectPayloads = []string{
	`{"id":1,"name":"Inès","price":1.10}`, "[1,2]", "7", `"a \"quoted\" one"`, "no JSON",
	`{"message_id":"x","payload":"inner","metadata":{"k":"v"}}`, "null", "a\xff\x00b",
	`{"n": 1}`, "", "[3, 4]",
}

// dialectMeta is the metadata of record i in them.
func dialectMeta(i int) map[string]string {
	switch i {
	case 8:
		return map[string]string{metaID: "00000000-0000-0000-0000-00000000000a", "z": "last", "k": "ü", "a": `first "quoted"`}
	case 9:
		return map[string]string{metaID: "00000000-0000-0000-0000-00000000000b", "a": ""}
	case 10:
		return map[string]string{metaID: "00000000-0000-0000-0000-00000000000c"}
	}
	return map[string]string{"mq_bridge.original_format": "raw"}
}

// readOnce is the first batch of a file with this content.
func readOnce(t *testing.T, format, content string) *message.Batch {
	t.Helper()
	b, err := newRig(t, Config{Format: format}, content).mustOpen(message.Position{}).Read(t.Context())
	must(t, err)
	t.Cleanup(b.Release)
	return b
}

func metaOf(b *message.Batch, i int) map[string]string {
	out := map[string]string{}
	for j := range b.MetaLen(i) {
		k, v := b.MetaAt(i, j)
		out[string(k)] = string(v)
	}
	return out
}

func checkDialect(t *testing.T, format string, b *message.Batch) {
	t.Helper()
	if b.Len() != len(dialectPayloads) {
		t.Fatalf("%s: %d records", format, b.Len())
	}
	for i, want := range dialectPayloads {
		if got := string(b.Payload(i)); got != want {
			t.Errorf("%s: payload %d is %q, want %q", format, i, got, want)
		}
		if format == "raw" {
			continue
		}
		meta, want := metaOf(b, i), dialectMeta(i)
		if want[metaID] == "" {
			if len(meta[metaID]) != 36 {
				t.Errorf("%s: record %d has the id %q", format, i, meta[metaID])
			}
			delete(meta, metaID)
		}
		if fmt.Sprint(meta) != fmt.Sprint(want) {
			t.Errorf("%s: record %d has the metadata %q, want %q", format, i, meta, want)
		}
	}
}

func TestFilesOfTheDialectAreReadWithTheirPayloadsAndNotTheirEnvelopes(t *testing.T) {
	t.Parallel()
	for format, names := range map[string][]string{
		"normal": {"normal", "envelope"}, "text": {"text", "envelope_text"}, "json": {"json", "envelope_json"}, "raw": {"raw", "payload"},
	} {
		content := contentOf(t, filepath.Join("testdata", "dialect", format+".jsonl"))
		for _, name := range names {
			b := readOnce(t, name, content)
			checkDialect(t, format, b)
			// And what we make of them comes back.
			for _, to := range []string{"normal", "text", "json"} {
				path := filepath.Join(t.TempDir(), "out")
				w := appending(t, Config{Path: path, Format: to}, ordersClaim(1))
				must(t, w.Write(t.Context(), b, 0, b.Len()))
				must(t, w.Close())
				if format != "raw" {
					checkDialect(t, to, readOnce(t, to, contentOf(t, path)))
				}
			}
		}
	}
}

// A line that is no envelope is a payload, also where it looks like half of one.
func TestALineWithoutAnEnvelopeIsThePayload(t *testing.T) {
	t.Parallel()
	lines := []string{`{"id":1}`, `{"payload":"no id"}`, `{"message_id":"no payload"}`, `{"message_id":"1","payload":"x","more":1}`, `"s"`, "[1]", "{}",
		`{"message_id":null,"payload":"x"}`, `{"message_id":{"a":1},"payload":"x"}`, `{"message_id":true,"payload":"x"}`}
	for _, format := range []string{"normal", "text", "json"} {
		var content string
		for _, l := range lines {
			content += l + "\n"
		}
		b := readOnce(t, format, content)
		if b.Len() != len(lines) {
			t.Fatalf("%s: %d records", format, b.Len())
		}
		for i, l := range lines {
			if string(b.Payload(i)) != l || b.MetaLen(i) != 0 {
				t.Errorf("%s: %s came as %q with %v", format, l, b.Payload(i), metaOf(b, i))
			}
		}
	}
}

// What the dialect makes of payloads that its writers do not write.
func TestUnusualPayloadsOfEnvelopesAreWhatTheDialectMakesOfThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rest, text, json string }{
		{`"payload":[1,2]`, "\x01\x02", "[1,2]"},
		{`"payload":[1,2],"metadata":{"mq_bridge.payload_bytes":"1"}`, "\x01\x02", "\x01\x02"},
		{`"payload":[112,300],"metadata":{"mq_bridge.payload_bytes":"1"}`, "[112,300]", "[112,300]"},
		{`"payload":[1,"a"]`, `[1,"a"]`, `[1,"a"]`},
		{`"payload":null`, "null", "null"},
		{`"payload":"a\n\u00e4"`, "a\nä", `"a\n\u00e4"`},
		{`"payload_base64":"/w=="`, "\xff", "\xff"},
		{`"payload":7`, "7", "7"},
	} {
		line := `{"message_id":"1",` + c.rest + "}\n"
		for format, want := range map[string]string{"normal": c.text, "text": c.text, "json": c.json} {
			b := readOnce(t, format, line)
			if got := string(b.Payload(0)); got != want || b.MetaLen(0) != 1 {
				t.Errorf("%s: %s is %q with %v, want %q", format, c.rest, got, metaOf(b, 0), want)
			}
		}
	}
}

// An id that changes on its way makes two messages of one wherever ids are compared.
func TestTheIdOfAMessageIsTheSameOnEachHop(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a\"b", "\"", "c\\", "tab\t", "ä", "", " ", "12"} {
		text, err := json.Marshal(id)
		must(t, err)
		content := `{"message_id":` + string(text) + `,"payload":"x"}` + "\n"
		for hop := range 3 {
			b := readOnce(t, "normal", content)
			if got, _ := b.Meta(0, metaID); string(got) != id {
				t.Fatalf("hop %d: the id %q is %q", hop, id, got)
			}
			path := filepath.Join(t.TempDir(), "out")
			w := appending(t, Config{Path: path, Format: "normal"}, ordersClaim(1))
			must(t, w.Write(t.Context(), b, 0, 1))
			must(t, w.Close())
			content = contentOf(t, path)
		}
	}
}

func TestBytesOfAnEnvelopeThatAreNoTextAreNotReplaced(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"{\"message_id\":\"1\",\"payload\":\"M\xfcller\"}", "{\"message_id\":\"1\",\"payload\":{\"a\":\"\xfc\"}}"} {
		if got := readOnce(t, "normal", line+"\n"); string(got.Payload(0)) != line {
			t.Errorf("%q came as %q", line, got.Payload(0))
		}
	}
}

func TestADelimiterInsideOfAPayloadDoesNotSplitItsEnvelope(t *testing.T) {
	t.Parallel()
	for _, d := range []string{"\t", "\r", "\n"} {
		path := filepath.Join(t.TempDir(), "out")
		w := appending(t, Config{Path: path, Format: "json", Delimiter: d}, ordersClaim(1))
		put(t, w, "{\t\"a\":\r\n1}", "[\t1]")
		must(t, w.Close())
		r := newRig(t, Config{Format: "json", Delimiter: d}, contentOf(t, path))
		r.all("{ \"a\":  1}", "[ 1]")
	}
}
