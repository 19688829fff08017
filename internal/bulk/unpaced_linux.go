package bulk

import (
	"net"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// plain is the congestion control that every kernel has, and that every process may choose unless the administrator
// says otherwise. See tcp(7), tcp_allowed_congestion_control.
const plain = "reno"

// paces tells whether a congestion control paces: each version of BBR does.
func paces(control string) bool { return strings.HasPrefix(control, "bbr") }

// replacePacing gives a socket the plain control, if it has one that paces and can get it again. It returns that one;
// "": all is as it was.
func replacePacing(raw syscall.RawConn) (before string) {
	_ = raw.Control(func(fd uintptr) {
		control, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if err != nil || !paces(control) || !allowed(control) || setControl(fd, plain) != nil {
			return
		}
		before = control
	})
	return before
}

// restore gives a connection the control that its listener had, unless its route has chosen another one than the plain
// one, or one that is locked.
func restore(c *net.TCPConn, control string) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if has, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil &&
			has == plain {
			_ = setControl(fd, control)
		}
	})
}

func setControl(fd uintptr, control string) error {
	return unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, control)
}

var permitted sync.Map // bool, by congestion control

// allowed tells whether this process may choose a congestion control: the system's default is one that it has without
// having chosen it.
func allowed(control string) bool {
	if known, ok := permitted.Load(control); ok {
		return known.(bool)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	may := setControl(uintptr(fd), plain) == nil && setControl(uintptr(fd), control) == nil
	permitted.Store(control, may)
	return may
}
