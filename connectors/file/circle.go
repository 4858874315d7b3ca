package file

import (
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Reads reports whether this input takes in what the output writes, which would
// never come to an end. It goes by the names alone, so that every node says the same.
func (c *Config) Reads(output any) bool {
	out, ok := output.(*Config)
	if !ok || isStdin(c.Path) || out.Path == stdout || out.Path == "/dev/stdout" {
		return false
	}
	name := strings.ReplaceAll(out.Path, partitionToken, "x")
	if out.NameBy == "source_position" {
		codec, _ := codecOf(out.Compression, out.Path) // one that is none is refused elsewhere
		name = filepath.Join(name, partName(partStem+"x-", 0, 0, (&sink{cfg: out, codec: codec}).ext()))
	}
	from, to := absolute(c.Path), absolute(name)
	if from == to {
		return true
	}
	if strings.HasPrefix(filepath.Base(to), ".") {
		return false // patterns leave hidden files out
	}
	matches, err := doublestar.Match(from, to)
	return err == nil && matches
}

// absolute is a path with slashes, from the root.
func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return filepath.ToSlash(filepath.Clean(name))
}
