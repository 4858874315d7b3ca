//go:build !mqbnofence

package checkpoint

// Fenced is false only in a build that exists to prove that the fence matters:
// with the tag mqbnofence, epoch, run and version are not compared, and a test
// must see records doubled.
const Fenced = true
