//go:build !race

package raft

import "testing"

// The library writes a peer's new address while its answers are handled
// (hashicorp/raft#681): it reads only the name there, which stays the same, but the
// race detector is right to complain.
func TestAFullRestartAtNewAddressesKeepsEverything(t *testing.T) {
	t.Parallel()
	fullRestart(t, true)
}
