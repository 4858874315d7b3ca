package file

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/message"
)

func pack(t *testing.T, c codec, members ...string) []byte {
	t.Helper()
	z, err := newCompressor(c)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, m := range members {
		z.Reset(&out)
		if _, err := z.Write([]byte(m)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func unpack(t *testing.T, c codec, b []byte) (string, error) {
	t.Helper()
	d, err := newDecompressor(c, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := io.ReadAll(d)
	return string(got), err
}

var codecs = []codec{codecGzip, codecZstd, codecLZ4}

func TestMembersOneBehindAnother(t *testing.T) {
	t.Parallel()
	var long bytes.Buffer
	for i := range 300_000 {
		fmt.Fprintf(&long, `{"id":%d,"x":%d}`+"\n", i, i*7919%100_003)
	}
	for _, c := range codecs {
		for name, members := range map[string][]string{
			"one": {"a\n"}, "several": {"a\n", long.String(), "c\n", ""}, "empty ones": {"", "a\n", "", "b\n"}, "none": nil,
		} {
			var want string
			for _, m := range members {
				want += m
			}
			b := pack(t, c, members...)
			got, err := unpack(t, c, b)
			if err != nil || got != want {
				t.Errorf("%s, %s: %d bytes and %v, want %d", c, name, len(got), err, len(want))
			}
			d, _ := newDecompressor(c, iotest.HalfReader(bytes.NewReader(b)))
			if again, err := io.ReadAll(d); err != nil || string(again) != want {
				t.Errorf("%s, %s, in small reads: %d bytes and %v, want %d", c, name, len(again), err, len(want))
			}
			_ = d.Close()
		}
	}
}

// A file that ends inside a member is never taken for a shorter one.
func TestACompressedFileThatWasCutIsNotAShorterOne(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	for i := range 120_000 {
		fmt.Fprintf(&text, `{"id":%d,"x":%d}`+"\n", i, i*7919%100_003)
	}
	for _, c := range codecs {
		first := pack(t, c, "first\n")
		b := append(bytes.Clone(first), pack(t, c, text.String())...)
		step := max(1, (len(b)-len(first))/20)
		between := map[int]bool{} // where a block of lz4 begins: nothing is missing but the end
		if c == codecLZ4 {
			for at := len(first) + 7; at < len(b)-8; {
				between[at] = true
				at += 4 + int(binary.LittleEndian.Uint32(b[at:])&^(1<<31))
			}
			if len(between) < 3 {
				t.Fatalf("%d blocks of lz4 found", len(between))
			}
		}
		for n := 1; n < len(b); n++ {
			if n == len(first) || n > len(first)+32 && n < len(b)-12 && n%step != 0 && !between[n] {
				continue
			}
			if got, err := unpack(t, c, b[:n]); err == nil {
				t.Fatalf("%s cut to %d of %d bytes: %d bytes of text without an error", c, n, len(b), len(got))
			}
		}
	}
}

func TestCodecFromTheKeyOrThePath(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		key, path string
		want      codec
	}{
		{"", "a.jsonl", codecNone}, {"", "a.jsonl.gz", codecGzip}, {"", "a.zst", codecZstd}, {"", "x/a.csv.lz4", codecLZ4},
		{"none", "a.gz", codecNone}, {"zstd", "a.gz", codecZstd}, {"lz4", "a", codecLZ4},
	} {
		if got, err := codecOf(x.key, x.path); err != nil || got != x.want {
			t.Errorf("%q %q: %v, %v, want %v", x.key, x.path, got, err, x.want)
		}
	}
	if _, err := codecOf("brotli", "a"); err == nil {
		t.Error("brotli was taken")
	}
}

// A frame says itself how much of what it holds has to be kept to read it, and
// compressed data is small: a few files could ask for all the memory there is.
func TestAFrameThatAsksForTooMuchMemoryIsRefused(t *testing.T) {
	t.Parallel()
	// Magic number, no content size, a window of 2^(10+19) bytes; then a raw block.
	frame := "\x28\xb5\x2f\xfd\x00\x98" + "\x11\x00\x00" + "a\n"
	r := newRig(t, Config{Format: "raw", Compression: "zstd"}, frame)
	r.spec.ExitOnEmpty = true
	_, _, err := drain(t, r.mustOpen(message.Position{}))
	if connectors.Classify(err) != connectors.ClassData || !strings.Contains(err.Error(), "window size exceeded: to read it would need more than 128 MiB") {
		t.Fatal(err)
	}
	frame = "\x28\xb5\x2f\xfd\x00\x88" + "\x11\x00\x00" + "a\n" // 128 MiB
	newRig(t, Config{Format: "raw", Compression: "zstd"}, frame).all("a")
}
