package bulk

import (
	"net"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// plain is a congestion control that every kernel has. Every process may choose it unless the administrator forbids it
// (tcp_allowed_congestion_control, tcp(7)).
const plain = "reno"

// paces reports whether a congestion control uses pacing. Each version of BBR does.
func paces(control string) bool { return strings.HasPrefix(control, "bbr") }

// replacePacing replaces a congestion control with pacing by the plain one, if it can be restored later. It returns the
// previous control, or "" if nothing was changed.
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

// restore sets the listener's control on a connection, unless its route has selected or locked another control.
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

// allowed reports whether this process may choose a congestion control. The system's default need not be allowed.
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
