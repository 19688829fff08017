//go:build !linux

package search

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// pairOfSockets makes sockets that are closed in every process that starts meanwhile.
func pairOfSockets() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds, err
}
