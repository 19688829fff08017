package receivepack

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is when the machine was started; zero if that cannot be told.
func bootTime() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(now.Nano()))
}
