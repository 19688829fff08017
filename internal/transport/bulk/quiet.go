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
	cerr := raw.Control(func(fd uintptr) {
		var b [1]byte
		var n int
		n, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == nil && n == 0:
			err = errors.New("closed by the peer")
		case err == nil:
			err = errors.New("unexpected bytes")
		case err == syscall.EAGAIN || err == syscall.EINTR:
			err = nil
		}
	})
	return errors.Join(cerr, err)
}
