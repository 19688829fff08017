package bulk

import (
	"net"
	"net/netip"
	"syscall"
)

// Unpaced has a TCP listener's connections whose peers are on this machine do without a congestion control that paces
// what is sent, such as BBR, where that is the system's: nothing on the way can be congested, and each few packets of
// gigabytes a second wait for a timer, whose interrupts hold up what else that CPU has to do. docs/decisions/0005 has
// the figures. Connections to other machines have the one that the listener had, or another one that their route chose.
//
// A connection that was paced once is paced for good, whatever it is told later. So those of the listener begin
// without, and are told otherwise before they send anything if their peer is elsewhere. For the same reason it is
// called right after the socket listens; and once for each socket, as it cannot tell its own choice from another's.
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

// within tells whether both ends of a connection are on this machine.
func within(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	r, ok := remote.(*net.TCPAddr)
	return ok && (r.IP.IsLoopback() || len(r.IP) > 0 && r.IP.Equal(l.IP))
}
