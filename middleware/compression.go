package middleware

import (
	"context"
	"fmt"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
	"github.com/mqbridge/mqb/route"
)

func compressionType() connectors.MiddlewareType {
	return connectors.MiddlewareType{
		MiddlewareType: route.MiddlewareType{
			Name:      "compression",
			NewConfig: func() any { return new(CompressionConfig) },
			Capabilities: func(config any) route.MiddlewareCapabilities {
				c := route.MiddlewareCapabilities{Shape: route.ShapeMap, ReplaySame: true}
				if config.(*CompressionConfig).OnError == compressionDrop {
					c.Shape = route.ShapeDrop
				}
				return c
			},
			Input: true, Output: true,
		},
		New: func(config any, spec *route.Spec) (func() connectors.Middleware, error) {
			c, stop := config.(*CompressionConfig), spec.OnError == route.OnErrorStop
			if c.Algorithm == "none" {
				return func() connectors.Middleware { return unchanged{} }, nil
			}
			return func() connectors.Middleware { return newCompression(c, stop) }, nil
		},
	}
}

// The values of on_error.
const (
	compressionFail = "fail"
	compressionDrop = "drop"
)

// CompressionConfig configures compression.
type CompressionConfig struct {
	Algorithm       string      `yaml:"algorithm" default:"zstd" enum:"zstd|gzip|lz4|none" doc:"How payloads are compressed; none leaves them as they are."`
	MaxDecompressed route.Bytes `yaml:"max_decompressed_bytes" default:"16MiB" min:"1" max:"1GiB" doc:"A payload that would become larger is refused, however small it came: it is taken for a bomb."`
	OnError         string      `yaml:"on_error" default:"fail" enum:"fail|drop" doc:"What becomes of a payload that cannot be decompressed. fail: the route's on_error decides. drop: it is dropped and counted."`

	side route.Side
}

// Summary implements route.Summarizer.
func (*CompressionConfig) Summary() string {
	return "Payloads are decompressed on an input and compressed on an output, each as a frame of its own that any tool for the format reads. A Kafka tombstone stays one."
}

// Validate implements the decoder's check.
func (c *CompressionConfig) Validate(side route.Side) []error {
	c.side = side
	return nil
}

// maxBatch bounds what the payloads of one batch become together: they are held
// outside of the process's budget, and one route's input must not cost the node.
const maxBatch = 256 << 20

// unchanged passes batches on.
type unchanged struct{}

func (unchanged) Process(context.Context, *message.Batch) error { return nil }
func (unchanged) Close() error                                  { return nil }

// codec appends the other form of src to dst; with an error dst is returned as it
// came. Encoders and decoders are kept between calls: making one costs more than
// most payloads do. Not safe for concurrent use.
type codec interface {
	convert(dst, src []byte) ([]byte, error)
	close()
}

// compression keeps its codec for its life; one worker uses it.
type compression struct {
	codec      codec
	decompress bool
	drop, stop bool
	spare      []byte // the second arena, see message.Batch.Rewrite
}

func newCompression(c *CompressionConfig, stop bool) *compression {
	m := &compression{decompress: c.side == route.Input, drop: c.OnError == compressionDrop, stop: stop}
	switch {
	case c.Algorithm == "gzip" && m.decompress:
		m.codec = newGunzip(int(c.MaxDecompressed))
	case c.Algorithm == "gzip":
		m.codec = newGzip()
	case c.Algorithm == "lz4" && m.decompress:
		m.codec = newUnlz4(int(c.MaxDecompressed))
	case c.Algorithm == "lz4":
		m.codec = newLz4()
	case m.decompress:
		m.codec = newUnzstd(int(c.MaxDecompressed))
	default:
		m.codec = newZstd()
	}
	return m
}

// Process converts each payload. One that cannot be converted keeps its bytes for
// whoever takes it away.
func (m *compression) Process(_ context.Context, b *message.Batch) error {
	var bad connectors.RowsError
	tooMuch := false
	m.spare = b.Rewrite(m.spare, func(dst []byte, i int) []byte {
		src := b.Payload(i)
		tooMuch = tooMuch || len(dst) > maxBatch
		if len(bad.Rows) > 0 && m.stop && !m.drop || tooMuch || isTombstone(b, i) {
			return append(dst, src...)
		}
		dst, err := m.codec.convert(dst, src)
		if err != nil {
			bad.Rows = append(bad.Rows, connectors.RowError{Index: i, Err: fmt.Errorf("compression: a payload of %d bytes: %w", len(src), err)})
			dst = append(dst, src...)
		}
		return dst
	})
	if cap(m.spare) > maxSpare {
		m.spare = nil
	}
	switch {
	case tooMuch:
		return connectors.Permanent(fmt.Errorf("compression: the %d payloads of a batch become more than %d MiB", b.Len(), maxBatch>>20), "a smaller batch_size, or a smaller max_decompressed_bytes if they are bombs")
	case len(bad.Rows) == 0:
		return nil
	case !m.drop:
		return &bad
	}
	rows := make([]int, len(bad.Rows))
	for i, r := range bad.Rows {
		rows[i] = r.Index
	}
	b.DropRows(rows)
	return nil
}

// tombstoneKey marks a message that deletes its key: its empty payload is not a
// text of no length, and would be none any more if it were compressed.
const tombstoneKey = "mqb.kafka.tombstone"

func isTombstone(b *message.Batch, i int) bool {
	if len(b.Payload(i)) > 0 {
		return false
	}
	_, ok := b.Meta(i, tombstoneKey)
	return ok
}

// Close frees the codec.
func (m *compression) Close() error {
	m.codec.close()
	return nil
}
