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
	if !ok || isStdin(c.Path) || isStdout(out.Path) {
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
	if root, pattern := doublestar.SplitPattern(from); hidden(strings.TrimPrefix(to, root)) && !hidden(pattern) {
		return false // wildcards leave out what is hidden, and all in it
	}
	matches, err := doublestar.Match(from, to)
	return err == nil && matches
}

// hidden reports whether a part of the path begins with a dot.
func hidden(name string) bool { return strings.Contains("/"+name, "/.") }

// absolute is a path with slashes, from the root.
func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return filepath.ToSlash(filepath.Clean(name))
}
