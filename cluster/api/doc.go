// Package api is the HTTP API of a node: JSON under /v1, and /healthz, /readyz
// and /metrics. Any node answers for the whole cluster, since all of it comes
// from the coordinator.
package api
