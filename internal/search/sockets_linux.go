package search

import "golang.org/x/sys/unix"

// pairOfSockets makes sockets that are closed in every process that starts meanwhile: one that kept an end would hide
// that the other has gone.
func pairOfSockets() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}
