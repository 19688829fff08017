package bulk

import (
	"net"
	"net/netip"
	"syscall"
)

// Unpaced has a TCP listener's connections whose peers are on this machine do without a congestion control that paces what is sent, such as BBR, where that is the
// system's: nothing on the way can be congested, and each few packets of gigabytes a second wait for a timer, whose interrupts hold up what else that CPU has to do.
// docs/decisions/0005 has the figures. Connections to other machines have what the system or their route says. Listen calls it.
//
// A connection that was paced once is paced for good, whatever it is told later. So those of the listener begin without, and are told otherwise before they send
// anything if their peer is elsewhere.
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
	elsewhere := unpace(raw)
	if elsewhere == "" {
		return l
	}
	return &unpaced{l, elsewhere}
}

// UnpacedDial is a net.Dialer's Control that does the same for a connection to this machine.
func UnpacedDial(_, address string, raw syscall.RawConn) error {
	if to, err := netip.ParseAddrPort(address); err == nil && to.Addr().Unmap().IsLoopback() {
		unpace(raw)
	}
	return nil
}

type unpaced struct {
	net.Listener
	elsewhere string // the congestion control for other machines
}

func (l *unpaced) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok && !within(t.LocalAddr(), t.RemoteAddr()) {
		pace(t, l.elsewhere)
	}
	return c, nil
}

// within tells whether both ends of a connection are on this machine.
func within(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	r, ok := remote.(*net.TCPAddr)
	return ok && (r.IP.IsLoopback() || len(r.IP) > 0 && r.IP.Equal(l.IP))
}
