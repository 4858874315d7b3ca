package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

// benchFile writes rows of the size and shape of an order: about 122 bytes of
// csv, 200 of JSON.
func benchFile(b *testing.B, format string, rows int) string {
	b.Helper()
	var buf bytes.Buffer
	if format == "csv" {
		buf.WriteString("id,first_name,country,amount,created_at,active,attributes\r\n")
	}
	for i := range rows {
		if format == "csv" {
			fmt.Fprintf(&buf, "%d,Ines,JP,%d.88,2020-01-01T00:01:22Z,false,\"{\"\"tier\"\":\"\"bronze\"\",\"\"score\"\":74.067,\"\"tags\"\":[\"\"new\"\",\"\"vip\"\"]}\"\r\n", i, i)
		} else {
			fmt.Fprintf(&buf, `{"id":"%d","first_name":"Ines","country":"JP","amount":"%d.88","created_at":"2020-01-01T00:01:22Z","active":"false","attributes":"{\"tier\":\"bronze\",\"score\":74.067,\"tags\":[\"new\",\"vip\"]}"}`+"\n", i, i)
		}
	}
	path := filepath.Join(b.TempDir(), "orders."+format)
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	return path
}

func benchReader(b testing.TB, path, format string) connectors.Reader {
	b.Helper()
	spec := &route.Spec{BatchSize: 1024, MaxRecordBytes: 16 << 20}
	src, err := newSource(&Config{Path: path, Format: format, CSV: CSVConfig{Header: true}}, spec, connectors.Env{Node: "n"})
	if err != nil {
		b.Fatal(err)
	}
	ps, err := src.Partitions(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	r, err := src.Open(b.Context(), connectors.Claim{Partition: ps[0], Spec: spec, Budget: message.NewBudget(64 << 20)})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// benchSource reads the file again and again; one iteration is one batch.
func benchSource(b *testing.B, format string) {
	path := benchFile(b, format, 200_000)
	r := benchReader(b, path, format)
	defer func() { r.Close() }()
	rows := 0
	b.ReportAllocs()
	for b.Loop() {
		batch, err := r.Read(b.Context())
		if errors.Is(err, connectors.ErrEndOfInput) {
			b.StopTimer()
			r.Close()
			r = benchReader(b, path, format)
			b.StartTimer()
			continue
		}
		if err != nil {
			b.Fatal(err)
		}
		rows += batch.Len()
		batch.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
}

func BenchmarkCSVSource(b *testing.B)  { benchSource(b, "csv") }
func BenchmarkJSONSource(b *testing.B) { benchSource(b, "json") }
func BenchmarkRawSource(b *testing.B)  { benchSource(b, "raw") }

func benchWriter(b testing.TB, format string) connectors.PartWriter {
	b.Helper()
	s, err := newSink(&Config{Path: b.TempDir(), Format: format, NameBy: "source_position"}, &route.Spec{}, connectors.Env{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := s.Prepare(b.Context(), connectors.Partition{})
	if err != nil {
		b.Fatal(err)
	}
	w, err := p.Open(b.Context(), connectors.Claim{
		Route: "r", RouteUID: "uid", Series: "s", Epoch: 1, Run: "run",
		Partition: connectors.Partition{ID: "a", PartSource: "a"}, Gate: func() error { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	return w.(connectors.PartWriter)
}

// BenchmarkPartsSink stages batches and publishes a part of 64 MiB at a time, as
// a committer does it: while the next part is staged.
func BenchmarkPartsSink(b *testing.B) {
	for _, format := range []string{"raw", "json", "normal"} {
		b.Run(format, func(b *testing.B) {
			path := benchFile(b, "json", 2000)
			r := benchReader(b, path, "json")
			batch, err := r.Read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			defer batch.Release()
			w := benchWriter(b, format)
			defer w.Close()
			sealed := make(chan checkpoint.Intent, 1)
			done := make(chan error, 1)
			go func() {
				for in := range sealed {
					if err := w.Publish(context.Background(), in); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			rows, from := int64(0), int64(0)
			seal := func() {
				in, err := w.Seal(b.Context(), position(from), position(rows), "")
				if err != nil {
					b.Fatal(err)
				}
				from = rows
				sealed <- in
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Stage(b.Context(), batch, 0, batch.Len()); err != nil {
					b.Fatal(err)
				}
				rows += int64(batch.Len())
				if _, n := w.OpenPart(); n >= 64<<20 {
					seal()
				}
			}
			if from < rows {
				seal()
			}
			close(sealed)
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
		})
	}
}

func position(n int64) message.Position {
	if n == 0 {
		return message.Position{}
	}
	return place{Record: n}.position()
}
