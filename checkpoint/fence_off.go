//go:build mqbnofence

package checkpoint

// Fenced is off: this build loses and doubles records on purpose.
const Fenced = false
