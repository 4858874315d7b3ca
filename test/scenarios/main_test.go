package scenarios

import (
	"testing"

	"github.com/mqbridge/mqb/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
