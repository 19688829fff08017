package bulk

import "golang.org/x/sys/unix"

// hasEnded tells whether the peer of a socket has ended its side, or all of it, though bytes of it are still to be
// read; known: that can be told.
func hasEnded(fd uintptr) (ended, known bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0, err == nil || err == unix.EINTR
}
