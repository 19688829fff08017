package pushrecovery

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns when the machine was booted. It returns the zero time if that is unknown.
func bootTime() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(now.Nano()))
}
