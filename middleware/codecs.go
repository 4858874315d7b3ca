package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// bomb is the error of a payload that becomes larger than limit.
func bomb(limit int) error {
	return fmt.Errorf("becomes larger than %d bytes (max_decompressed_bytes)", limit)
}

type zstdEncoder struct{ e *zstd.Encoder }

func newZstd() zstdEncoder {
	// The fastest level: on payloads of a few hundred bytes the next one takes twice
	// as long and finds nothing more.
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true), zstd.WithWindowSize(1<<20), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic("middleware: zstd: " + err.Error()) // of the options above
	}
	return zstdEncoder{e}
}

func (z zstdEncoder) convert(dst, src []byte) ([]byte, error) { return z.e.EncodeAll(src, dst), nil }
func (z zstdEncoder) close()                                  { _ = z.e.Close() }

type zstdDecoder struct {
	d     *zstd.Decoder
	limit int
	out   []byte
	wide  *streamDecoder // for windows beyond limit, from the first one on
}

// maxWindow is what a frame may declare as its window however small the limit is: an
// encoder that is not told the length of a payload declares that of its level, up to
// 8 MiB.
const maxWindow = 16 << 20

func newUnzstd(limit int) *zstdDecoder {
	return &zstdDecoder{d: zstdReader(zstd.WithDecoderMaxMemory(uint64(limit))), limit: limit}
}

func zstdReader(bound zstd.DOption) *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), bound)
	if err != nil {
		panic("middleware: zstd: " + err.Error())
	}
	return d
}

// convertWide converts a frame whose window is larger than the limit, which the
// decoder in one piece takes for what comes out of it.
func (z *zstdDecoder) convertWide(dst, src []byte) ([]byte, error) {
	if z.wide == nil {
		d := zstdReader(zstd.WithDecoderMaxWindow(maxWindow))
		z.wide = &streamDecoder{r: d, reset: d.Reset, limit: z.limit}
	}
	dst, err := z.wide.convert(dst, src)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = fmt.Errorf("asks for a window of more than %d bytes", max(z.limit, maxWindow))
	}
	return dst, err
}

func (z *zstdDecoder) convert(dst, src []byte) ([]byte, error) {
	if len(src) == 0 {
		return dst, io.ErrUnexpectedEOF
	}
	// The decoder counts what its destination already holds, so it gets one of its
	// own.
	out, err := z.d.DecodeAll(src, z.out[:0])
	if cap(out) <= maxSpare {
		z.out = out
	}
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return z.convertWide(dst, src)
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), len(out) > z.limit:
		return dst, bomb(z.limit)
	case err != nil:
		return dst, err
	}
	return append(dst, out...), nil
}

func (z *zstdDecoder) close() {
	z.d.Close()
	if z.wide != nil {
		z.wide.r.(*zstd.Decoder).Close()
	}
}

// sink collects what an encoder writes.
type sink struct{ b []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}

// streamEncoder compresses through a writer.
type streamEncoder struct {
	to sink
	w  interface {
		io.WriteCloser
		Reset(io.Writer)
	}
}

// gzipLevel: from level 3 on, clearing the tables for each payload takes ten times
// as long as compressing one of a few hundred bytes.
const gzipLevel = 2

func newGzip() *streamEncoder {
	w, err := gzip.NewWriterLevel(io.Discard, gzipLevel)
	if err != nil {
		panic("middleware: gzip: " + err.Error())
	}
	return &streamEncoder{w: w}
}

func newLz4() *streamEncoder {
	w := lz4.NewWriter(io.Discard)
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1)); err != nil {
		panic("middleware: lz4: " + err.Error())
	}
	return &streamEncoder{w: w}
}

func (s *streamEncoder) convert(dst, src []byte) ([]byte, error) {
	s.to.b = dst
	s.w.Reset(&s.to)
	_, err := s.w.Write(src)
	if err = errors.Join(err, s.w.Close()); err != nil {
		return dst, err
	}
	dst, s.to.b = s.to.b, nil
	return dst, nil
}

func (*streamEncoder) close() {}

// streamDecoder decompresses through a reader, limit bytes and one more at most.
type streamDecoder struct {
	from  bytes.Reader
	r     io.Reader
	reset func(io.Reader) error
	limit int
}

func newGunzip(limit int) *streamDecoder {
	r := new(gzip.Reader)
	return &streamDecoder{r: r, reset: r.Reset, limit: limit}
}

func newUnlz4(limit int) *streamDecoder {
	r := lz4.NewReader(nil)
	if err := r.Apply(lz4.ConcurrencyOption(1)); err != nil {
		panic("middleware: lz4: " + err.Error())
	}
	return &streamDecoder{r: r, reset: func(from io.Reader) error { r.Reset(from); return nil }, limit: limit}
}

func (s *streamDecoder) convert(dst, src []byte) ([]byte, error) {
	if len(src) == 0 {
		return dst, io.ErrUnexpectedEOF
	}
	s.from.Reset(src)
	if err := s.reset(&s.from); err != nil {
		return dst, err
	}
	out, mark := dst, len(dst)
	for {
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n, err := s.r.Read(out[len(out):cap(out)])
		out = out[:len(out)+n]
		if len(out)-mark > s.limit {
			return out[:mark], bomb(s.limit)
		}
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out[:mark], err
		}
	}
}

func (*streamDecoder) close() {}
