package bulk

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// CanHand reports whether open files can be passed to a connection's peer. This needs a Unix socket.
func CanHand(c net.Conn) bool {
	if b, ok := c.(*Conn); ok {
		c = b.Socket
	}
	_, ok := c.(*net.UnixConn)
	return ok
}

// Hand sends p and, with its first byte, an open file (see Take). If the error is errors.ErrUnsupported, nothing was
// sent, and this file cannot be passed: it is not read-only, or too many files are in flight.
func (c *Conn) Hand(p []byte, f *os.File) error {
	source, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := source.Control(func(fd uintptr) { err = c.hand(p, int(fd)) })
	return errors.Join(cerr, err)
}

func (c *Conn) hand(p []byte, file int) error {
	flags, err := unix.FcntlInt(uintptr(file), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		return fmt.Errorf("%w: the file is not open for reading only", errors.ErrUnsupported)
	}
	if err := c.begin(); err != nil {
		return err
	}
	rights, n := unix.UnixRights(file), 0
	werr := c.raw.Write(func(fd uintptr) bool {
		for {
			n, err = unix.SendmsgN(int(fd), p, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	c.end(int64(n))
	switch {
	case werr != nil:
		return werr
	case err == unix.ETOOMANYREFS:
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	case err != nil:
		return os.NewSyscallError("sendmsg", err)
	case n < len(p):
		_, err = c.Write(p[n:])
	}
	return err
}

// ErrFileLost is the error of Take if a file was sent and did not arrive.
var ErrFileLost = errors.New("an open file did not arrive: this process may not use it, or has too many")

// Take reads what Hand has sent: some bytes, and a file if one came with them. Other reads lose the file.
func (c *Conn) Take(p []byte) (n int, file *os.File, err error) {
	var control [24]byte // has room for one descriptor; the kernel closes further ones
	var length, flags int
	rerr := c.raw.Read(func(fd uintptr) bool {
		for {
			n, length, flags, _, err = unix.Recvmsg(int(fd), p, control[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case rerr != nil:
		return 0, nil, rerr
	case err != nil:
		return 0, nil, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return 0, nil, io.EOF
	case length == 0 && flags&unix.MSG_CTRUNC == 0:
		return n, nil, nil
	}
	file, err = handed(control[:length])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		if file != nil {
			file.Close()
		}
		err = ErrFileLost
	}
	if err != nil {
		return 0, nil, err
	}
	return n, file, nil
}

// handed returns the file in control messages; nil if they have none.
func handed(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			all = append(all, fds...)
		}
	}
	if len(all) == 1 {
		return os.NewFile(uintptr(all[0]), "handed"), nil
	}
	for _, fd := range all {
		_ = unix.Close(fd)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return nil, errors.New("several files at once")
}
