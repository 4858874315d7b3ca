package scenarios

import (
	"flag"
	"testing"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of these wait for leases to end, so that more of them than there are
	// cores run side by side.
	if !given("test.parallel") {
		_ = flag.Set("test.parallel", "4")
	}
	harness.Main(m)
}

func given(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}
