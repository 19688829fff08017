package loadgen

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// dropper discards received bytes. With plain TCP the kernel drops them (tcp(7), MSG_TRUNC) without copying.
type dropper struct {
	plain bufferDrop
	raw   syscall.RawConn // nil: use plain
	recv  func(fd uintptr) bool
	// arguments and results of recv, which is allocated once
	want, got int
	err       error
}

func newDropper(c net.Conn) *dropper {
	d := &dropper{plain: bufferDrop{c: c}}
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return d
	}
	d.raw, _ = tc.SyscallConn() // nil if it fails
	d.recv = func(fd uintptr) bool {
		for {
			// The call needs no buffer: with MSG_TRUNC, TCP writes no bytes.
			n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, 0, uintptr(d.want), unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
			switch {
			case errno == unix.EINTR:
				continue
			case errno == unix.EAGAIN:
				return false
			case errno != 0:
				d.got, d.err = 0, errno
			case n == 0:
				d.got, d.err = 0, io.EOF
			default:
				d.got, d.err = int(n), nil
			}
			return true
		}
	}
	return d
}

// discard drops up to n bytes. It returns io.EOF at the end of the stream.
func (d *dropper) discard(n int64) (int64, error) {
	if d.raw == nil {
		return d.plain.discard(n)
	}
	d.want = int(n)
	if err := d.raw.Read(d.recv); err != nil {
		return 0, err
	}
	return int64(d.got), d.err
}
