//go:build !linux

package receivepack

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is when the machine was started; zero if that cannot be told.
func bootTime() time.Time {
	at, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return time.Time{}
	}
	return time.Unix(at.Unix())
}
