//go:build mqbhooks && !mqbnofence

package hook

const unguarded = false
