//go:build !mqbhooks

// Package hook marks the places at which tests freeze, kill or disable the
// product. In a release build it is empty and costs nothing; the tag mqbhooks
// compiles it in.
package hook

// At marks a point between two steps of a protocol.
func At(string) {}

// Disabled reports whether a test has switched the named guard off. Never in a release.
func Disabled(string) bool { return false }
