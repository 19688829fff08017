package bulk

import (
	"errors"
	"syscall"
)

// Quiet tells whether an idle connection is as it was left. The error says that its peer has closed it, or sent what nobody asked for. It
// does not wait, and takes nothing from the connection.
func Quiet(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == nil && n == 0:
			failed = errors.New("closed by the peer")
		case err == nil:
			failed = errors.New("bytes that nobody asked for")
		case err != syscall.EAGAIN && err != syscall.EINTR:
			failed = err
		}
	})
	return errors.Join(err, failed)
}
