package differential

import (
	"os"
	"path/filepath"
	"testing"
)

// codecs are other programs that write and read what mqb reads and writes.
var codecs = []struct {
	name, compression, ext string
	// several says that pack makes several members or frames.
	several bool
	pack    func(t *testing.T, in, out string)
	unpack  func(t *testing.T, in, out string) // nil: the format has another program
}{
	{"Python's gzip, two members", "gzip", ".gz", true,
		func(t *testing.T, in, out string) { python(t, "gzip", in, out) },
		func(t *testing.T, in, out string) { python(t, "gunzip", in, out) }},
	{"gzip", "gzip", ".gz", false,
		func(t *testing.T, in, out string) { keep(t, out, tool(t, "gzip", "-1", "-c", in)) },
		func(t *testing.T, in, out string) { keep(t, out, tool(t, "gzip", "-dc", in)) }},
	{"zstd", "zstd", ".zst", false,
		func(t *testing.T, in, out string) { tool(t, "zstd", "-q", "-1", in, "-o", out) },
		func(t *testing.T, in, out string) { tool(t, "zstd", "-q", "-d", in, "-o", out) }},
	{"zstd, a long window, two frames", "zstd", ".zst", true,
		func(t *testing.T, in, out string) {
			a, b := halves(t, in)
			keep(t, out, append(tool(t, "zstd", "-q", "-6", "--long=23", "-c", a), tool(t, "zstd", "-q", "-3", "--no-check", "-c", b)...))
		}, nil},
	{"lz4", "lz4", ".lz4", false,
		func(t *testing.T, in, out string) { tool(t, "lz4", "-q", in, out) },
		func(t *testing.T, in, out string) { tool(t, "lz4", "-q", "-d", in, out) }},
	{"lz4, small blocks that depend on each other, two frames", "lz4", ".lz4", true,
		func(t *testing.T, in, out string) {
			a, b := halves(t, in)
			keep(t, out, append(tool(t, "lz4", "-q", "-B4", "-BD", "-BX", "-c", a), tool(t, "lz4", "-q", "-4", "--content-size", "-c", b)...))
		}, nil},
}

func keep(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// halves cuts a file in the middle of wherever that is.
func halves(t *testing.T, path string) (a, b string) {
	data := content(t, path)
	return written(t, data[:len(data)/2]), written(t, data[len(data)/2:])
}

// TestFilesCompressedByOtherProgramsAreReadByteForByte: with members and frames
// behind one another, and with settings that are not the default.
func TestFilesCompressedByOtherProgramsAreReadByteForByte(t *testing.T) {
	plain := fixture(t, "utf8.jsonl")
	for _, c := range codecs {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := filepath.Join(t.TempDir(), "in"+c.ext)
			c.pack(t, plain, in)
			out, files := outputs[0].make(t, "format: raw", "")
			mqb(t, file(in, "format: raw, compression: "+c.compression), out)
			sameBytes(t, plain, joined(t, files()))
		})
	}
}

// TestFilesCompressedByMqbAreReadByOtherProgramsByteForByte takes one program for
// each format.
func TestFilesCompressedByMqbAreReadByOtherProgramsByteForByte(t *testing.T) {
	plain := fixture(t, "utf8.jsonl")
	for _, c := range codecs {
		if c.unpack == nil {
			continue
		}
		for _, o := range outputs {
			t.Run(o.name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				out, files := o.make(t, "format: raw, compression: "+c.compression, c.ext)
				mqb(t, file(plain, "format: raw"), out, o.roll)
				var all []string
				for _, p := range files() {
					one := filepath.Join(t.TempDir(), "one")
					c.unpack(t, p, one)
					all = append(all, one)
				}
				sameBytes(t, plain, joined(t, all))
			})
		}
	}
}

// TestCompressedCSVHasItsHeaderInTheFirstMemberOnly reads several members as one
// table.
func TestCompressedCSVHasItsHeaderInTheFirstMemberOnly(t *testing.T) {
	for _, c := range codecs {
		if !c.several {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := filepath.Join(t.TempDir(), "in.csv"+c.ext)
			c.pack(t, fixture(t, "excel.csv"), in)
			out, files := outputs[0].make(t, "format: raw", "")
			mqb(t, file(in, "format: csv"), out)
			sameValues(t, fixture(t, "table.jsonl"), joined(t, files()))
		})
	}
}
