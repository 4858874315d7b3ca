// Package middleware holds what can stand between a source and a sink, one file
// each.
package middleware

import "github.com/mqbridge/mqb/connectors"

// Types lists every middleware of this package, for a registry.
func Types() []connectors.MiddlewareType {
	return []connectors.MiddlewareType{bufferType(), compressionType(), delayType(), dlqType(), filterType(), idType(), limiterType(), metricsType(), retryType(), timeoutType(), transformType()}
}
