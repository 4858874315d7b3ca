package file

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/mqbridge/mqb/checkpoint"
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

// sinkBench is one batch of 1000 orders, ready to be written again and again.
func sinkBench(b *testing.B, cfg Config, write func(rows int64, w connectors.Writer) (n int64)) {
	cfg.Path = filepath.Join(b.TempDir(), "out")
	s, err := newSink(&cfg, &route.Spec{}, connectors.Env{})
	must(b, err)
	p, err := s.Prepare(b.Context(), connectors.Partition{})
	must(b, err)
	w, err := p.Open(b.Context(), connectors.Claim{
		Route: "r", RouteUID: "uid", Series: "s", Epoch: 1, Run: "run",
		Partition: connectors.Partition{ID: "a", PartSource: "a"}, Gate: func() error { return nil },
	})
	must(b, err)
	defer w.Close()
	rows := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		rows += write(rows, w)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

var benchSinks = []Config{
	{Format: "raw"}, {Format: "json"}, {Format: "normal"}, {Format: "csv", CSV: CSVConfig{Header: true}},
	{Format: "raw", Compression: "zstd"}, {Format: "raw", Compression: "gzip"}, {Format: "raw", Compression: "lz4"},
}

// BenchmarkAppendSink commits every 200,000 rows, as a route does it once a second or so.
func BenchmarkAppendSink(b *testing.B) {
	for _, cfg := range benchSinks {
		b.Run(cfg.Format+cfg.Compression, func(b *testing.B) {
			r := benchReader(b, benchFile(b, "json", 2000), "json")
			defer r.Close()
			batch, err := r.Read(b.Context())
			must(b, err)
			defer batch.Release()
			sinkBench(b, cfg, func(rows int64, w connectors.Writer) int64 {
				n := int64(batch.Len())
				must(b, w.(connectors.PlainWriter).Write(b.Context(), batch, 0, batch.Len()))
				if rows/200_000 != (rows+n)/200_000 {
					_, err := w.(connectors.StatefulWriter).State(b.Context())
					must(b, err)
				}
				return n
			})
		})
	}
}

// BenchmarkPartsSinkFormats is BenchmarkPartsSink for what needs more work.
func BenchmarkPartsSinkFormats(b *testing.B) {
	for _, cfg := range benchSinks {
		cfg.NameBy = "source_position"
		b.Run(cfg.Format+cfg.Compression, func(b *testing.B) {
			r := benchReader(b, benchFile(b, "json", 2000), "json")
			defer r.Close()
			batch, err := r.Read(b.Context())
			must(b, err)
			defer batch.Release()
			sealed := make(chan checkpoint.Intent, 1)
			done := make(chan error, 1)
			started := false
			from := int64(0)
			sinkBench(b, cfg, func(rows int64, w connectors.Writer) int64 {
				pw := w.(connectors.PartWriter)
				if !started {
					started = true
					go func() {
						for in := range sealed {
							if err := pw.Publish(context.Background(), in); err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				n := int64(batch.Len())
				must(b, pw.Stage(b.Context(), batch, 0, batch.Len()))
				if _, size := pw.OpenPart(); size >= 64<<20 {
					in, err := pw.Seal(b.Context(), position(from), position(rows+n), "")
					must(b, err)
					from = rows + n
					sealed <- in
				}
				return n
			})
			close(sealed)
			must(b, <-done)
		})
	}
}

// BenchmarkCSVRecord is the encoding alone.
func BenchmarkCSVRecord(b *testing.B) {
	r := benchReader(b, benchFile(b, "json", 2000), "json")
	defer r.Close()
	batch, err := r.Read(b.Context())
	must(b, err)
	defer batch.Release()
	e, err := newCSVEncoder(&CSVConfig{Header: true}, connectors.Claim{})
	must(b, err)
	var out []byte
	rows := 0
	b.ReportAllocs()
	for b.Loop() {
		out = out[:0]
		for i := range batch.Len() {
			out, err = e.append(out, batch.Payload(i))
			must(b, err)
		}
		rows += batch.Len()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
}
