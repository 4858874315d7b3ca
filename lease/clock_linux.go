package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boottime reads CLOCK_BOOTTIME: it goes on while the process is stopped and
// while the machine sleeps, so neither hides the end of a lease.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("lease: CLOCK_BOOTTIME: " + err.Error()) // in Linux since 2.6.39
	}
	return time.Duration(ts.Nano())
}
