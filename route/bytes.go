package route

import (
	"fmt"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"
)

// Bytes is a size in a configuration: a plain number of bytes, or a number with
// a unit ("64MiB", "1MB"; binary units count 1024, decimal ones 1000).
type Bytes int64

// ParseBytes reads a size.
func ParseBytes(s string) (Bytes, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		return Bytes(n), nil
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size", s)
	}
	return Bytes(n), nil
}

// String writes the size with a binary unit where that is exact.
func (b Bytes) String() string {
	for _, u := range []struct {
		n    Bytes
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if b >= u.n && b%u.n == 0 {
			return strconv.FormatInt(int64(b/u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
