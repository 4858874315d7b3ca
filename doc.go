// Package mqb is a message bridge: routes read one input, run middlewares and
// write one output, on a cluster of nodes, and state, prove and keep the
// strongest delivery guarantee that their endpoints allow.
//
// The commands are cmd/mqbd (a node) and cmd/mqbctl (the operator's tool).
package mqb
