package bulk

import (
	"errors"
	"syscall"
)

// Quiet returns an error if the peer of an idle connection has closed it, or has sent unexpected bytes. It does not
// wait, and reads nothing from the connection.
func Quiet(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return NewProbe(raw).Quiet()
}

// Probe is Quiet for a connection that is asked again and again. Not safe for concurrent use.
type Probe struct {
	raw  syscall.RawConn
	look func(fd uintptr)
	byte [1]byte
	err  error
}

// NewProbe makes the probe of a connection.
func NewProbe(raw syscall.RawConn) *Probe {
	p := &Probe{raw: raw}
	p.look = func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), p.byte[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == nil && n == 0:
			p.err = errors.New("closed by the peer")
		case err == nil:
			p.err = errors.New("unexpected bytes")
		case err != syscall.EAGAIN && err != syscall.EINTR:
			p.err = err
		default:
			p.err = nil
		}
	}
	return p
}

// Quiet is the function of that name.
func (p *Probe) Quiet() error {
	if err := p.raw.Control(p.look); err != nil {
		return err
	}
	return p.err
}
