package file

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// codec is how a file is compressed. Each of them allows several members
// (gzip) or frames (zstd, lz4) one behind another in one file, which is the same
// as one with all their content: that is how an appending sink goes on.
type codec string

const (
	codecNone codec = "none"
	codecGzip codec = "gzip"
	codecZstd codec = "zstd"
	codecLZ4  codec = "lz4"
)

// codecOf is what the key says, or without one the extension of the path.
func codecOf(key, path string) (codec, error) {
	switch c := codec(key); c {
	case codecNone, codecGzip, codecZstd, codecLZ4:
		return c, nil
	case "":
	default:
		return codecNone, fmt.Errorf("unknown compression %q: use none, gzip, zstd or lz4", key)
	}
	for _, c := range []codec{codecGzip, codecZstd, codecLZ4} {
		if strings.HasSuffix(path, c.ext()) {
			return c, nil
		}
	}
	return codecNone, nil
}

// ext is the extension of files that are compressed so, with its dot.
func (c codec) ext() string {
	switch c {
	case codecGzip:
		return ".gz"
	case codecZstd:
		return ".zst"
	case codecLZ4:
		return ".lz4"
	}
	return ""
}

// compressor writes members. Close ends the one that is open; Reset begins the
// next one. A member without bytes in between is a valid, empty one.
type compressor interface {
	io.Writer
	Reset(io.Writer)
	Close() error
}

// newCompressor returns a compressor of c that is not codecNone. It works on the
// caller's goroutine; level and checksums are those of the format's own tools,
// but for the effort: files are written as fast as they arrive, so the cheap one.
func newCompressor(c codec) (compressor, error) {
	switch c {
	case codecGzip:
		return gzip.NewWriterLevel(nil, gzip.BestSpeed)
	case codecZstd:
		// A window of what is compressed at once: more would only be memory.
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(packBlocks*writeBytes))
	case codecLZ4:
		w := lz4.NewWriter(nil)
		err := w.Apply(lz4.BlockSizeOption(lz4.Block1Mb))
		return w, err
	}
	return nil, fmt.Errorf("%q compresses nothing", c)
}

// mostWindow is the largest zstd window that is read, which is also the most that
// zstd itself reads unless it is told to: a reader has to hold all of it.
const mostWindow = 128 << 20

// decompressor reads all members of a file, one after another. A file that ends
// inside a member gives io.ErrUnexpectedEOF behind the last bytes that can be had.
type decompressor interface {
	io.Reader
	// Reset begins anew at r, which has to stand at the start of a member.
	Reset(r io.Reader) error
	Close() error
}

// newDecompressor returns a decompressor of c that is not codecNone, at the start
// of r. An empty r is an empty file, without an error.
func newDecompressor(c codec, r io.Reader) (decompressor, error) {
	var d decompressor
	switch c {
	case codecGzip:
		d = &gzipReader{}
	case codecZstd:
		z, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(mostWindow))
		if err != nil {
			return nil, err
		}
		d = &zstdReader{Decoder: z}
	case codecLZ4:
		d = &lz4Reader{z: lz4.NewReader(nil)}
	default:
		return nil, fmt.Errorf("%q compresses nothing", c)
	}
	return d, d.Reset(r)
}

// gzipReader reads a header only when it is asked for bytes behind what it gave, so
// that an empty file is no error, and that the end of a member is not held back
// until the next one begins.
type gzipReader struct {
	in bufio.Reader
	z  gzip.Reader
	on bool
}

func (g *gzipReader) Reset(r io.Reader) error {
	g.in.Reset(r)
	g.on = false
	return nil
}

func (g *gzipReader) Read(p []byte) (int, error) {
	if !g.on {
		if _, err := g.in.Peek(1); err != nil {
			return 0, err // io.EOF: no member, or no more
		}
		if err := g.z.Reset(&g.in); err != nil {
			return 0, unexpected(err)
		}
		g.z.Multistream(false)
		g.on = true
	}
	n, err := g.z.Read(p)
	if err == io.EOF {
		g.on, err = false, nil
	}
	return n, err
}

func (g *gzipReader) Close() error { return nil }

type zstdReader struct{ *zstd.Decoder }

func (z *zstdReader) Read(p []byte) (int, error) {
	n, err := z.Decoder.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = fmt.Errorf("%w: to read it would need more than %d MiB of memory; compress it anew without --long or --ultra", err, mostWindow>>20)
	}
	return n, err
}

func (z *zstdReader) Close() error {
	z.Decoder.Close()
	return nil
}

type lz4Reader struct{ z *lz4.Reader }

func (l *lz4Reader) Reset(r io.Reader) error {
	l.z.Reset(r)
	return nil
}

func (l *lz4Reader) Read(p []byte) (int, error) { return l.z.Read(p) }

func (l *lz4Reader) Close() error {
	l.z.Reset(nil)
	return nil
}

// unexpected makes an end inside of something the error that it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
