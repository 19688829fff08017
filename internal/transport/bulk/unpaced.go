package bulk

import (
	"net"
	"net/netip"
	"syscall"
)

// Unpaced returns a listener whose connections from this machine do not use a congestion control with pacing, even if
// it is the default of the system (BBR, for example). A path within the machine is never congested. Pacing delays every
// few packets by a timer, whose interrupts delay other work on that CPU. docs/decisions/0005 has the figures.
// Connections from other machines keep the congestion control of the listener or of their route.
//
// Pacing cannot be turned off on a connection that has used it. So the listener's connections begin without pacing, and
// those from other machines get it back before anything is sent. For the same reason Unpaced must be called right after
// the socket listens, and only once for each socket, because it cannot distinguish its own setting from another one.
func Unpaced(l net.Listener) net.Listener {
	if _, tcp := l.Addr().(*net.TCPAddr); !tcp {
		return l
	}
	c, ok := l.(syscall.Conn)
	if !ok {
		return l
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return l
	}
	elsewhere := replacePacing(raw)
	if elsewhere == "" {
		return l
	}
	return &unpaced{l, elsewhere, within}
}

// UnpacedDial is a net.Dialer's Control that does the same for a connection to this machine.
func UnpacedDial(_, address string, raw syscall.RawConn) error {
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().Unmap().IsLoopback() {
		replacePacing(raw)
	}
	return nil
}

type unpaced struct {
	net.Listener
	elsewhere string // the congestion control for other machines
	within    func(local, remote net.Addr) bool
}

func (l *unpaced) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok && !l.within(t.LocalAddr(), t.RemoteAddr()) {
		restore(t, l.elsewhere)
	}
	return c, nil
}

// within reports whether both ends of a connection are on this machine.
func within(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	r, ok := remote.(*net.TCPAddr)
	return ok && (r.IP.IsLoopback() || len(r.IP) > 0 && r.IP.Equal(l.IP))
}
