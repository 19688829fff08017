package search

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Sockets to a process that searches are nobody else's: one that inherited an end would hide that the process has gone.
func TestSocketsAreNotInherited(t *testing.T) {
	t.Parallel()
	fds, err := pairOfSockets()
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%#x, %v", flags, err)
		}
		unix.Close(fd)
	}
}
