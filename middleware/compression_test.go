package middleware_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

var algorithms = []string{"zstd", "gzip", "lz4"}

// onOutput is build for the output side.
func onOutput(t testing.TB, text string) connectors.Middleware {
	t.Helper()
	return buildOn(t, "output", text, "stop")
}

func TestCompressionComesBack(t *testing.T) {
	t.Parallel()
	texts := []string{`{"id":1,"name":"Ada"}`, "", "\x00\xff\n", strings.Repeat("abc", 100_000), "x"}
	for _, a := range algorithms {
		out, in := onOutput(t, "compression: {algorithm: "+a+"}"), build(t, "compression: {algorithm: "+a+"}", "stop")
		for range 3 { // encoders and decoders are used again
			b := batch(texts...)
			b.PutMeta(3, "k", []byte("v"))
			if err := out.Process(t.Context(), b); err != nil {
				t.Fatal(a, err)
			}
			for i := range texts {
				if len(b.Payload(i)) == 0 || i == 3 && len(b.Payload(i)) > 5000 {
					t.Errorf("%s: payload %d has %d bytes", a, i, len(b.Payload(i)))
				}
			}
			if err := in.Process(t.Context(), b); err != nil {
				t.Fatal(a, err)
			}
			for i, want := range texts {
				if got := string(b.Payload(i)); got != want {
					t.Errorf("%s: payload %d came back as %.40q", a, i, got)
				}
			}
			if v, _ := b.Meta(3, "k"); string(v) != "v" {
				t.Errorf("metadata %q", v)
			}
		}
	}
}

// The frames are those of the formats: these were made by zstd 1.5.4, lz4 1.9.4 and
// gzip 1.12, and what we make begins as theirs do.
func TestCompressionReadsTheFramesOfOtherTools(t *testing.T) {
	t.Parallel()
	for a, theirs := range map[string]struct{ frame, magic string }{
		"zstd": {"KLUv/QRYqQAAeyJpZCI6MSwibmFtZSI6IkFkYSJ9WkbPQg==", "\x28\xb5\x2f\xfd"},
		"lz4":  {"BCJNGGRApxUAAIB7ImlkIjoxLCJuYW1lIjoiQWRhIn0AAAAAsmJa/g==", "\x04\x22\x4d\x18"},
		"gzip": {"H4sIAAAAAAAAA6tWykxRsjLUUcpLzE1VslJyTElUqgUAv0dUjhUAAAA=", "\x1f\x8b\x08"},
	} {
		frame, err := base64.StdEncoding.DecodeString(theirs.frame)
		if err != nil {
			t.Fatal(err)
		}
		b := batch(string(frame))
		if err := build(t, "compression: {algorithm: "+a+"}", "stop").Process(t.Context(), b); err != nil || payloads(b) != `{"id":1,"name":"Ada"}` {
			t.Errorf("%s: %v, %q", a, err, payloads(b))
		}
		if err := onOutput(t, "compression: {algorithm: "+a+"}").Process(t.Context(), b); err != nil || !strings.HasPrefix(payloads(b), theirs.magic) {
			t.Errorf("%s: %v, %q", a, err, payloads(b))
		}
	}
}

// Hazard: a small payload that takes the process down when it is decompressed.
func TestDecompressionBombIsRefusedBeforeItsBytesAreThere(t *testing.T) {
	big := strings.Repeat("\x00", 64<<20)
	for _, a := range algorithms {
		b := batch(big)
		if err := onOutput(t, "compression: {algorithm: "+a+"}").Process(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		bombs := []string{string(b.Payload(0))}
		if a == "zstd" {
			e, _ := zstd.NewWriter(nil)
			half := e.EncodeAll([]byte(big[:900_000]), nil)
			bombs = append(bombs, strings.Repeat(string(half), 100)) // each frame is below the limit
			var stream bytes.Buffer
			w, _ := zstd.NewWriter(&stream)
			for range 64 {
				_, _ = w.Write([]byte(big[:1<<20])) // no size in the header
			}
			_ = w.Close()
			bombs = append(bombs, stream.String())
		}
		m := build(t, "compression: {algorithm: "+a+", max_decompressed_bytes: 1MiB}", "drop")
		for n, text := range bombs {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			bad, said := transformed(t, m, batch(text))
			runtime.ReadMemStats(&after)
			if fmt.Sprint(bad) != "[0]" || !strings.Contains(said, "becomes larger than 1048576 bytes") {
				t.Errorf("%s bomb %d: %v %s", a, n, bad, said)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 24<<20 { // a window of 8 MiB is among it
				t.Errorf("%s bomb %d took %d bytes", a, n, grown)
			}
		}
		// Exactly at the limit is no bomb.
		b = batch(big[:1<<20])
		if err := onOutput(t, "compression: {algorithm: "+a+"}").Process(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if bad, said := transformed(t, m, b); bad != nil || len(b.Payload(0)) != 1<<20 {
			t.Errorf("%s at the limit: %s", a, said)
		}
	}
}

// Regression (bug 4), here too.
// Regression: an encoder that is not told how long a payload is, as any that is piped,
// declares the window of its level, and a payload of a few bytes was taken for a bomb.
func TestASmallPayloadInAWideWindowIsNoBomb(t *testing.T) {
	t.Parallel()
	const text = `{"id":1}`
	wide := func(window int, texts ...string) string {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil { // before the end is known
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	m := build(t, "compression: {max_decompressed_bytes: 1MiB}", "drop")
	for range 2 { // the decoder is used again
		b := batch(wide(8<<20, text), wide(2<<20, text, text), wide(32<<20, text), wide(8<<20, strings.Repeat(text, 200_000)), wide(8<<20, text)[:12], wide(1<<20, text))
		bad, said := transformed(t, m, b)
		if fmt.Sprint(bad) != "[2 3 4]" || string(b.Payload(0)) != text || string(b.Payload(1)) != text+text || string(b.Payload(5)) != text {
			t.Errorf("%v %s\n%s", bad, said, payloads(b))
		}
		for _, want := range []string{"asks for a window of more than 16777216 bytes", "becomes larger than 1048576 bytes", "unexpected EOF"} {
			if !strings.Contains(said, want) {
				t.Errorf("%q says nothing of %q", said, want)
			}
		}
	}
}

func TestCompressionOneBadPayloadDoesNotLoseItsNeighbours(t *testing.T) {
	t.Parallel()
	for _, a := range algorithms {
		for _, c := range []struct{ own, route, bad, left string }{
			{"fail", "drop", "[1 3 4]", "a no frame b cut  c"},
			{"drop", "stop", "[]", "a b c"},
		} {
			b := batch("a", "no frame", "b", "cut", "", "c")
			good := batch("a", "b", "cut", "c")
			if err := onOutput(t, "compression: {algorithm: "+a+"}").Process(t.Context(), good); err != nil {
				t.Fatal(err)
			}
			b.SetPayload(0, good.Payload(0))
			b.SetPayload(2, good.Payload(1))
			cut := good.Payload(2)
			b.SetPayload(3, cut[:len(cut)-3])
			b.SetPayload(5, good.Payload(3))
			bad, said := transformed(t, build(t, "compression: {algorithm: "+a+", on_error: "+c.own+"}", c.route), b)
			left := strings.ReplaceAll(payloads(b), string(cut[:len(cut)-3]), "cut")
			if fmt.Sprint(bad) != c.bad || left != c.left {
				t.Errorf("%s, %s: bad %v, left %q\n%s", a, c.own, bad, left, said)
			}
			if c.own == "drop" && b.Dropped != 3 {
				t.Errorf("%d dropped", b.Dropped)
			}
		}
	}
}

// Hazard: a tombstone that is compressed deletes nothing any more.
func TestCompressionLeavesTombstonesEmpty(t *testing.T) {
	t.Parallel()
	for _, a := range algorithms {
		for _, m := range []connectors.Middleware{onOutput(t, "compression: {algorithm: "+a+"}"), build(t, "compression: {algorithm: "+a+"}", "stop")} {
			b := message.NewBatch()
			b.Append(nil, 0, 1)
			b.AddMeta("mqb.kafka.tombstone", []byte("true"))
			if err := m.Process(t.Context(), b); err != nil || len(b.Payload(0)) != 0 {
				t.Errorf("%s: %v, %q", a, err, b.Payload(0))
			}
		}
	}
}

func TestCompressionRefusesAtLoad(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"compression: {algorithm: zip}":            "not one of zstd, gzip, lz4, none",
		"compression: {algoritm: zstd}":            `did you mean "algorithm"?`,
		"compression: {max_decompressed_bytes: 0}": "at least",
	} {
		if got := refused(t, "output", text); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q", text, got, want)
		}
	}
	b := batch("as it is")
	if err := onOutput(t, "compression: {algorithm: none}").Process(t.Context(), b); err != nil || payloads(b) != "as it is" {
		t.Error(err, payloads(b))
	}
}

func BenchmarkCompression(b *testing.B) {
	const row = `{"id":"1","first_name":"Ines","country":"JP","amount":"2232.88","created_at":"2020-01-01T00:01:22Z","active":"false","attributes":"{\"tier\":\"bronze\",\"score\":74.067,\"tags\":[\"new\"]}"}`
	const rows = 1024
	for _, a := range algorithms {
		for _, side := range []string{"output", "input"} {
			b.Run(a+"/"+side, func(b *testing.B) {
				m := buildOn(b, side, "compression: {algorithm: "+a+"}", "stop")
				original := message.NewBatch()
				for i := range rows {
					original.Append([]byte(row), int64(i), int64(i+1))
				}
				if side == "input" {
					if err := onOutput(b, "compression: {algorithm: "+a+"}").Process(b.Context(), original); err != nil {
						b.Fatal(err)
					}
				}
				batch := message.NewBatch()
				b.ReportAllocs()
				for b.Loop() {
					batch.Clear()
					for i := range rows {
						batch.Append(original.Payload(i), int64(i), int64(i+1))
					}
					if err := m.Process(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
			})
		}
	}
}

// Each payload is below its limit, and all of them together are the node's memory:
// the route stops with a word on what to do, and no other route is touched.
func TestABatchOfBombsBelowTheLimitStopsItsRouteAndNotTheNode(t *testing.T) {
	one := batch(strings.Repeat("\x00", 15<<20))
	if err := onOutput(t, "compression: {algorithm: zstd}").Process(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	bombs := make([]string, 200)
	for i := range bombs {
		bombs[i] = string(one.Payload(0))
	}
	b := batch(bombs...)
	err := build(t, "compression: {algorithm: zstd}", "drop").Process(t.Context(), b)
	if connectors.Classify(err) != connectors.ClassPermanent || !strings.Contains(err.Error(), "batch_size") {
		t.Fatal(err)
	}
	if b.Bytes() > 320<<20 {
		t.Errorf("the batch became %d MiB", b.Bytes()>>20)
	}
}
