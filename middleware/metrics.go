package middleware

import (
	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/route"
)

func metricsType() connectors.MiddlewareType {
	t := rule("metrics", func() any { return new(MetricsConfig) })
	t.Input = true
	return connectors.MiddlewareType{
		MiddlewareType: t,
		Ask: func(config any, s *connectors.Sending) {
			if config.(*MetricsConfig).side == route.Input {
				s.MeasureInput = true
			} else {
				s.MeasureOutput = true
			}
		},
	}
}

// MetricsConfig has no keys.
type MetricsConfig struct{ side route.Side }

// Summary implements route.Summarizer.
func (*MetricsConfig) Summary() string {
	return "Measures the calls to the endpoint it stands at, by route, partition and side: `mqb_endpoint_messages_total{result=\"ok\"|\"failed\"}`, `mqb_endpoint_errors_total` (calls that failed as a whole) and the histogram `mqb_endpoint_call_seconds` at `/metrics`. On an input a call is one read, and its time includes the wait for data; on an output it is an attempt to write, the commit of a transaction or the publication of a part. It costs two looks at the clock per call. What became of each record is counted without it, in `mqb_records_total`."
}

// Validate implements the decoder's check.
func (c *MetricsConfig) Validate(side route.Side) []error {
	c.side = side
	return nil
}
