package null

import (
	"testing"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/sinktest"
	"github.com/mqbridge/mqb/route"
)

func TestSink(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{New: func(*testing.T) *sinktest.Subject {
		return &sinktest.Subject{Open: func(t *testing.T) connectors.Sink {
			s, err := Type().NewSink(new(Config), &route.Spec{}, connectors.Env{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}}
	}})
}
