package loadgen

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// dropper discards received bytes. With plain TCP the kernel drops them (tcp(7), MSG_TRUNC) without copying.
type dropper struct {
	raw *rawDrop // nil: read into buf
	c   net.Conn
	buf []byte
}

// rawDrop has the arguments and results of one receive, so that the function for RawConn is allocated once.
type rawDrop struct {
	conn syscall.RawConn
	recv func(fd uintptr) bool
	want int
	got  int
	err  error
}

func newDropper(c net.Conn) dropper {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return dropper{c: c, buf: make([]byte, 128<<10)}
	}
	rc, err := tc.SyscallConn()
	if err != nil {
		return dropper{c: c, buf: make([]byte, 128<<10)}
	}
	d := &rawDrop{conn: rc}
	d.recv = func(fd uintptr) bool {
		for {
			// The call needs no buffer: with MSG_TRUNC, TCP writes no bytes.
			n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, 0, uintptr(d.want), unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
			switch errno {
			case 0:
				d.got, d.err = int(n), nil
				if n == 0 {
					d.err = io.EOF
				}
				return true
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				d.got, d.err = 0, errno
				return true
			}
		}
	}
	return dropper{raw: d}
}

// discard drops up to n bytes. It returns io.EOF at the end of the stream.
func (d *dropper) discard(n int64) (int64, error) {
	if d.raw == nil {
		got, err := d.c.Read(d.buf[:min(n, int64(len(d.buf)))])
		return int64(got), err
	}
	d.raw.want, d.raw.got, d.raw.err = int(n), 0, nil
	if err := d.raw.conn.Read(d.raw.recv); err != nil {
		return 0, err
	}
	return int64(d.raw.got), d.raw.err
}
