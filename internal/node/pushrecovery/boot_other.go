//go:build !linux

package pushrecovery

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns when the machine was booted. It returns the zero time if that is unknown.
func bootTime() time.Time {
	at, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return time.Time{}
	}
	return time.Unix(at.Unix())
}
