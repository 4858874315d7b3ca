//go:build !linux

package lease

import "time"

var started = time.Now()

// Boottime is the monotonic clock here. It goes on while the process is stopped;
// whether it does while the machine sleeps depends on the system.
func Boottime() time.Duration { return time.Since(started) + 1 }
