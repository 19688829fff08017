package bulk

import "golang.org/x/sys/unix"

// hasEnded reports whether the peer of a socket has closed its side, or all of it, even if some of its bytes are
// unread. known is false if that cannot be determined.
func hasEnded(fd uintptr) (ended, known bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0, err == nil || err == unix.EINTR
}
